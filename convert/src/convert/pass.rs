//! One reading of the source: every byte hashed, every group recovered, everything written at its
//! known place.

use std::ops::Range;

use w4pack_format::checkpoint::{Checkpoint, Shard};
use w4pack_format::digest::{Blake3Hasher, Hasher};
use w4pack_format::group::PACKED_BYTES;
use w4pack_format::header::TensorInfo;
use w4pack_format::manifest::{Fate, FileRecord, TensorRecord};
use w4pack_format::scale::ScaleDtype;

use super::block::{BlockError, GROUP_BYTES, PackedBlock, PackedGroups, pack_block};
use super::decision::{Decisions, Destination};
use super::relay;
use crate::ConvertError;
use crate::blocks::{BLOCK, stream};
use crate::pack::{Module, ModuleNotes, PackWriter, Sidecar};
use crate::plan::{Part, Plan, Treatment};
use crate::progress::{Progress, Stage, tell};
use crate::recover::Misfit;
use crate::report::{FellBack, Tally};

/// Bytes of the output to hash beside a block of the source: more than a block makes of them.
const HASH_BEHIND: u64 = BLOCK / 2;

/// What a reading of the source found.
pub(super) struct Reading {
    /// The weight files, with hashes.
    pub files: Vec<FileRecord>,
    /// The tensors in file order, with hashes.
    pub tensors: Vec<TensorRecord>,
    /// What was found in each packed module, by position in the contents.
    pub modules: Vec<Found>,
}

impl Reading {
    /// Whether every tensor fits what was decided for it.
    pub(super) fn is_final(&self) -> bool {
        self.modules.iter().all(Found::fits)
    }
}

/// What a packed module turned out to be.
#[derive(Default, Clone)]
pub(super) struct Found {
    /// Counts over its groups.
    pub tally: Tally,
    /// The largest step magnitude.
    pub largest_step: f32,
    /// Set if it needs f32 scales.
    pub fell_back: Option<FellBack>,
    /// Set if it cannot be packed and may stay in bf16.
    pub off_grid: Option<OffGrid>,
}

/// The first group of a tensor that is off the grid.
#[derive(Clone)]
pub(super) struct OffGrid {
    /// Row of the source tensor; in a stack of experts counted through all of them.
    pub row: u64,
    pub group: u64,
    pub misfit: Misfit,
}

impl Found {
    fn fits(&self) -> bool {
        self.fell_back.is_none() && self.off_grid.is_none()
    }
}

/// Everything that stays the same during a reading.
pub(super) struct Pass<'a> {
    pub checkpoint: &'a Checkpoint,
    pub plan: &'a Plan,
    pub decisions: &'a Decisions,
    pub writer: &'a PackWriter,
    pub allow_off_grid: bool,
    pub progress: &'a dyn Progress,
    pub stage: Stage,
}

impl Pass<'_> {
    /// Reads the whole source, each file from its first byte to its last.
    ///
    /// Errors: a file that cannot be read or is shorter than it was; a NaN or infinity; a group
    /// off the grid, unless allowed.
    pub(super) fn run(&self, sidecar: &mut Sidecar) -> Result<Reading, ConvertError> {
        let mut reading = Reading {
            files: Vec::new(),
            tensors: Vec::new(),
            modules: vec![Found::default(); self.decisions.contents.modules.len()],
        };
        let mut counter = Counter { pass: self, done: 0 };
        counter.advance(0)?;
        for (shard, planned) in self.checkpoint.shards().iter().zip(&self.plan.shards) {
            let mut file = Hasher::default();
            file.update(&shard.header.prefix());
            counter.advance(shard.header.data_start())?;
            // The header was checked: its tensors touch and fill the file.
            for (info, planned) in shard.header.tensors.iter().zip(&planned.tensors) {
                let fate = self.fate(planned.treatment);
                let sha256 = (fate != Fate::Packed).then(Hasher::default);
                let blake3 = Blake3Hasher::default();
                let mut tensor = OpenTensor { shard, info, file, blake3, sha256 };
                let whole = 0..info.bytes();
                match planned.treatment {
                    Treatment::LeaveOut(_) => {
                        self.stream(&mut tensor, whole, &mut counter, |_, _| Ok(()))?;
                    }
                    Treatment::Relay(position, Part::Words) => {
                        if let Destination::Packed(module) = self.decisions.text(position) {
                            reading.modules[module] =
                                self.relay(&mut tensor, &mut counter, position, module)?;
                        }
                    }
                    // Steps are read beside the words; shapes were read for the plan.
                    Treatment::Relay(..) => {
                        self.stream(&mut tensor, whole, &mut counter, |_, _| Ok(()))?;
                    }
                    Treatment::KeepTower(tower) => {
                        let to = self.decisions.tower(tower);
                        self.take(to, whole, &mut tensor, &mut counter, sidecar, &mut reading)?;
                    }
                    treatment => {
                        for position in treatment.positions() {
                            let to = self.decisions.destinations[position];
                            let part = self.part(position);
                            self.take(to, part, &mut tensor, &mut counter, sidecar, &mut reading)?;
                        }
                    }
                }
                reading.tensors.push(TensorRecord {
                    name: info.name.clone(),
                    file: shard.path.clone(),
                    bytes: info.bytes(),
                    blake3: tensor.blake3.finish(),
                    sha256: tensor.sha256.map(Hasher::finish),
                    fate,
                });
                file = tensor.file;
            }
            reading.files.push(FileRecord {
                path: shard.path.clone(),
                bytes: shard.bytes,
                sha256: file.finish(),
            });
        }
        Ok(reading)
    }

    /// The bytes of its source tensor in which a text tensor lies.
    fn part(&self, position: usize) -> Range<u64> {
        let text = &self.plan.text[position];
        let elements: usize = text.shape.iter().product();
        let row: usize = text.shape.iter().skip(1).product();
        let begin = 2 * (text.dense_first_row() * row) as u64;
        begin..begin + 2 * elements as u64
    }

    /// Writes what a part of the open tensor becomes.
    fn take(
        &self,
        destination: Destination,
        part: Range<u64>,
        tensor: &mut OpenTensor<'_>,
        counter: &mut Counter<'_>,
        sidecar: &mut Sidecar,
        reading: &mut Reading,
    ) -> Result<(), ConvertError> {
        match destination {
            Destination::Copied(copied) => {
                self.stream(tensor, part, counter, |first, bytes| {
                    self.writer.write_copied(copied, first, bytes)
                })?;
            }
            Destination::Packed(module) => {
                reading.modules[module] = self.pack(tensor, part, counter, module, sidecar)?;
            }
        }
        Ok(())
    }

    /// Of a stack of experts some may be packed and some not: then it counts as packed.
    fn fate(&self, treatment: Treatment) -> Fate {
        let mut destinations =
            treatment.positions().map(|position| self.decisions.destinations[position]);
        match treatment {
            Treatment::LeaveOut(_) => Fate::LeftOut,
            _ if destinations.any(|to| matches!(to, Destination::Packed(_))) => Fate::Packed,
            _ => Fate::Copied,
        }
    }

    /// Streams bytes of a tensor through `take` and, beside it, through its hashes and the file's;
    /// what has been written meanwhile is hashed as well.
    fn stream(
        &self,
        tensor: &mut OpenTensor<'_>,
        part: Range<u64>,
        counter: &mut Counter<'_>,
        mut take: impl FnMut(u64, &[u8]) -> Result<(), ConvertError> + Send,
    ) -> Result<(), ConvertError> {
        let OpenTensor { shard, info, file, blake3, sha256 } = tensor;
        let begin = shard.header.data_start() + info.begin + part.start;
        let source = &**self.checkpoint.source();
        stream(source, &shard.path, begin, part.end - part.start, |first, bytes| {
            let (taken, (behind, _)) = rayon::join(
                || take(first, bytes),
                || {
                    rayon::join(
                        || self.writer.hash_behind(HASH_BEHIND),
                        || {
                            rayon::join(
                                || file.update(bytes),
                                || {
                                    blake3.update(bytes);
                                    sha256.iter_mut().for_each(|sha256| sha256.update(bytes));
                                },
                            )
                        },
                    )
                },
            );
            taken?;
            behind?;
            counter.advance(bytes.len() as u64)
        })
    }

    /// Recovers and writes the matrix in a part of a tensor. Once it is known not to fit what was
    /// decided for it, its groups are still judged but no longer noted; what is written of it is
    /// thrown away with the whole file.
    ///
    /// A block is written and noted while the next one is recovered: so no thread waits for the
    /// one that writes.
    fn pack(
        &self,
        tensor: &mut OpenTensor<'_>,
        part: Range<u64>,
        counter: &mut Counter<'_>,
        number: usize,
        sidecar: &mut Sidecar,
    ) -> Result<Found, ConvertError> {
        let module = &self.decisions.contents.modules[number];
        let (name, shard) = (&tensor.info.name, tensor.shard);
        let first_row = part.start / (2 * module.columns as u64);
        let mut matrix = Matrix {
            pass: self,
            number,
            module,
            found: Found::default(),
            notes: sidecar.module(number),
            recovered: 0,
        };
        let (mut packed, mut before) = (PackedBlock::default(), PackedBlock::default());
        self.stream(tensor, part, counter, |first_byte, bytes| {
            let first = first_byte / GROUP_BYTES as u64;
            std::mem::swap(&mut packed, &mut before);
            let (recovered, taken) = rayon::join(
                || pack_block(bytes, module.scale_dtype, &mut packed),
                || matrix.take(&mut before),
            );
            taken?;
            let Err(BlockError { group, misfit }) = recovered else { return Ok(()) };
            let (row, group) = place(module, first + group as u64);
            let row = first_row + row;
            let may_stay = self.allow_off_grid && matches!(misfit, Misfit::OffGrid(_));
            if !may_stay {
                let (file, tensor) = (self.checkpoint.place(&shard.path), name.clone());
                return Err(ConvertError::Group { file, tensor, row, group, misfit });
            }
            matrix.found.off_grid.get_or_insert(OffGrid { row, group, misfit });
            Ok(())
        })?;
        matrix.take(&mut packed)?;
        let Matrix { found, notes, .. } = matrix;
        // Of a matrix that does not fit nothing is kept, and a GGUF file has no sidecar.
        if found.fits() && self.plan.gguf.is_none() {
            notes.end(&mut |first, count, words, scales| {
                words.resize(count * PACKED_BYTES, 0);
                scales.resize(count * module.scale_dtype.bytes(), 0);
                self.writer.read_groups(number, first, words, scales)
            })?;
        }
        Ok(found)
    }
}

/// A matrix whose recovered blocks are written and noted, in order.
struct Matrix<'a> {
    pass: &'a Pass<'a>,
    /// Position in the contents.
    number: usize,
    module: &'a Module,
    found: Found,
    notes: ModuleNotes<'a>,
    /// Groups taken so far.
    recovered: u64,
}

impl Matrix<'_> {
    /// Takes the next block; an empty one is none.
    fn take(&mut self, block: &mut PackedBlock) -> Result<(), ConvertError> {
        let first = self.recovered;
        for chunk in &block.chunks {
            self.found.add(chunk, first, self.module);
            self.recovered += chunk.tally.groups;
        }
        // From the first misfit on, blocks have lost groups, and nothing of them will be kept.
        if self.found.fits() && !block.chunks.is_empty() {
            self.pass.writer.write_groups(self.number, first, &block.words, &block.scales)?;
            if self.pass.plan.gguf.is_none() {
                note(first, &block.chunks, &mut self.notes)?;
            }
        }
        block.chunks.clear();
        Ok(())
    }
}

impl Pass<'_> {
    /// Passes on a module that is packed already: its words, and beside them its steps.
    fn relay(
        &self,
        tensor: &mut OpenTensor<'_>,
        counter: &mut Counter<'_>,
        position: usize,
        number: usize,
    ) -> Result<Found, ConvertError> {
        let module = &self.decisions.contents.modules[number];
        let from = self.plan.relayed[position].unwrap_or(module.scale_dtype);
        let scale_name = format!("{}.{}", self.plan.source_name(position), Part::Scales.suffix());
        let file = tensor.shard.path.clone();
        let mut found = Found::default();
        let whole = 0..tensor.info.bytes();
        self.stream(tensor, whole, counter, |first_byte, words| {
            let first = first_byte / PACKED_BYTES as u64;
            let mut scales = vec![0; words.len() / PACKED_BYTES * from.bytes()];
            self.checkpoint.read_range(&scale_name, first * from.bytes() as u64, &mut scales)?;
            let steps = relay::steps(&scales, from, module.scale_dtype).map_err(|bad| {
                let (row, group) = place(module, first + bad.group as u64);
                let (step, problem) = (bad.step, bad.problem);
                let (file, tensor) = (file.clone(), scale_name.clone());
                ConvertError::Step { file, tensor, row, group, step, problem }
            })?;
            found.tally.add(&relay::tally(words, &scales, from));
            self.writer.write_groups(number, first, words, &steps)
        })?;
        Ok(found)
    }
}

fn note(
    first: u64,
    chunks: &[PackedGroups],
    notes: &mut ModuleNotes<'_>,
) -> Result<(), ConvertError> {
    for chunk in chunks {
        notes.zeros(&chunk.zeros, first)?;
        for (group, note) in &chunk.notes {
            notes.note(first + *group as u64, note)?;
        }
    }
    Ok(())
}

/// A tensor being read.
struct OpenTensor<'a> {
    shard: &'a Shard,
    info: &'a TensorInfo,
    /// Hash of its file up to here.
    file: Hasher,
    /// Its own hashes; packed tensors go without SHA-256.
    blake3: Blake3Hasher,
    sha256: Option<Hasher>,
}

/// Bytes read so far.
struct Counter<'a> {
    pass: &'a Pass<'a>,
    done: u64,
}

impl Counter<'_> {
    fn advance(&mut self, bytes: u64) -> Result<(), ConvertError> {
        self.done += bytes;
        tell(self.pass.progress, self.pass.stage, self.done, self.pass.plan.source_bytes())
    }
}

impl Found {
    /// Adds groups of a block that begins with the module's group `first`.
    fn add(&mut self, groups: &PackedGroups, first: u64, module: &Module) {
        self.tally.add(&groups.tally);
        self.largest_step = self.largest_step.max(groups.largest_step);
        // f32 scales are the last resort; a group beyond them does not exist on a bf16 grid.
        if let Some(beyond) = groups.out_of_range.filter(|_| module.scale_dtype != ScaleDtype::F32)
        {
            let (row, group) = place(module, first + beyond.group as u64);
            let (narrow_step, step) = (beyond.narrow_step, beyond.step);
            self.fell_back.get_or_insert(FellBack { row, group, narrow_step, step });
        }
    }
}

/// Row of a group, and its number within the row.
fn place(module: &Module, group: u64) -> (u64, u64) {
    (group / module.groups_in_row(), group % module.groups_in_row())
}
