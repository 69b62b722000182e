//! The positive finite numbers of a scale dtype, in order.

use w4pack_format::scale::ScaleDtype;

use super::interval::UNITS;

/// The positive finite numbers of a dtype by ordinal, which is their bit pattern: 1 is the smallest
/// subnormal, and the values grow with the ordinal. Ordinal 0 (zero) is not among them.
#[derive(Clone, Copy)]
pub(super) struct Numbers {
    dtype: ScaleDtype,
    last: u32,
}

/// f16's smallest subnormal, 2^-24.
const F16_UNIT: f32 = 1.0 / (1 << 24) as f32;

/// Ordinal of f16's smallest normal number, 2^-14.
const F16_NORMAL: u32 = 1 << 10;

impl Numbers {
    #[inline(always)]
    pub(super) fn of(dtype: ScaleDtype) -> Self {
        let last = match dtype {
            ScaleDtype::F16 => 0x7bff,
            ScaleDtype::BF16 => 0x7f7f,
            ScaleDtype::F32 => 0x7f7f_ffff,
        };
        Numbers { dtype, last }
    }

    pub(super) fn contains(self, ordinal: u32) -> bool {
        (1..=self.last).contains(&ordinal)
    }

    /// The number with this ordinal, exact in f32.
    pub(super) fn value(self, ordinal: u32) -> f32 {
        match self.dtype {
            // f32's exponents count from 112 further down and its fractions are 13 bits longer.
            ScaleDtype::F16 if ordinal >= F16_NORMAL => {
                f32::from_bits((ordinal << 13) + (112 << 23))
            }
            ScaleDtype::F16 => ordinal as f32 * F16_UNIT,
            ScaleDtype::BF16 => f32::from_bits(ordinal << 16),
            ScaleDtype::F32 => f32::from_bits(ordinal),
        }
    }

    /// The number nearest to `middle`/840, found by rounding an estimate; `None` where the estimate
    /// leaves any doubt (near a tie, at a power of two, among subnormals, beyond the last number).
    #[inline(always)]
    pub(super) fn clearly_nearest(self, middle: f64) -> Option<f32> {
        // Bits of f32 that the dtype lacks, and its normal numbers between powers of two.
        let (missing, smallest, beyond) = match self.dtype {
            ScaleDtype::F16 => (13, F16_UNIT * F16_NORMAL as f32, 32_768.0),
            ScaleDtype::BF16 => (16, f32::MIN_POSITIVE, f32::MAX / 2.0),
            ScaleDtype::F32 => (0, f32::MIN_POSITIVE, f32::MAX / 2.0),
        };
        let estimate = (middle * (1.0 / UNITS)) as f32;
        if !(smallest..beyond).contains(&estimate) {
            return None;
        }
        let unit = 1_u32 << missing;
        let pattern = (estimate.to_bits() + unit / 2) & !(unit - 1);
        if pattern & 0x007f_ffff == 0 {
            return None;
        }
        let value = f32::from_bits(pattern);
        // Not at a power of two the neighbours are equally far away. Two numbers of at most 34 bits
        // within 2^-8 of each other, and a spacing: exact.
        let spacing = f32::from_bits(pattern + unit) - value;
        let off = UNITS * f64::from(value) - middle;
        (off.abs() < UNITS / 2.0 * f64::from(spacing)).then_some(value)
    }

    /// The ordinal of the largest number for which `at_most` holds, 0 if it holds for none. `near`
    /// is where to look first; `at_most` decides, and must hold for all numbers up to some point.
    pub(super) fn floor(self, near: f32, at_most: impl Fn(f32) -> bool) -> u32 {
        let guess = match self.dtype {
            ScaleDtype::F16 if near >= F16_UNIT * F16_NORMAL as f32 => {
                (near.to_bits() >> 13) - (112 << 10)
            }
            ScaleDtype::F16 => (near / F16_UNIT) as u32,
            ScaleDtype::BF16 => near.to_bits() >> 16,
            ScaleDtype::F32 => near.to_bits(),
        };
        let mut ordinal = guess.min(self.last);
        while ordinal > 0 && !at_most(self.value(ordinal)) {
            ordinal -= 1;
        }
        while ordinal < self.last && at_most(self.value(ordinal + 1)) {
            ordinal += 1;
        }
        ordinal
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinals_are_the_bit_patterns() {
        for dtype in ScaleDtype::ALL {
            let numbers = Numbers::of(dtype);
            let step = (numbers.last / 40_000).max(1) as usize;
            for ordinal in (1..=numbers.last).step_by(step) {
                let value = numbers.value(ordinal);
                let bytes = ordinal.to_le_bytes();
                assert_eq!(dtype.read(&bytes), value, "{dtype} {ordinal:#x}");
                assert_eq!(numbers.floor(value, |other| other <= value), ordinal);
                assert_eq!(numbers.floor(value.next_up(), |other| other <= value), ordinal);
                assert_eq!(numbers.floor(value, |other| other < value), ordinal - 1);
            }
            assert!(!numbers.contains(0) && !numbers.contains(numbers.last + 1));
        }
    }
}
