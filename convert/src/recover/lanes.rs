//! A whole group at once: 32 lanes from bf16 bits to codes and the interval of the step.
//!
//! The code is plain loops over 32 lanes that the compiler turns into vector instructions;
//! `leaves.rs` compiles it once for each instruction set. Groups whose largest value lies within
//! 2^±100 are judged here, the others by `exactly.rs`.
//!
//! **Four peaks are enough.** Let a peak level m work with levels k (one for each value), and m'
//! with k'. Each value lies within (1 - 1/258, 1 + 1/256) of its level times the step, so the
//! fractions k/m and k'/m' of one value, both near value/largest value, differ by less than
//! 1.57 %. Two different fractions with m' < m ≤ 8 differ by at least 1 in k'·m ≤ 56, or 1.78 %.
//! So k/m = k'/m': all peaks that work describe the same group, and the smallest one is any of them
//! reduced by the common factor of its levels. Every peak from 1 to 4 has a multiple among 5 to 8,
//! which gives the same products and works too. Therefore 7, 8, 6 and 5 are tried, the likeliest
//! first, and the first that works is reduced.
//!
//! **Why f32 is exact.** An end of a value's interval times 840 is 9 bits · 840/k: at most 19 bits
//! (`interval.rs`), and 840/k is a whole number, which a division in f32 gives exactly. Of f32's 24
//! bits the last ones stay free. They hold whether an end is open: an open low end is moved up, an
//! open high end down by one unit in the last place. Then the largest low end and the smallest high
//! end are plain maxima, an open end prevails over a closed one at the same place, and the
//! interval holds a step if and only if low ≤ high. Positive floats order as their bit patterns.

use w4pack_format::group::GROUP;

use super::interval::{End, Interval};

/// What a group turned out to be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Judged {
    /// Nothing but zeros.
    Zero,
    /// On the grid.
    Fits(Fit),
    /// No step reproduces it.
    Misfit,
    /// Its largest magnitude is beyond what is judged here: very large, very small, or no number.
    Unusual,
}

/// Codes of a group on the grid, and the steps that go with them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Fit {
    /// The codes, free of common factors.
    pub codes: [i8; GROUP],
    /// The largest magnitude among them.
    pub peak: u8,
    /// Whether the step is negative.
    pub negative: bool,
    /// The steps' magnitudes.
    pub interval: Interval,
}

/// Bit patterns of 2^-100 and 2^100: inside, products and quotients by small numbers stay normal.
pub(super) const PLAIN: std::ops::RangeInclusive<u16> = (27 << 7)..=(227 << 7);

/// Adding 1.5·2^23 rounds an f32 between 0 and 2^22 to a whole number, half to even, which then
/// stands in the lowest bits.
pub(super) const ROUNDER: f32 = 12_582_912.0;

/// The peaks in the order in which they are tried: the likeliest first, as releases have them.
pub(super) const PEAKS: [i32; 4] = [7, 8, 6, 5];

/// Judges a group.
#[inline(always)]
pub(super) fn judge(bits: &[u16; GROUP]) -> Judged {
    let mut magnitudes = [0; GROUP];
    let mut largest = 0;
    for lane in 0..GROUP {
        magnitudes[lane] = bits[lane] & 0x7fff;
        largest = largest.max(magnitudes[lane]);
    }
    if largest == 0 {
        return Judged::Zero;
    }
    if !PLAIN.contains(&largest) {
        return Judged::Unusual;
    }
    // Zero, which any step gives, stands as the largest value, which is there anyway: so no lane
    // is an exception.
    for magnitude in &mut magnitudes {
        *magnitude |= largest & u16::from(*magnitude == 0).wrapping_neg();
    }
    let one = 1.0 / f32::from_bits(u32::from(largest) << 16);
    // A plain loop: `find_map` became a function of its own, without the leaf's instructions, and
    // two fifths of a whole conversion.
    for peak in PEAKS {
        let fit = match Levels::of(&magnitudes, peak, one * peak as f32) {
            Some(levels) => levels.fit(bits, peak),
            None => None,
        };
        if let Some(fit) = fit {
            return Judged::Fits(fit);
        }
    }
    Judged::Misfit
}

/// The bf16 bit patterns of a group's bytes. A plain loop becomes one copy; `array::from_fn` became
/// a loop over single bytes and took a third of a whole conversion.
#[inline(always)]
pub(super) fn bits_of(bytes: &[u8; 2 * GROUP]) -> [u16; GROUP] {
    let mut bits = [0; GROUP];
    let (pairs, _) = bytes.as_chunks::<2>();
    for (bits, &pair) in bits.iter_mut().zip(pairs) {
        *bits = u16::from_le_bytes(pair);
    }
    bits
}

/// The level of each value under one peak, and what they leave of the step.
struct Levels {
    levels: [i8; GROUP],
    /// Bit patterns of 840 times the ends, moved by one where they are open.
    low: i32,
    high: i32,
}

impl Levels {
    /// Magnitude times `factor` (peak/largest value), rounded; `None` if no step is left.
    ///
    /// Rounding in f32 is safe: where levels work, the quotient is within 0.07 of a whole number.
    /// Levels that are wrong in other places leave no step, as the right ones would not. No step
    /// gives a value of level 0: its ends are infinite, and the low one lies above all high ones.
    #[inline(always)]
    fn of(magnitudes: &[u16; GROUP], peak: i32, factor: f32) -> Option<Levels> {
        let mut levels = [0; GROUP];
        let (mut low, mut high) = (0, i32::MAX);
        for lane in 0..GROUP {
            let magnitude = i32::from(magnitudes[lane]);
            let pattern = magnitude << 16;
            let rounded = f32::from_bits(pattern as u32) * factor + ROUNDER;
            let level = rounded.to_bits() as i32 - ROUNDER.to_bits() as i32;
            let units = 840.0 / (rounded - ROUNDER);
            // Half-way to the neighbours on either side.
            let below = f32::from_bits((pattern - 0x8000) as u32) * units;
            let above = f32::from_bits((pattern + 0x8000) as u32) * units;
            let open = magnitude & 1;
            low = low.max(below.to_bits() as i32 + open);
            high = high.min(above.to_bits() as i32 - open);
            levels[lane] = level as i8;
        }
        debug_assert!(levels.iter().all(|&level| i32::from(level) <= peak));
        (low <= high).then_some(Levels { levels, low, high })
    }

    /// The codes, reduced; `None` if the highest level of 8 occurs with both signs.
    #[inline(always)]
    fn fit(self, bits: &[u16; GROUP], peak: i32) -> Option<Fit> {
        let mut codes = [0; GROUP];
        let mut ones = 0;
        for lane in 0..GROUP {
            let sign = (bits[lane] as i16 >> 15) as i8;
            let nonzero = i8::from(bits[lane] & 0x7fff != 0).wrapping_neg();
            codes[lane] = ((self.levels[lane] ^ sign) - sign) & nonzero;
            ones |= u8::from(codes[lane] == 1) | u8::from(codes[lane] == -1);
        }
        // Level 1 has no factor with any other; nearly every group has it.
        let factor = if ones != 0 { 1 } else { common_factor(&codes, peak as i8) };
        if factor > 1 {
            // Not `map`, here and below: it does not become part of this function.
            for code in &mut codes {
                *code /= factor;
            }
        }
        let peak = peak as i8 / factor;
        let mut negative = false;
        if peak == 8 {
            let (mut highest, mut lowest) = (0, 0);
            for code in codes {
                highest = highest.max(code);
                lowest = lowest.min(code);
            }
            if highest == 8 && lowest == -8 {
                return None;
            }
            negative = highest == 8;
            if negative {
                for code in &mut codes {
                    *code = -*code;
                }
            }
        }
        let interval = interval(self.low, self.high, factor);
        Some(Fit { codes, peak: peak as u8, negative, interval })
    }
}

/// The interval between two ends as the lanes have them, of a step `factor` times as large under
/// levels so much smaller.
#[inline(always)]
pub(super) fn interval(low: i32, high: i32, factor: i8) -> Interval {
    let factor = f64::from(factor);
    let at = |pattern: i32| f64::from(f32::from_bits(pattern as u32)) * factor;
    Interval {
        low: End { at: at(low & !1), open: low & 1 == 1 },
        high: End { at: at((high + 1) & !1), open: high & 1 == 1 },
    }
}

/// The greatest common factor of codes whose largest magnitude is `peak`.
#[cold]
fn common_factor(codes: &[i8; GROUP], peak: i8) -> i8 {
    let divides = |factor: &i8| codes.iter().all(|code| code % factor == 0);
    (1..=peak).rev().find(divides).unwrap_or(1)
}
