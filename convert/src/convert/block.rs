//! A block of a matrix: recovered and written on all threads, the rest merged in order.

use rayon::prelude::*;
use w4pack_format::group::{GROUP, PACKED_BYTES, pack, words_to_bytes};
use w4pack_format::scale::ScaleDtype;

use crate::ConvertError;
use crate::pack::{GroupNote, PackWriter, StepNote};
use crate::recover::{Misfit, Recovered, recover};
use crate::report::Tally;

/// Source bytes of a group.
pub(super) const GROUP_BYTES: usize = 2 * GROUP;

/// Groups that one thread takes at a time.
const CHUNK: usize = 4096;

/// What became of some groups that lie one behind the other.
#[derive(Default)]
pub(super) struct PackedGroups {
    /// Packed words as they lie in the file; empty once they are written.
    words: Vec<u8>,
    /// Steps as they lie in the file; empty once they are written.
    scales: Vec<u8>,
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

/// Why a block was not packed.
pub(super) enum BlockError {
    /// A group has no codes; its number in the block.
    Misfit { group: usize, misfit: Misfit },
    /// It could not be written.
    Failed(ConvertError),
}

/// Recovers the groups of a block and writes their words and steps from group `first` of the module
/// on, in chunks on the current pool's threads. The result does not depend on how many there are:
/// chunks come back in order, and the first error wins.
pub(super) fn pack_block(
    bytes: &[u8],
    dtype: ScaleDtype,
    writer: &PackWriter,
    module: usize,
    first: u64,
) -> Result<Vec<PackedGroups>, BlockError> {
    let chunks: Vec<Result<PackedGroups, BlockError>> = bytes
        .par_chunks(CHUNK * GROUP_BYTES)
        .enumerate()
        .map(|(number, chunk)| {
            let in_block = number * CHUNK;
            let mut packed = pack_chunk(chunk, in_block, dtype)?;
            let words = std::mem::take(&mut packed.words);
            let scales = std::mem::take(&mut packed.scales);
            writer
                .write_groups(module, first + in_block as u64, &words, &scales)
                .map_err(BlockError::Failed)?;
            Ok(packed)
        })
        .collect();
    chunks.into_iter().collect()
}

fn pack_chunk(bytes: &[u8], first: usize, dtype: ScaleDtype) -> Result<PackedGroups, BlockError> {
    let (groups, _) = bytes.as_chunks::<GROUP_BYTES>();
    let mut packed = PackedGroups {
        words: Vec::with_capacity(groups.len() * PACKED_BYTES),
        scales: Vec::with_capacity(groups.len() * dtype.bytes()),
        ..PackedGroups::default()
    };
    for (number, bytes) in groups.iter().enumerate() {
        let bits = bits_of(bytes);
        let group = first + number;
        let recovered = recover(&bits).map_err(|misfit| BlockError::Misfit { group, misfit })?;
        packed.push(group, &bits, &recovered, dtype);
    }
    Ok(packed)
}

/// The bf16 bit patterns of a group's bytes. A plain loop becomes one copy; `array::from_fn` became
/// a loop over single bytes and took a third of the whole conversion.
fn bits_of(bytes: &[u8; GROUP_BYTES]) -> [u16; GROUP] {
    let mut bits = [0; GROUP];
    let (pairs, _) = bytes.as_chunks::<2>();
    for (bits, &pair) in bits.iter_mut().zip(pairs) {
        *bits = u16::from_le_bytes(pair);
    }
    bits
}

impl PackedGroups {
    fn push(
        &mut self,
        group: usize,
        bits: &[u16; GROUP],
        recovered: &Recovered,
        dtype: ScaleDtype,
    ) {
        let step = recovered.step(dtype);
        self.words.extend_from_slice(&words_to_bytes(&pack(&recovered.codes)));
        dtype.write(step.value, &mut self.scales);
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
        let zeros = count(bits, |bits| bits & 0x7fff == 0);
        let negative_zeros = count(bits, |bits| bits == 0x8000);
        if exact && negative_zeros == 0 && !(negative_step && zeros != 0) {
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

fn count(bits: &[u16; GROUP], holds: impl Fn(u16) -> bool) -> u16 {
    bits.iter().fold(0, |count, &bits| count + u16::from(holds(bits)))
}

fn mask(bits: &[u16; GROUP], holds: impl Fn(u16) -> bool) -> u32 {
    bits.iter()
        .enumerate()
        .fold(0, |mask, (element, &bits)| mask | (u32::from(holds(bits)) << element))
}
