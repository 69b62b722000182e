//! A block of a matrix, recovered on all threads.

use rayon::prelude::*;
use w4pack_format::group::{GROUP, PACKED_BYTES, pack, words_to_bytes};
use w4pack_format::scale::ScaleDtype;

use crate::pack::{GroupNote, StepNote, ZeroSigns};
use crate::recover::{Differing, Leaf, Misfit, Recovered, Settled, Step};
use crate::report::Tally;

/// Source bytes of a group.
pub(super) const GROUP_BYTES: usize = 2 * GROUP;

/// Groups that one thread takes at a time: few, so that no thread waits long for the last one.
const CHUNK: usize = 512;

/// What became of some groups that lie one behind the other.
#[derive(Default)]
pub(super) struct PackedGroups {
    /// Counts.
    pub tally: Tally,
    /// The largest step magnitude.
    pub largest_step: f32,
    /// Notes for the sidecar, with the numbers of their groups in the block.
    pub notes: Vec<(usize, GroupNote)>,
    /// Signs of the zeros; groups are numbered within the block.
    pub zeros: ZeroSigns,
    /// The first group whose step is out of the dtype's range.
    pub out_of_range: Option<OutOfRange>,
}

#[derive(Clone, Copy)]
pub(super) struct OutOfRange {
    /// The group's number in the block.
    pub group: usize,
    /// What the dtype could store.
    pub narrow_step: f32,
    /// What f32 stores.
    pub step: f32,
}

/// A group has no codes; its number in the block.
pub(super) struct BlockError {
    pub group: usize,
    pub misfit: Misfit,
}

/// What became of a block; the space is used again for a later one.
#[derive(Default)]
pub(super) struct PackedBlock {
    /// Words and steps as they will lie in the file.
    pub words: Vec<u8>,
    pub scales: Vec<u8>,
    /// The rest, by chunks in order.
    pub chunks: Vec<PackedGroups>,
}

/// Recovers the groups of a block, in chunks on the current pool's threads. The result does not
/// depend on how many there are: chunks come back in order, and the first error wins.
pub(super) fn pack_block(
    bytes: &[u8],
    dtype: ScaleDtype,
    block: &mut PackedBlock,
) -> Result<(), BlockError> {
    let PackedBlock { words, scales, chunks } = block;
    let groups = bytes.len() / GROUP_BYTES;
    words.resize(groups * PACKED_BYTES, 0);
    scales.resize(groups * dtype.bytes(), 0);
    let packed: Vec<Result<PackedGroups, BlockError>> = bytes
        .par_chunks(CHUNK * GROUP_BYTES)
        .zip(words.par_chunks_mut(CHUNK * PACKED_BYTES))
        .zip(scales.par_chunks_mut(CHUNK * dtype.bytes()))
        .with_max_len(1)
        .enumerate()
        .map(|(number, ((chunk, words), scales))| {
            pack_chunk(chunk, number * CHUNK, dtype, words, scales)
        })
        .collect();
    *chunks = packed.into_iter().collect::<Result<_, _>>()?;
    Ok(())
}

/// What [`pack_block`] does, but for writing: to try how fast it is. What does not fit is left for
/// the conversion to say.
pub(crate) fn judge_block(bytes: &[u8], dtype: ScaleDtype) {
    let _ = std::hint::black_box(pack_block(bytes, dtype, &mut PackedBlock::default()));
}

/// The most memory that a thread's chunk takes: a note for each group, in a list with room to grow.
pub(crate) fn chunk_memory() -> u64 {
    (CHUNK * 2 * size_of::<(usize, GroupNote)>()) as u64
}

/// Groups settled at a time: what is found of them stays in the nearest cache.
const BATCH: usize = 64;

fn pack_chunk(
    bytes: &[u8],
    first: usize,
    dtype: ScaleDtype,
    words: &mut [u8],
    scales: &mut [u8],
) -> Result<PackedGroups, BlockError> {
    let (groups, _) = bytes.as_chunks::<GROUP_BYTES>();
    let (words, _) = words.as_chunks_mut::<PACKED_BYTES>();
    let leaf = Leaf::best();
    let mut packed = PackedGroups::default();
    let mut settled = [None; BATCH];
    let batches = groups.chunks(BATCH).zip(words.chunks_mut(BATCH));
    let batches = batches.zip(scales.chunks_mut(BATCH * dtype.bytes()));
    for (number, ((groups, words), scales)) in batches.enumerate() {
        leaf.settle(groups, dtype, &mut settled);
        let places = words.iter_mut().zip(scales.chunks_exact_mut(dtype.bytes()));
        let found = groups.iter().zip(&settled).zip(places).enumerate();
        for (in_batch, ((bytes, settled), (words, scale))) in found {
            let group = first + number * BATCH + in_batch;
            match settled {
                Some(settled) => {
                    *words = settled.words;
                    dtype.write_to(settled.step, scale);
                    packed.count(first, settled);
                    if settled.has_mixed_zeros() {
                        let mixed_zeros = Some(negative_zeros(&bits_of(bytes)));
                        packed
                            .notes
                            .push((group, GroupNote { step: StepNote::Stored, mixed_zeros }));
                    }
                }
                None => {
                    let bits = bits_of(bytes);
                    let recovered = leaf.recover(&bits);
                    let recovered = recovered.map_err(|misfit| BlockError { group, misfit })?;
                    let step = recovered.step(dtype);
                    *words = words_to_bytes(&pack(&recovered.codes));
                    dtype.write_to(step.value, scale);
                    packed.push(group, &recovered, &step, dtype);
                    packed.note(first, group, &bits, &recovered, &step);
                }
            }
        }
    }
    Ok(packed)
}

impl Settled {
    /// Whether zeros of both signs are among its values.
    fn has_mixed_zeros(&self) -> bool {
        self.negative_zeros > 0 && self.negative_zeros < self.zeros
    }
}

impl PackedGroups {
    /// Counts a group whose stored step gives all values; `first` is the number of the first group.
    fn count(&mut self, first: usize, settled: &Settled) {
        let Settled { zeros, negative_zeros, step, .. } = *settled;
        self.zeros.add(first as u64, zeros, negative_zeros, step < 0.0, true);
        self.largest_step = self.largest_step.max(settled.step.abs());
        self.tally.groups += 1;
        match settled.step < 0.0 {
            true => self.tally.negative += 1,
            false => self.tally.positive += 1,
        }
        self.others(settled.differing);
        self.tally.peak_levels[usize::from(settled.peak)] += 1;
    }

    fn others(&mut self, differing: Differing) {
        let others = &mut self.tally.by_other_readers;
        others.transformers_dequantize += u64::from(differing.product_in_scale_dtype);
        others.scales_in_bf16 += u64::from(differing.scale_in_bf16);
    }

    fn push(&mut self, group: usize, recovered: &Recovered, step: &Step, dtype: ScaleDtype) {
        self.largest_step = self.largest_step.max(step.value.abs());
        if step.out_of_range && self.out_of_range.is_none() {
            let (narrow_step, step) = (step.value, recovered.step(ScaleDtype::F32).value);
            self.out_of_range = Some(OutOfRange { group, narrow_step, step });
        }
        self.tally.groups += 1;
        match &recovered.grid {
            None => self.tally.zero += 1,
            Some(grid) if grid.negative => self.tally.negative += 1,
            Some(_) => self.tally.positive += 1,
        }
        self.tally.inexact_groups += u64::from(step.wrong > 0);
        self.tally.values_differing += u64::from(step.wrong);
        self.others(recovered.differing(step, dtype));
        self.tally.peak_levels[recovered.peak()] += 1;
    }

    /// Takes the zeros of a group that was not settled, and notes what the stored step lacks.
    fn note(
        &mut self,
        first: usize,
        group: usize,
        bits: &[u16; GROUP],
        recovered: &Recovered,
        step: &Step,
    ) {
        let zeros = mask(bits, |bits| bits & 0x7fff == 0);
        let negative = negative_zeros(bits);
        let note = match step.wrong {
            0 => StepNote::Stored,
            _ => {
                let finer = recovered.step(ScaleDtype::F32);
                // For a group on the grid f32 always has a number inside; should it not, nothing is
                // lost.
                match finer.wrong {
                    0 => StepNote::Finer(finer.value),
                    _ => StepNote::Verbatim(*bits),
                }
            }
        };
        let takes_part = !matches!(note, StepNote::Verbatim(_));
        let [count, of_them] = [zeros, negative].map(|mask| mask.count_ones() as u8);
        self.zeros.add(first as u64, count, of_them, step.value < 0.0, takes_part);
        let mixed_zeros = (negative != 0 && negative != zeros).then_some(negative);
        if note != StepNote::Stored || mixed_zeros.is_some() {
            self.notes.push((group, GroupNote { step: note, mixed_zeros }));
        }
    }
}

/// Bit i set: element i is -0.0.
fn negative_zeros(bits: &[u16; GROUP]) -> u32 {
    mask(bits, |bits| bits == 0x8000)
}

fn mask(bits: &[u16; GROUP], holds: impl Fn(u16) -> bool) -> u32 {
    bits.iter()
        .enumerate()
        .fold(0, |mask, (element, &bits)| mask | (u32::from(holds(bits)) << element))
}

/// The bf16 bit patterns of a group's bytes.
fn bits_of(bytes: &[u8; GROUP_BYTES]) -> [u16; GROUP] {
    let (pairs, _) = bytes.as_chunks::<2>();
    std::array::from_fn(|element| u16::from_le_bytes(pairs[element]))
}
