//! A packed matrix back to its bf16 bytes: words and steps in chunks on all threads, then what the
//! sidecar adds, in the order of its lists.

use rayon::prelude::*;
use w4pack_format::checkpoint::Checkpoint;
use w4pack_format::exact::{Part, ZeroRule};
use w4pack_format::group::{GROUP, PACKED_BYTES};
use w4pack_format::scale::ScaleDtype;

use super::lists::{Bytes, Gaps, Sidecar};
use super::values::by_nibble;
use crate::ConvertError;

/// bf16 bytes of a group.
const GROUP_BYTES: usize = 2 * GROUP;

/// Groups given back at a time: 4 MiB of bf16.
const BLOCK: u64 = 64 << 10;

/// Groups that one thread takes at a time.
const CHUNK: usize = 4096;

/// bf16's sign bit.
const SIGN: u16 = 0x8000;

/// A packed matrix being given back, block by block.
pub(super) struct PackedModule<'a> {
    checkpoint: &'a Checkpoint,
    words_name: String,
    scales_name: String,
    scale_dtype: ScaleDtype,
    groups: u64,
    next: u64,
    words: Vec<u8>,
    scales: Vec<u8>,
    notes: Notes<'a>,
}

/// What the sidecar says about a module.
struct Notes<'a> {
    steps: Gaps<'a>,
    step_values: Bytes<'a>,
    verbatim: Gaps<'a>,
    verbatim_values: Bytes<'a>,
    zeros: Zeros<'a>,
}

/// How signs of zeros are told.
enum Zeros<'a> {
    /// A rule and its exceptions.
    Ruled { sign_of_step: bool, gaps: Gaps<'a>, masks: Bytes<'a> },
    /// A bit for each, lowest first: the list, the byte that is being used up, bits left in it.
    Bits { list: Bytes<'a>, byte: u8, left: u32 },
}

impl<'a> PackedModule<'a> {
    /// Opens module `name` of a packed checkpoint, which must hold `rows` by `columns` values.
    ///
    /// Errors: words or scales are missing or of other shapes; a sidecar that does not fit.
    pub(super) fn open(
        checkpoint: &'a Checkpoint,
        sidecar: &Sidecar<'a>,
        name: &str,
        shape: [usize; 2],
    ) -> Result<Self, ConvertError> {
        let [rows, columns] = shape;
        let words_name = format!("{name}.weight_packed");
        let scales_name = format!("{name}.weight_scale");
        let find = |name: &String| checkpoint.tensor(name).ok_or_else(|| checkpoint.missing(name));
        let (words, scales) = (find(&words_name)?, find(&scales_name)?);
        let file = checkpoint.place(&scales.shard.path);
        let fail = |tensor: &String, problem: String| ConvertError::Tensor {
            file: file.clone(),
            tensor: tensor.clone(),
            problem,
        };
        let scale_dtype = ScaleDtype::from_dtype(scales.info.dtype).ok_or_else(|| {
            fail(&scales_name, format!("{} is no dtype of steps", scales.info.dtype))
        })?;
        if words.info.shape != [rows, columns / 8] {
            let found = &words.info.shape;
            return Err(fail(
                &words_name,
                format!("{found:?} is not the shape of {shape:?} codes"),
            ));
        }
        if scales.info.shape != [rows, columns / GROUP] {
            let found = &scales.info.shape;
            return Err(fail(
                &scales_name,
                format!("{found:?} is not the shape for {shape:?} codes"),
            ));
        }
        Ok(PackedModule {
            checkpoint,
            words_name,
            scales_name,
            scale_dtype,
            groups: (rows * columns / GROUP) as u64,
            next: 0,
            words: Vec::new(),
            scales: Vec::new(),
            notes: Notes::open(sidecar, name)?,
        })
    }

    /// Fills `block` with the next values; leaves it empty at the end.
    pub(super) fn next_block(&mut self, block: &mut Vec<u8>) -> Result<(), ConvertError> {
        let first = self.next;
        let count = (self.groups - first).min(BLOCK);
        block.resize(count as usize * GROUP_BYTES, 0);
        if count == 0 {
            return self.notes.end();
        }
        let scale_bytes = self.scale_dtype.bytes();
        self.words.resize(count as usize * PACKED_BYTES, 0);
        self.scales.resize(count as usize * scale_bytes, 0);
        let read = |name: &str, width: usize, buffer: &mut [u8]| {
            self.checkpoint.read_range(name, first * width as u64, buffer)
        };
        read(&self.words_name, PACKED_BYTES, &mut self.words)?;
        read(&self.scales_name, scale_bytes, &mut self.scales)?;
        let sign_of_step = matches!(self.notes.zeros, Zeros::Ruled { sign_of_step: true, .. });
        block
            .par_chunks_mut(CHUNK * GROUP_BYTES)
            .zip(self.words.par_chunks(CHUNK * PACKED_BYTES))
            .zip(self.scales.par_chunks(CHUNK * scale_bytes))
            .for_each(|((values, words), scales)| {
                let (groups, _) = values.as_chunks_mut::<GROUP_BYTES>();
                let (words, _) = words.as_chunks::<PACKED_BYTES>();
                let steps = scales.chunks_exact(scale_bytes);
                for ((group, words), step) in groups.iter_mut().zip(words).zip(steps) {
                    let step = self.scale_dtype.read(step);
                    let mut table = by_nibble(step);
                    if sign_of_step && step < 0.0 {
                        table[8] = SIGN;
                    }
                    fill(group, words, &table);
                }
            });
        let (groups, _) = block.as_chunks_mut::<GROUP_BYTES>();
        let (words, _) = self.words.as_chunks::<PACKED_BYTES>();
        self.notes.apply(first, groups, words)?;
        self.next += count;
        Ok(())
    }
}

/// The values of a group: its words' nibbles looked up.
fn fill(group: &mut [u8; GROUP_BYTES], words: &[u8; PACKED_BYTES], table: &[u16; 16]) {
    let (pairs, _) = group.as_chunks_mut::<4>();
    for (pair, byte) in pairs.iter_mut().zip(words) {
        let low = u32::from(table[usize::from(byte & 15)]);
        let high = u32::from(table[usize::from(byte >> 4)]);
        *pair = (low | high << 16).to_le_bytes();
    }
}

/// Bit i set: the code of element i is 0.
fn zero_mask(words: &[u8; PACKED_BYTES]) -> u32 {
    words.iter().enumerate().fold(0, |mask, (number, byte)| {
        let pair = u32::from(byte & 15 == 8) | u32::from(byte >> 4 == 8) << 1;
        mask | pair << (2 * number)
    })
}

/// Gives the elements of `mask` the other sign.
fn turn(group: &mut [u8; GROUP_BYTES], mut mask: u32) {
    while mask != 0 {
        // The sign is the highest bit of the second byte.
        group[2 * mask.trailing_zeros() as usize + 1] ^= (SIGN >> 8) as u8;
        mask &= mask - 1;
    }
}

impl<'a> Notes<'a> {
    fn open(sidecar: &Sidecar<'a>, module: &str) -> Result<Self, ConvertError> {
        let part = |part| sidecar.part(module, part);
        let mut rule = part(Part::ZeroRule)?;
        let zeros = match rule.take::<1>()? {
            Some([number]) if number == ZeroRule::Bits as u8 => {
                Zeros::Bits { list: part(Part::ZeroBits)?, byte: 0, left: 0 }
            }
            number => {
                let number = number.map_or(ZeroRule::Positive as u8, |[number]| number);
                if number > ZeroRule::SignOfStep as u8 {
                    return Err(rule.fault(format!("{number} is no rule for zeros")));
                }
                Zeros::Ruled {
                    sign_of_step: number == ZeroRule::SignOfStep as u8,
                    gaps: Gaps::new(part(Part::ZeroGaps)?)?,
                    masks: part(Part::ZeroMasks)?,
                }
            }
        };
        Ok(Notes {
            steps: Gaps::new(part(Part::StepGaps)?)?,
            step_values: part(Part::StepValues)?,
            verbatim: Gaps::new(part(Part::VerbatimGaps)?)?,
            verbatim_values: part(Part::VerbatimValues)?,
            zeros,
        })
    }

    /// Mends the groups of a block that begins with group `first`: finer steps, signs of zeros,
    /// groups that are given as they are.
    fn apply(
        &mut self,
        first: u64,
        groups: &mut [[u8; GROUP_BYTES]],
        words: &[[u8; PACKED_BYTES]],
    ) -> Result<(), ConvertError> {
        let end = first + groups.len() as u64;
        while let Some(group) = self.steps.take_below(end)? {
            let place = (group - first) as usize;
            let step = f32::from_le_bytes(self.step_values.must_take()?);
            let mut table = by_nibble(step);
            // A finer step has the sign of the stored one, which decides the sign of zeros.
            if matches!(self.zeros, Zeros::Ruled { sign_of_step: true, .. }) && step < 0.0 {
                table[8] = SIGN;
            }
            fill(&mut groups[place], &words[place], &table);
        }
        let mut verbatim = Vec::new();
        while let Some(group) = self.verbatim.take_below(end)? {
            verbatim.push(((group - first) as usize, self.verbatim_values.must_take()?));
        }
        match &mut self.zeros {
            Zeros::Ruled { gaps, masks, .. } => {
                while let Some(group) = gaps.take_below(end)? {
                    let place = (group - first) as usize;
                    let mask = u32::from_le_bytes(masks.must_take()?);
                    if mask & !zero_mask(&words[place]) != 0 {
                        let problem = format!("group {group}: {mask:#010x} names more than zeros");
                        return Err(masks.fault(problem));
                    }
                    turn(&mut groups[place], mask);
                }
            }
            Zeros::Bits { list, byte, left } => {
                let mut skipped = verbatim.iter().map(|(place, _)| *place).peekable();
                for (place, (group, words)) in groups.iter_mut().zip(words).enumerate() {
                    // Elements of a group that is given as it is have no bits.
                    if skipped.next_if_eq(&place).is_some() {
                        continue;
                    }
                    let mut zeros = zero_mask(words);
                    while zeros != 0 {
                        if *left == 0 {
                            ([*byte], *left) = (list.must_take()?, 8);
                        }
                        if *byte & 1 == 1 {
                            turn(group, zeros & zeros.wrapping_neg());
                        }
                        (*byte, *left) = (*byte >> 1, *left - 1);
                        zeros &= zeros - 1;
                    }
                }
            }
        }
        for (place, values) in verbatim {
            groups[place] = values;
        }
        Ok(())
    }

    /// Behind the last group nothing may be left.
    fn end(&mut self) -> Result<(), ConvertError> {
        self.steps.end()?;
        self.step_values.end()?;
        self.verbatim.end()?;
        self.verbatim_values.end()?;
        match &mut self.zeros {
            Zeros::Ruled { gaps, masks, .. } => {
                gaps.end()?;
                masks.end()
            }
            Zeros::Bits { list, .. } => list.end(),
        }
    }
}
