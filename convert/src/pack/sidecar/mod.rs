//! `w4pack/exact.safetensors`, as `w4pack_format::exact` describes it: what the stored steps cannot
//! say about the source's bytes.
//!
//! Module by module, groups are noted in ascending order: those that need more than the stored step
//! one by one, the signs of zeros as counts ([`zeros`](ZeroSigns)).

mod listed;
mod zeros;

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use w4pack_format::dtype::Dtype;
use w4pack_format::exact::{Part, ZeroRule};
use w4pack_format::group::GROUP;
use w4pack_format::header::Header;

use super::spool::{Spool, Stream};
use crate::ConvertError;
use listed::Listed;
pub use zeros::{ReadBack, ZeroSigns};
use zeros::{Shortest, Zeros};

/// What there is to say about a group.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GroupNote {
    /// Whether its stored step gives all values back.
    pub step: Step,
    /// Where it has zeros of both signs. Bit i set: element i is -0.0.
    pub mixed_zeros: Option<u32>,
}

/// What gives a group's values back.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Step {
    /// The stored step.
    Stored,
    /// This one.
    Finer(f32),
    /// No step; these are the bf16 bits.
    Verbatim([u16; GROUP]),
}

/// Collects the notes of all modules and writes the file.
pub struct Sidecar {
    spool: Spool,
    modules: Vec<Option<ModuleParts>>,
    names: Vec<String>,
}

/// The finished parts of a module: shape and bytes.
type ModuleParts = Vec<(Part, Vec<usize>, Stream)>;

/// The notes of the module being written.
pub struct ModuleNotes<'a> {
    sidecar: &'a mut Sidecar,
    module: usize,
    steps: Listed,
    verbatim: Listed,
    zeros: Zeros,
}

impl Sidecar {
    /// Begins a sidecar for these modules; `scratch` is a path for a file that is gone at the end.
    pub(super) fn create(scratch: &Path, names: Vec<String>) -> Result<Self, ConvertError> {
        let spool = Spool::create(scratch).map_err(ConvertError::io("create", scratch))?;
        Ok(Sidecar { spool, modules: names.iter().map(|_| None).collect(), names })
    }

    /// Begins the notes of a module, which is counted as in [`super::Contents::modules`].
    pub fn module(&mut self, module: usize) -> ModuleNotes<'_> {
        ModuleNotes {
            sidecar: self,
            module,
            steps: Listed::default(),
            verbatim: Listed::default(),
            zeros: Zeros::default(),
        }
    }

    /// Writes the file and removes the scratch one. Returns the file's size.
    pub(super) fn write(self, path: &Path) -> Result<u64, ConvertError> {
        let Sidecar { spool, modules, names } = self;
        let mut tensors = Vec::new();
        for (name, parts) in names.iter().zip(modules) {
            for (part, shape, stream) in parts.into_iter().flatten() {
                tensors.push((part.tensor_name(name), dtype_of(part), shape, stream));
            }
        }
        // Wider elements first, as in the weights: each tensor begins on a multiple of its size.
        tensors.sort_by_key(|(_, dtype, ..)| std::cmp::Reverse(dtype.size()));
        let entries: Vec<_> = tensors
            .iter()
            .map(|(name, dtype, shape, _)| (name.clone(), *dtype, shape.clone()))
            .collect();
        let header = Header::lay_out(&entries)?;
        let copy = || -> io::Result<()> {
            let mut file = BufWriter::new(File::create_new(path)?);
            file.write_all(&header.prefix())?;
            for (.., stream) in &tensors {
                stream.replay(&spool, &mut |bytes| file.write_all(bytes))?;
            }
            file.into_inner()?.sync_all()
        };
        copy().map_err(ConvertError::io("write", path))?;
        remove(spool)?;
        Ok(header.file_bytes())
    }

    /// Removes the scratch file; nothing is written.
    pub(super) fn discard(self) -> Result<(), ConvertError> {
        remove(self.spool)
    }
}

fn remove(spool: Spool) -> Result<(), ConvertError> {
    let scratch = spool.path().to_path_buf();
    spool.remove().map_err(ConvertError::io("remove", &scratch))
}

impl ModuleNotes<'_> {
    /// Notes a group of which [`ZeroSigns`] and output do not say everything. Groups come in ascending
    /// order.
    pub fn note(&mut self, group: u64, note: &GroupNote) -> Result<(), ConvertError> {
        let spool = &mut self.sidecar.spool;
        let mut push = || -> io::Result<()> {
            match note.step {
                Step::Stored => {}
                Step::Finer(step) => self.steps.push(spool, group, &step.to_le_bytes())?,
                Step::Verbatim(values) => {
                    let bytes: Vec<u8> =
                        values.iter().flat_map(|bits| bits.to_le_bytes()).collect();
                    self.zeros.verbatim(group);
                    return self.verbatim.push(spool, group, &bytes);
                }
            }
            match note.mixed_zeros {
                Some(negative) => self.zeros.mixed(spool, group, negative),
                None => Ok(()),
            }
        };
        push().map_err(ConvertError::io("write", self.sidecar.spool.path()))
    }

    /// Takes the counts of the groups that come next; `offset` is added to their numbers.
    pub fn zeros(&mut self, signs: &ZeroSigns, offset: u64) -> Result<(), ConvertError> {
        let spool = &mut self.sidecar.spool;
        let appended = self.zeros.append(spool, signs, offset);
        appended.map_err(ConvertError::io("write", self.sidecar.spool.path()))
    }

    /// Ends the module: keeps the shortest rule for zeros, whose list it makes of what `read_back`
    /// gives of the output.
    pub fn end(self, read_back: &mut ReadBack<'_>) -> Result<(), ConvertError> {
        let ModuleNotes { sidecar, module, steps, verbatim, zeros } = self;
        let mut parts = ModuleParts::new();
        push_list(steps, &mut parts, Part::StepGaps, Part::StepValues, &[]);
        push_list(verbatim, &mut parts, Part::VerbatimGaps, Part::VerbatimValues, &[GROUP]);
        let path = sidecar.spool.path().to_path_buf();
        let failed = |cause| ConvertError::io("write", &path)(cause);
        let spool = &mut sidecar.spool;
        let shortest = zeros.shortest(spool, failed, read_back)?;
        let rule = match &shortest {
            Shortest::Exceptions(rule, _) => *rule,
            Shortest::Bits(_) => ZeroRule::Bits,
        };
        if rule != ZeroRule::Positive {
            let mut named = Stream::default();
            named.push(spool, &[rule as u8]).map_err(failed)?;
            parts.push((Part::ZeroRule, vec![1], named));
        }
        match shortest {
            Shortest::Exceptions(_, listed) => {
                push_list(listed, &mut parts, Part::ZeroGaps, Part::ZeroMasks, &[]);
            }
            Shortest::Bits(stream) => {
                parts.push((Part::ZeroBits, vec![stream.bytes() as usize], stream));
            }
        }
        for (.., stream) in &mut parts {
            stream.flush(spool).map_err(failed)?;
        }
        sidecar.modules[module] = Some(parts);
        Ok(())
    }
}

fn push_list(listed: Listed, parts: &mut ModuleParts, gaps: Part, values: Part, width: &[usize]) {
    if listed.count > 0 {
        parts.push((gaps, vec![listed.gaps.bytes() as usize], listed.gaps));
        let shape = [&[listed.count], width].concat();
        parts.push((values, shape, listed.values));
    }
}

fn dtype_of(part: Part) -> Dtype {
    match part {
        Part::StepValues => Dtype::F32,
        Part::VerbatimValues => Dtype::BF16,
        Part::ZeroMasks => Dtype::U32,
        Part::StepGaps | Part::VerbatimGaps | Part::ZeroRule | Part::ZeroGaps | Part::ZeroBits => {
            Dtype::U8
        }
    }
}
