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
//!    n·k_i / m is an integer for every i; if the sizes have no common factor, `m` divides `n`:
//!    `m` is the smallest level that works. Each multiple c·m up to 8 works as well, with codes c·k_i
//!    and steps s/c, as far as the sign of a code 8 lets it; for m >= 5 there is none.
//! 3. The sign: below level 8 the positive step comes first. At level 8 the side that reaches -8
//!    decides it, and the stored codes, which hold no +8, reach it on one side only.
//!
//! Where any of this does not hold the answer is `None`, and nothing is said about the group.

use w4pack_format::scale::ScaleDtype;

use super::interval::Interval;
use super::look::{COMMON, Look};
use super::numbers::{Number, Numbers};
use super::ratio::Ratio;
use super::recover::{GROUP, Grid};

/// A group that is as it must be: codes and step are those of the rule, and give all 32 values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settled {
    /// More than one peak level works with a step of this sign.
    pub many_peaks: bool,
    /// No code is -8, so that the turned codes with the turned step work as well.
    pub sign_free: bool,
}

/// The grid of 32 values if the stored codes and the sign of the stored step are visibly those of
/// [`recover`](super::recover::recover).
pub fn confirm(values: &[u16; GROUP], codes: &[i8; GROUP], negative: bool) -> Option<Grid> {
    Look::at(values, codes).confirm(codes, negative)
}

impl Look {
    /// [`confirm`] after the look.
    pub(super) fn confirm(&self, codes: &[i8; GROUP], negative: bool) -> Option<Grid> {
        let largest = self.largest_if_confirmed(negative)?;
        let end = |doubled: i32| Ratio {
            numerator: doubled as u64,
            denominator: COMMON as u64,
            exponent: self.unit,
        };
        let steps = Interval {
            low: end(self.low & !1),
            low_closed: self.low & 1 == 0,
            high: end((self.high + 1) & !1),
            high_closed: self.high & 1 == 0,
        };
        let reaches_up = codes.contains(&(largest as i8));
        let multiples = (1..=8 / largest).map(|factor| factor * largest);
        // A positive step has no code +8.
        let works = |level: &u32| *level == largest || *level < 8 || !reaches_up;
        let peaks = multiples.filter(works).fold(0, |peaks, level| peaks | 1 << (level - 1));
        Some(Grid { codes: *codes, negative, steps, peaks })
    }

    /// The largest size of the codes if these and the step's sign are visibly those of the rule.
    #[inline]
    fn largest_if_confirmed(&self, negative: bool) -> Option<u32> {
        // Where a value is not zero its sign is that of code times step.
        let turn = if negative { u32::MAX } else { 0 };
        let wrong_signs = (self.signs ^ self.negative_codes ^ turn) & !self.zeros;
        let largest = self.sizes.ilog2();
        let sound = !self.strange
            && wrong_signs == 0
            && self.low <= self.high
            && largest >= 1
            && (largest == 8 || !negative)
            && have_no_common_factor(self.sizes);
        sound.then_some(largest)
    }

    /// Whether the codes are confirmed, and the stored step lies inside the exact step interval and
    /// nearer to its middle than any other number of its dtype: then it is the canonical one, and
    /// code times step gives all 32 values. `None` says nothing; so it is at level 4, where the codes
    /// say whether level 8 works too.
    #[inline]
    pub fn settled(&self, step: f32, dtype: ScaleDtype) -> Option<Settled> {
        let largest = self.largest_if_confirmed(step < 0.0).filter(|largest| *largest != 4)?;
        let (many_peaks, sign_free) = (largest < 4, largest < 8);
        self.is_nearest(step, dtype).then_some(Settled { many_peaks, sign_free })
    }

    /// Whether a step lies inside the interval of the look, and nearer to its middle than any other
    /// number of its dtype.
    #[inline]
    fn is_nearest(&self, step: f32, dtype: ScaleDtype) -> bool {
        if !step.is_finite() || step == 0.0 {
            return false;
        }
        let size = Number::of_f32(step);
        // Ends and step as integers in one unit: 840ths of the finer of both last places.
        let shift = size.exponent - self.unit;
        if !(-24..=16).contains(&shift) {
            return false;
        }
        let (of_step, of_ends) = if shift < 0 { (0, -shift) } else { (shift, 0) };
        let place = (COMMON as i64) << of_step;
        let at = i64::from(size.mantissa) * place;
        let low = i64::from(self.low & !1) << of_ends;
        let high = i64::from((self.high + 1) & !1) << of_ends;
        let is_inside = (at > low || at == low && self.low & 1 == 0)
            && (at < high || at == high && self.high & 1 == 0);
        // How far off its middle lies, doubled, against the distance of the next numbers. Below a
        // power of two these lie half as dense.
        let next = place << Numbers::of(dtype).places_to_next(size);
        let previous = if size.mantissa == 1 << 23 { next / 2 } else { next };
        let off = low + high - 2 * at;
        is_inside && -previous < off && off < next
    }
}

/// Whether the sizes that occur (bit `k`: a code of size `k`) have no common factor but 1.
#[inline]
fn have_no_common_factor(sizes: u32) -> bool {
    // Multiples of 2, 3, 5 and 7 among 1..=8.
    const MULTIPLES: [u32; 4] = [0b1_0101_0100, 0b0_0100_1000, 0b0_0010_0000, 0b0_1000_0000];
    let occurring = sizes & 0b1_1111_1110;
    MULTIPLES.iter().all(|multiples| occurring & !multiples != 0)
}
