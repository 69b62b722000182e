//! Confirming stored codes without trying every peak level: the usual case, at a fraction of the
//! cost of [`recover`](super::recover::recover).
//!
//! Let the stored codes be `k_i` with the largest size `m`, and let some step `s` give every value:
//! bf16(k_i·s) = w_i. For normal numbers rounding moves a product by at most 2^-8 of the value, so
//! k_i·s = w_i(1+e) with |e| <= 2^-8, and with p the place of the largest value
//!
//! > k_i / m = (w_i / w_p) · (1+e_i) / (1+e_p).
//!
//! A larger size gives a larger value (sizes up to 8 lie an eighth apart, roundings 2^-7), so the
//! largest value has size `m`. Then
//!
//! 1. Level `m` finds these codes: round(m·w_i / w_p) is off `k_i` by less than 8·(257/255 - 1),
//!    which is far below a half.
//! 2. If another level `n` <= 8 works, with codes `n_i`, then n_i / n is w_i / w_p within the same
//!    error, so that n_i is n·k_i / m within a factor of (257/255)^2. That is off by less than
//!    0.1103 for n <= 7 and by less than 0.1261 for n = 8, while n·k_i / m, unless it is an integer,
//!    is at least 1/m away from one: 0.125 for m = 8 (then n <= 7), 0.142 for m <= 7. So
//!    n·k_i / m is an integer for every i; if the sizes have no common factor, `m` divides `n`.
//!    For m >= 5 there is no other multiple of `m` up to 8: no other level works.
//! 3. The sign: below level 8 the positive step comes first. At level 8 the side that reaches -8
//!    decides it, and the stored codes, which hold no +8, reach it on one side only.
//!
//! Where any of this does not hold the answer is `None`, and nothing is said about the group.

use super::bf16;
use super::interval::Interval;
use super::ratio::Ratio;
use super::recover::{GROUP, Grid};

/// The grid of 32 values if the stored codes and the sign of the stored step are visibly those of
/// [`recover`](super::recover::recover).
pub fn confirm(values: &[u16; GROUP], codes: &[i8; GROUP], negative: bool) -> Option<Grid> {
    let value_of_size = value_of_size(values, codes, negative)?;
    let sizes = (1..9u8).filter(|&size| value_of_size[usize::from(size)] != 0);
    let largest = sizes.clone().next_back()?;
    if largest < 5 || (largest < 8 && negative) {
        return None;
    }
    if [2, 3, 5, 7].iter().any(|factor| sizes.clone().all(|size| size % factor == 0)) {
        return None;
    }
    let steps = steps(&value_of_size)?;
    Some(Grid { codes: *codes, negative, steps, peaks: 1 << (largest - 1) })
}

/// A multiple of all sizes: half-way points divided by a size are integers in 840ths.
const COMMON: u32 = 840;

/// The steps that give every size its value. The intervals of the sizes are intersected as
/// integers: in 840ths of a quarter of the smallest value's last place, twice as large and one
/// further in where the end is open.
fn steps(value_of_size: &[u16; 9]) -> Option<Interval> {
    let occurring = value_of_size.iter().filter(|bits| **bits != 0);
    let smallest = bf16::magnitude(*occurring.min()?);
    let (mut low, mut high) = (0u64, u64::MAX);
    for (size, &bits) in value_of_size.iter().enumerate().skip(1) {
        if bits == 0 {
            continue;
        }
        let value = bf16::magnitude(bits);
        let binades = value.exponent - smallest.exponent;
        if binades > 12 {
            // No size is 2^12 times another one.
            return None;
        }
        // Below a power of two the next half-way point lies half as far.
        let is_lowest = value.significand == 128 && value.exponent > bf16::LAST_PLACE;
        let below = 4 * value.significand - if is_lowest { 1 } else { 2 };
        let above = 4 * value.significand + 2;
        let scale = u64::from(COMMON / size as u32) << binades;
        let open = u64::from(value.significand % 2);
        low = low.max(2 * scale * u64::from(below) + open);
        high = high.min(2 * scale * u64::from(above) - open);
    }
    let end = |doubled: u64| Ratio {
        numerator: doubled / 2,
        denominator: COMMON.into(),
        exponent: smallest.exponent - 2,
    };
    (low <= high).then(|| Interval {
        low: end(low),
        low_closed: low % 2 == 0,
        high: end(high + 1),
        high_closed: high % 2 == 0,
    })
}

/// The one value (without its sign) that each size of code stands for, 0 where a size does not
/// occur. `None` when a size stands for two values, when a sign or a zero is not as the codes say,
/// or when a value is not a normal number.
fn value_of_size(values: &[u16; GROUP], codes: &[i8; GROUP], negative: bool) -> Option<[u16; 9]> {
    let turn = if negative { 0x8000 } else { 0 };
    let mut value_of_size = [0; 9];
    for (value, code) in values.iter().zip(codes) {
        value_of_size[usize::from(code.unsigned_abs().min(8))] = value & 0x7FFF;
    }
    let mut wrong = value_of_size[0];
    for (value, code) in values.iter().zip(codes) {
        let size = value & 0x7FFF;
        let sign = (value ^ (*code as u16) ^ turn) & 0x8000;
        // A zero's sign is no matter of its code.
        wrong |= if size == 0 { u16::from(*code != 0) } else { sign };
        wrong |= size ^ value_of_size[usize::from(code.unsigned_abs().min(8))];
    }
    let is_normal = |size: &u16| *size == 0 || (0x0080..0x7F80).contains(size);
    (wrong == 0 && value_of_size.iter().all(is_normal)).then_some(value_of_size)
}
