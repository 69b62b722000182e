//! Signs of zeros: which of the three rules of `w4pack_format::exact` says them shortest, and its list.
//!
//! Nearly every group has zeros of one sign, so a bit for each group and the masks of the few mixed
//! ones say everything, together with the codes and steps in the output. How long each rule's list
//! would be is counted on the way; only the shortest is made, and mostly it is empty.

use std::io;

use w4pack_format::exact::ZeroRule;
use w4pack_format::group::PACKED_BYTES;

use super::super::spool::{Spool, Stream};
use super::listed::{Entries, ListSize, Listed};
use crate::ConvertError;

/// Counts over the zeros of groups that lie one behind the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ZeroSigns {
    /// How many there are.
    zeros: u64,
    /// The groups that hold a -0.0.
    negative: ListSize,
    /// The groups in which a zero has another sign than the stored step.
    against_step: ListSize,
    /// Bit `group % 8` of byte `group / 8`: the group has zeros, and all of them are -0.0.
    all_negative: Vec<u8>,
    /// How many groups these are.
    groups: u64,
}

impl ZeroSigns {
    /// Adds the next group: how many zeros it has, how many of them are -0.0, and the sign of its
    /// stored step. `takes_part` is false for a group whose values are kept as they are. `first` is
    /// the number of the first group that was added.
    #[inline]
    pub fn add(
        &mut self,
        first: u64,
        zeros: u8,
        negative: u8,
        negative_step: bool,
        takes_part: bool,
    ) {
        let bit = self.groups % 8;
        if bit == 0 {
            self.all_negative.push(0);
        }
        let group = first + self.groups;
        self.groups += 1;
        if !takes_part {
            return;
        }
        self.zeros += u64::from(zeros);
        if negative > 0 {
            self.negative.add(group);
            if negative == zeros
                && let Some(byte) = self.all_negative.last_mut()
            {
                *byte |= 1 << bit;
            }
        }
        if negative != if negative_step { zeros } else { 0 } {
            self.against_step.add(group);
        }
    }
}

/// What is known of the zeros of a module.
#[derive(Default)]
pub(super) struct Zeros {
    counts: ZeroSigns,
    all_negative: Stream,
    /// Groups with zeros of both signs: which are -0.0.
    mixed: Listed,
    /// Groups that take no part.
    verbatim: Vec<u64>,
}

/// Reads back what was written of a module: packed words and stored steps of so many groups from the
/// first one on.
pub type ReadBack<'r> =
    dyn FnMut(u64, usize, &mut Vec<u8>, &mut Vec<u8>) -> Result<(), ConvertError> + 'r;

/// Groups read back at a time.
const BATCH: usize = 1 << 13;

/// A rule and what it lists: exceptions, or bits.
pub(super) enum Shortest {
    Exceptions(ZeroRule, Listed),
    Bits(Stream),
}

impl Zeros {
    /// Adds groups that lie behind all others; they were counted from `first`, and `offset` is what
    /// their numbers lack.
    pub(super) fn append(
        &mut self,
        spool: &mut Spool,
        later: &ZeroSigns,
        offset: u64,
    ) -> io::Result<()> {
        self.counts.zeros += later.zeros;
        self.counts.negative.append(&later.negative, offset);
        self.counts.against_step.append(&later.against_step, offset);
        self.counts.groups += later.groups;
        self.all_negative.push(spool, &later.all_negative)
    }

    /// Notes a group with zeros of both signs.
    pub(super) fn mixed(&mut self, spool: &mut Spool, group: u64, negative: u32) -> io::Result<()> {
        self.mixed.push(spool, group, &negative.to_le_bytes())
    }

    /// Notes a group that takes no part.
    pub(super) fn verbatim(&mut self, group: u64) {
        self.verbatim.push(group);
    }

    /// The rule of the fewest bytes, the lowest number on a tie, and what it has to say.
    pub(super) fn shortest(
        self,
        spool: &mut Spool,
        failed: impl Fn(io::Error) -> ConvertError,
        read_back: &mut ReadBack<'_>,
    ) -> Result<Shortest, ConvertError> {
        let ZeroSigns { zeros, negative, against_step, .. } = &self.counts;
        // Rules 1 and 2 take a byte to be named.
        let sizes = [negative.bytes(4), 1 + against_step.bytes(4), 1 + zeros.div_ceil(8)];
        let shortest = (0..3).min_by_key(|&rule| sizes[rule]).unwrap_or_default();
        let rule = [ZeroRule::Positive, ZeroRule::SignOfStep, ZeroRule::Bits][shortest];
        let (mut exceptions, mut bits) = (Listed::default(), Bits::default());
        let is_empty = sizes[shortest] == u64::from(rule != ZeroRule::Positive);
        if !is_empty {
            self.for_each_group(spool, &failed, read_back, |spool, group| {
                let Group { number, zeros, negative, negative_step } = group;
                let expected = match rule {
                    ZeroRule::SignOfStep if negative_step => zeros,
                    _ => 0,
                };
                match rule {
                    ZeroRule::Bits => bits.push(spool, zeros, negative),
                    _ if negative == expected => Ok(()),
                    _ => exceptions.push(spool, number, &(negative ^ expected).to_le_bytes()),
                }
            })?;
        }
        match rule {
            ZeroRule::Bits => bits.into_stream(spool).map(Shortest::Bits).map_err(failed),
            rule => Ok(Shortest::Exceptions(rule, exceptions)),
        }
    }

    /// Hands every group that takes part to `take`, with what codes, step, bit and mask say of it.
    fn for_each_group(
        &self,
        spool: &mut Spool,
        failed: &impl Fn(io::Error) -> ConvertError,
        read_back: &mut ReadBack<'_>,
        mut take: impl FnMut(&mut Spool, Group) -> io::Result<()>,
    ) -> Result<(), ConvertError> {
        let (mut words, mut scales) = (Vec::new(), Vec::new());
        let mut all_negative = self.all_negative.reader();
        let mut mixed: Entries<'_, 4> = self.mixed.entries();
        let mut next_mixed = mixed.next(spool).map_err(failed)?;
        let mut verbatim = self.verbatim.iter().peekable();
        let mut bits = [0; BATCH / 8];
        let mut first = 0;
        while first < self.counts.groups {
            let count = (self.counts.groups - first).min(BATCH as u64) as usize;
            read_back(first, count, &mut words, &mut scales)?;
            let bits = &mut bits[..count.div_ceil(8)];
            all_negative.read(spool, bits).map_err(failed)?;
            let steps = scales.chunks_exact(scales.len() / count);
            let groups = words.as_chunks::<PACKED_BYTES>().0.iter().zip(steps).enumerate();
            for (in_batch, (words, step)) in groups {
                let number = first + in_batch as u64;
                if verbatim.next_if_eq(&&number).is_some() {
                    continue;
                }
                let zeros = zeros_of(words);
                let negative = match next_mixed {
                    Some((group, mask)) if group == number => {
                        next_mixed = mixed.next(spool).map_err(failed)?;
                        u32::from_le_bytes(mask)
                    }
                    _ if bits[in_batch / 8] >> (in_batch % 8) & 1 == 1 => zeros,
                    _ => 0,
                };
                // The sign is the highest bit of all three dtypes.
                let negative_step = step.last().is_some_and(|byte| byte >> 7 == 1);
                let group = Group { number, zeros, negative, negative_step };
                take(spool, group).map_err(failed)?;
            }
            first += count as u64;
        }
        Ok(())
    }
}

/// A group's zeros.
#[derive(Clone, Copy)]
struct Group {
    number: u64,
    /// Bit i set: element i has code 0.
    zeros: u32,
    /// Bit i set: element i is -0.0.
    negative: u32,
    negative_step: bool,
}

/// Bit i set: element i has code 0, which is nibble 8.
fn zeros_of(words: &[u8; PACKED_BYTES]) -> u32 {
    words.iter().enumerate().fold(0, |mask, (byte, nibbles)| {
        let (low, high) = (u32::from(nibbles & 15 == 8), u32::from(nibbles >> 4 == 8));
        mask | low << (2 * byte) | high << (2 * byte + 1)
    })
}

/// One bit for each zero, lowest first.
#[derive(Default)]
struct Bits {
    stream: Stream,
    byte: u8,
    filled: u32,
}

impl Bits {
    fn push(&mut self, spool: &mut Spool, mut zeros: u32, negative: u32) -> io::Result<()> {
        while zeros != 0 {
            let element = zeros.trailing_zeros();
            zeros &= zeros - 1;
            self.byte |= ((negative >> element) as u8 & 1) << self.filled;
            self.filled += 1;
            if self.filled == 8 {
                self.stream.push(spool, &[self.byte])?;
                (self.byte, self.filled) = (0, 0);
            }
        }
        Ok(())
    }

    fn into_stream(mut self, spool: &mut Spool) -> io::Result<Stream> {
        if self.filled > 0 {
            self.stream.push(spool, &[self.byte])?;
        }
        Ok(self.stream)
    }
}
