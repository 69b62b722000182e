//! No instruction set in particular. The compiler makes of it what the target's baseline has.

use super::{LANES, Numbers};
use half::{bf16, f16};

impl Numbers for [f32; LANES] {
    #[inline(always)]
    unsafe fn prefetch(_address: *const u8) {}

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        [value; LANES]
    }

    #[inline(always)]
    unsafe fn load(values: &[f32; LANES]) -> Self {
        *values
    }

    #[inline(always)]
    unsafe fn load_f16(values: &[f16; LANES]) -> Self {
        std::array::from_fn(|lane| f16_to_f32(values[lane]))
    }

    #[inline(always)]
    unsafe fn load_bf16(values: &[bf16; LANES]) -> Self {
        std::array::from_fn(|lane| f32::from_bits(u32::from(values[lane].to_bits()) << 16))
    }

    #[inline(always)]
    unsafe fn store(self, out: &mut [f32; LANES]) {
        *out = self;
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        std::array::from_fn(|lane| self[lane] + other[lane])
    }

    #[inline(always)]
    unsafe fn subtract(self, other: Self) -> Self {
        std::array::from_fn(|lane| self[lane] - other[lane])
    }

    #[inline(always)]
    unsafe fn multiply(self, other: Self) -> Self {
        std::array::from_fn(|lane| self[lane] * other[lane])
    }

    #[inline(always)]
    unsafe fn divide(self, other: Self) -> Self {
        std::array::from_fn(|lane| self[lane] / other[lane])
    }

    #[inline(always)]
    unsafe fn multiply_add(self, factor: Self, sum: Self) -> Self {
        // A fused operation would be a library call here, a hundred times slower.
        std::array::from_fn(|lane| self[lane] * factor[lane] + sum[lane])
    }

    #[inline(always)]
    unsafe fn larger(self, other: Self) -> Self {
        std::array::from_fn(|lane| if self[lane] > other[lane] { self[lane] } else { other[lane] })
    }

    #[inline(always)]
    unsafe fn power_of_two(self) -> Self {
        std::array::from_fn(|lane| {
            f32::from_bits((self[lane].to_bits() << 23).wrapping_add(127 << 23))
        })
    }

    #[inline(always)]
    unsafe fn sum(mut self) -> f32 {
        for half in [8, 4, 2, 1] {
            for lane in 0..half {
                self[lane] += self[half + lane];
            }
        }
        self[0]
    }
}

/// Exactly, and without a branch: the exponent of f16 is moved into its place in f32 by one
/// multiplication, which makes normal numbers of the subnormal ones.
#[inline(always)]
fn f16_to_f32(value: f16) -> f32 {
    let bits = u32::from(value.to_bits());
    let magnitude = f32::from_bits((bits & 0x7fff) << 13) * f32::from_bits(0x7780_0000);
    // Infinity and NaN keep the highest exponent.
    let special = if bits & 0x7c00 == 0x7c00 { 0x7f80_0000 } else { 0 };
    f32::from_bits((bits & 0x8000) << 16 | magnitude.to_bits() | special)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_f16_number_is_converted_exactly() {
        for bits in 0..=u16::MAX {
            let (found, expected) =
                (f16_to_f32(f16::from_bits(bits)), f16::from_bits(bits).to_f32());
            assert!(found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan());
        }
    }
}
