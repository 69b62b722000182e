//! A block of a matrix, recovered on all threads.

use rayon::prelude::*;
use w4pack_format::group::{GROUP, PACKED_BYTES, pack, words_to_bytes};
use w4pack_format::scale::ScaleDtype;

use crate::pack::{GroupNote, StepNote};
use crate::recover::{Misfit, Recovered, Step, recover_all};
use crate::report::Tally;

/// Source bytes of a group.
pub(super) const GROUP_BYTES: usize = 2 * GROUP;

/// Groups that one thread takes at a time.
const CHUNK: usize = 1024;

/// What became of some groups that lie one behind the other.
#[derive(Default)]
pub(super) struct PackedGroups {
    /// Counts.
    pub tally: Tally,
    /// The largest step magnitude.
    pub largest_step: f32,
    /// Notes for the sidecar, with the zeros of the groups between them.
    pub notes: Vec<Note>,
    /// The first group whose step is out of the dtype's range.
    pub out_of_range: Option<OutOfRange>,
}

/// An entry for the sidecar.
pub(super) enum Note {
    /// So many +0.0 under positive steps, in groups with nothing else to say.
    Plain(u64),
    /// The group with this number in the block.
    Group(usize, GroupNote),
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
    (CHUNK * 2 * size_of::<Note>()) as u64
}

fn pack_chunk(
    bytes: &[u8],
    first: usize,
    dtype: ScaleDtype,
    words: &mut [u8],
    scales: &mut [u8],
) -> Result<PackedGroups, BlockError> {
    let (groups, _) = bytes.as_chunks::<GROUP_BYTES>();
    let (words, _) = words.as_chunks_mut::<PACKED_BYTES>();
    let mut packed = PackedGroups::default();
    recover_all(groups, |number, bits, recovered| {
        let group = first + number;
        let recovered = recovered.map_err(|misfit| BlockError { group, misfit })?;
        words[number] = words_to_bytes(&pack(&recovered.codes));
        let step = recovered.step(dtype);
        let width = dtype.bytes();
        dtype.write_to(step.value, &mut scales[number * width..][..width]);
        packed.push(group, bits, &recovered, &step, dtype);
        Ok(())
    })?;
    Ok(packed)
}

impl PackedGroups {
    fn push(
        &mut self,
        group: usize,
        bits: &[u16; GROUP],
        recovered: &Recovered,
        step: &Step,
        dtype: ScaleDtype,
    ) {
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
        let differing = recovered.differing(step.value, dtype);
        let others = &mut self.tally.by_other_readers;
        others.transformers_dequantize += u64::from(differing.product_in_scale_dtype);
        others.scales_in_bf16 += u64::from(differing.scale_in_bf16);
        self.tally.peak_levels[recovered.peak()] += 1;
        self.note(group, bits, recovered, step.wrong == 0, step.value < 0.0);
    }

    fn note(
        &mut self,
        group: usize,
        bits: &[u16; GROUP],
        recovered: &Recovered,
        exact: bool,
        negative_step: bool,
    ) {
        // Counting is much cheaper than finding out which; nearly every group needs no more.
        let zeros = zeros_in(&recovered.codes);
        let negative_zeros = holds_negative_zero(bits);
        if exact && !negative_zeros && !(negative_step && zeros != 0) {
            match self.notes.last_mut() {
                Some(Note::Plain(count)) => *count += u64::from(zeros),
                _ => self.notes.push(Note::Plain(u64::from(zeros))),
            }
            return;
        }
        let zeros = mask(bits, |bits| bits & 0x7fff == 0);
        let negative_zeros = mask(bits, |bits| bits == 0x8000);
        let step = if exact {
            StepNote::Stored
        } else {
            let finer = recovered.step(ScaleDtype::F32);
            // For a group on the grid f32 always has a number inside; should it not, nothing is
            // lost.
            if finer.wrong == 0 { StepNote::Finer(finer.value) } else { StepNote::Verbatim(*bits) }
        };
        let note = GroupNote { step, zeros, negative_zeros, negative_step };
        self.notes.push(Note::Group(group, note));
    }
}

/// Plain loops over lanes as narrow as the elements, here and below: with wider sums, or with
/// `count`, the compiler takes the lanes apart one by one.
fn zeros_in(codes: &[i8; GROUP]) -> u8 {
    let mut zeros = 0;
    for &code in codes {
        zeros += u8::from(code == 0);
    }
    zeros
}

fn holds_negative_zero(bits: &[u16; GROUP]) -> bool {
    let mut found = 0;
    for &bits in bits {
        found |= u16::from(bits == 0x8000);
    }
    found != 0
}

fn mask(bits: &[u16; GROUP], holds: impl Fn(u16) -> bool) -> u32 {
    bits.iter()
        .enumerate()
        .fold(0, |mask, (element, &bits)| mask | (u32::from(holds(bits)) << element))
}
