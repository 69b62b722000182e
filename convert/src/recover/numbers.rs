//! The positive finite numbers of a scale dtype, in order.

use half::{bf16, f16};
use w4pack_format::scale::ScaleDtype;

/// The positive finite numbers of a dtype by ordinal, which is their bit pattern: 1 is the smallest
/// subnormal, and the values grow with the ordinal. Ordinal 0 (zero) is not among them.
#[derive(Clone, Copy)]
pub(super) struct Numbers {
    dtype: ScaleDtype,
    last: u32,
}

impl Numbers {
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
            ScaleDtype::F16 => f16::from_bits(ordinal as u16).to_f32_const(),
            ScaleDtype::BF16 => f32::from_bits(ordinal << 16),
            ScaleDtype::F32 => f32::from_bits(ordinal),
        }
    }

    /// The ordinal of the largest number for which `at_most` holds, 0 if it holds for none. `near`
    /// is where to look first; `at_most` decides, and must hold for all numbers up to some point.
    pub(super) fn floor(self, near: f64, at_most: impl Fn(f32) -> bool) -> u32 {
        let guess = match self.dtype {
            ScaleDtype::F16 => u32::from(f16::from_f32_const(near as f32).to_bits()),
            ScaleDtype::BF16 => u32::from(bf16::from_f32(near as f32).to_bits()),
            ScaleDtype::F32 => (near as f32).to_bits(),
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
