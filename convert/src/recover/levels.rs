//! Which level (a code's magnitude, 0 to 8) each value of a group has, for one peak level.
//!
//! Two facts keep this small and fast:
//!
//! - **Only magnitudes matter.** With a positive step codes have the signs of their values, with a
//!   negative step the opposite ones, and the levels are the same. Codes reach from -8 to 7, so the
//!   sign of the step is free up to peak level 7 (and positive is tried first); at level 8 it is
//!   decided by the values there: all negative, positive step; all positive, negative step; both
//!   signs, no step at all. Trying the peaks 1 to 8 once therefore equals trying all of them with
//!   a positive step first and then all with a negative one.
//! - **A level has one value.** One product has one rounding, so two values of different magnitude
//!   cannot share a level. A group is described by at most eight (level, magnitude) pairs.

use w4pack_format::group::GROUP;

use super::interval::Interval;

/// The values of a group by level, and the steps that reproduce all of them.
#[derive(Clone, Copy, Debug)]
pub struct Levels {
    /// The bf16 magnitude at each level; 0 where the level does not occur. Index 0 is unused.
    pub magnitudes: [u16; 9],
    /// Whether the step is negative.
    pub negative: bool,
    /// The exact interval of the step's magnitude.
    pub interval: Interval,
}

/// A group as magnitudes and signs, ready for trying peak levels.
pub(super) struct Candidate<'a> {
    bits: &'a [u16; GROUP],
    magnitudes: [u16; GROUP],
    peak_magnitude: u16,
    values: [f32; GROUP],
    plain: bool,
}

/// Bit patterns of 2^-100 and 2^100: inside, products and quotients by small numbers stay normal.
const PLAIN: std::ops::RangeInclusive<u16> = (27 << 7)..=(227 << 7);

/// Adding and subtracting 1.5·2^23 rounds an f32 between 0 and 2^22 to a whole number, half to even.
const ROUNDER: f32 = 12_582_912.0;

/// Working candidates have |w·m/peak - k| ≤ k·(2·2^-8)/(1 - 2^-8) = 0.007844·k, since bf16 keeps
/// each of w and the peak within 2^-8 of k·s and m·s. f32 adds at most 3·2^-24 relative.
const TOLERANCE: f32 = 0.0079;

impl<'a> Candidate<'a> {
    pub(super) fn new(bits: &'a [u16; GROUP]) -> Self {
        let magnitudes = bits.map(|bits| bits & 0x7fff);
        let peak_magnitude = magnitudes.iter().fold(0, |peak, &magnitude| peak.max(magnitude));
        let values = magnitudes.map(|magnitude| f32::from_bits(u32::from(magnitude) << 16));
        let plain = PLAIN.contains(&peak_magnitude);
        Candidate { bits, magnitudes, peak_magnitude, values, plain }
    }

    /// The largest magnitude of the group as bf16 bits.
    pub(super) fn peak_magnitude(&self) -> u16 {
        self.peak_magnitude
    }

    /// The level of each value if the peak is at level `peak` (1 to 8): value·peak/largest value,
    /// rounded half to even. `None`: certainly no step reproduces the group with this peak.
    pub(super) fn levels_of(&self, peak: usize) -> Option<[u8; GROUP]> {
        if self.plain {
            self.levels_by_estimate(peak)
        } else {
            Some(
                self.magnitudes
                    .map(|magnitude| level_exactly(magnitude, self.peak_magnitude, peak)),
            )
        }
    }

    /// The estimate in f32. It turns nothing down that works, and where the tolerance is kept
    /// the distance to a whole number is below 0.07, so that the rounding is the exact one.
    /// Values too small to matter here (subnormal ones) round to level 0, as exactly they do.
    fn levels_by_estimate(&self, peak: usize) -> Option<[u8; GROUP]> {
        let factor = peak as f32 / self.values_peak();
        let mut levels = [0_u8; GROUP];
        let (values, _) = self.values.as_chunks::<8>();
        let (out, _) = levels.as_chunks_mut::<8>();
        for (values, out) in values.iter().zip(out) {
            let mut apart = 0_u32;
            for i in 0..8 {
                let ratio = values[i] * factor;
                let level = (ratio + ROUNDER) - ROUNDER;
                apart |= u32::from((ratio - level).abs() > level * TOLERANCE);
                out[i] = (ratio + ROUNDER).to_bits() as u8;
            }
            if apart != 0 {
                return None;
            }
        }
        Some(levels)
    }

    fn values_peak(&self) -> f32 {
        f32::from_bits(u32::from(self.peak_magnitude) << 16)
    }

    /// Settles exactly whether some step reproduces all 32 values with these levels, of which
    /// `peak` is the largest.
    pub(super) fn settle(&self, levels: &[u8; GROUP], peak: usize) -> Option<Levels> {
        // The last value at a level stands for it; the others must equal it. Two plain loops:
        // counting the values by level here took half of the time of the whole recovery.
        let mut magnitudes = [0_u16; 16];
        for (&level, &magnitude) in levels.iter().zip(&self.magnitudes) {
            magnitudes[usize::from(level & 15)] = magnitude;
        }
        let mut apart = magnitudes[0];
        for (&level, &magnitude) in levels.iter().zip(&self.magnitudes) {
            apart |= magnitudes[usize::from(level & 15)] ^ magnitude;
        }
        if apart != 0 {
            return None;
        }
        let negative = peak == 8 && self.sign_of_level_eight(levels)?;
        let mut interval = Interval::of_level(peak, magnitudes[peak]);
        for level in 1..peak {
            if magnitudes[level] != 0 {
                interval.intersect(Interval::of_level(level, magnitudes[level]));
            }
        }
        let magnitudes = std::array::from_fn(|level| magnitudes[level]);
        (!interval.is_empty()).then_some(Levels { magnitudes, negative, interval })
    }

    /// Whether the step must be negative because the values at level 8 are positive (+8 is no
    /// code). `None`: both signs occur there.
    fn sign_of_level_eight(&self, levels: &[u8; GROUP]) -> Option<bool> {
        let (mut positive, mut negative) = (false, false);
        for (&level, &bits) in levels.iter().zip(self.bits) {
            positive |= level == 8 && bits >> 15 == 0;
            negative |= level == 8 && bits >> 15 == 1;
        }
        (positive != negative).then_some(positive)
    }
}

/// magnitude·peak/peak_magnitude, rounded half to even, in integers.
pub(super) fn level_exactly(magnitude: u16, peak_magnitude: u16, peak: usize) -> u8 {
    let (significand, exponent) = split(magnitude);
    let (peak_significand, peak_exponent) = split(peak_magnitude);
    // The exponents of bf16 are at most 253 apart; beyond 12 the ratio is below 8·2·2^-12 < 1/2
    // (a significand is below 2^8, and above 2^7 - 1 unless both are subnormal: no gap).
    let gap = peak_exponent - exponent;
    if gap > 12 {
        return 0;
    }
    // 8 + 4 bits above, 8 + 12 + 1 bits below: far from overflow.
    let numerator = u64::from(significand) * peak as u64;
    let denominator = u64::from(peak_significand) << gap;
    let (whole, rest) = (numerator / denominator, numerator % denominator);
    let up = match (2 * rest).cmp(&denominator) {
        std::cmp::Ordering::Less => 0,
        std::cmp::Ordering::Equal => whole & 1,
        std::cmp::Ordering::Greater => 1,
    };
    // The magnitude is at most the peak's, so the level is at most `peak`.
    (whole + up) as u8
}

/// A bf16 magnitude as significand (0 to 255) and biased exponent (subnormals share that of 1).
fn split(magnitude: u16) -> (u16, u32) {
    let exponent = u32::from(magnitude >> 7);
    let fraction = magnitude & 0x7f;
    if exponent == 0 { (fraction, 1) } else { (fraction | 0x80, exponent) }
}
