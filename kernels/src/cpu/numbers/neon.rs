//! NEON, which every 64-bit Arm processor has: lanes 0..4, 4..8, 8..12 and 12..16.

use super::{LANES, Numbers};
use half::{bf16, f16};
use std::arch::aarch64::*;
use std::arch::asm;

/// Four registers. `SDOT` says how bytes are multiplied, see `products/neon.rs`: by the instruction
/// of that name or without it.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Neon<const SDOT: bool>(pub [float32x4_t; 4]);

impl<const SDOT: bool> Numbers for Neon<SDOT> {
    #[inline(always)]
    unsafe fn prefetch(address: *const u8) {
        // Rust 1.95 has no stable name for it.
        // SAFETY: a prefetch of any address is allowed.
        unsafe { asm!("prfm pldl2strm, [{}]", in(reg) address, options(readonly, nostack)) }
    }

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        // SAFETY: the caller guarantees NEON.
        unsafe { Self([vdupq_n_f32(value); 4]) }
    }

    #[inline(always)]
    unsafe fn load(values: &[f32; LANES]) -> Self {
        let first = values.as_ptr();
        // SAFETY: the caller guarantees NEON; 16 values are read.
        unsafe {
            Self([
                vld1q_f32(first),
                vld1q_f32(first.add(4)),
                vld1q_f32(first.add(8)),
                vld1q_f32(first.add(12)),
            ])
        }
    }

    #[inline(always)]
    unsafe fn load_f16(values: &[f16; LANES]) -> Self {
        let first: *const u16 = values.as_ptr().cast();
        // SAFETY: the caller guarantees NEON; 16 values of 16 bits are read.
        unsafe {
            let mut out = Self::splat(0.0);
            for part in 0..4 {
                out.0[part] = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(first.add(4 * part))));
            }
            out
        }
    }

    #[inline(always)]
    unsafe fn load_bf16(values: &[bf16; LANES]) -> Self {
        let first: *const u16 = values.as_ptr().cast();
        // SAFETY: the caller guarantees NEON; 16 values of 16 bits are read.
        unsafe {
            let mut out = Self::splat(0.0);
            for part in 0..4 {
                let bits = vshll_n_u16::<16>(vld1_u16(first.add(4 * part)));
                out.0[part] = vreinterpretq_f32_u32(bits);
            }
            out
        }
    }

    #[inline(always)]
    unsafe fn store(self, out: &mut [f32; LANES]) {
        for part in 0..4 {
            // SAFETY: the caller guarantees NEON; 16 values are written in all.
            unsafe { vst1q_f32(out.as_mut_ptr().add(4 * part), self.0[part]) };
        }
    }

    #[inline(always)]
    unsafe fn add(mut self, other: Self) -> Self {
        for part in 0..4 {
            // SAFETY: the caller guarantees NEON.
            self.0[part] = unsafe { vaddq_f32(self.0[part], other.0[part]) };
        }
        self
    }

    #[inline(always)]
    unsafe fn subtract(mut self, other: Self) -> Self {
        for part in 0..4 {
            // SAFETY: the caller guarantees NEON.
            self.0[part] = unsafe { vsubq_f32(self.0[part], other.0[part]) };
        }
        self
    }

    #[inline(always)]
    unsafe fn multiply(mut self, other: Self) -> Self {
        for part in 0..4 {
            // SAFETY: the caller guarantees NEON.
            self.0[part] = unsafe { vmulq_f32(self.0[part], other.0[part]) };
        }
        self
    }

    #[inline(always)]
    unsafe fn divide(mut self, other: Self) -> Self {
        for part in 0..4 {
            // SAFETY: the caller guarantees NEON.
            self.0[part] = unsafe { vdivq_f32(self.0[part], other.0[part]) };
        }
        self
    }

    #[inline(always)]
    unsafe fn multiply_add(mut self, factor: Self, sum: Self) -> Self {
        for part in 0..4 {
            // SAFETY: the caller guarantees NEON.
            self.0[part] = unsafe { vfmaq_f32(sum.0[part], self.0[part], factor.0[part]) };
        }
        self
    }

    #[inline(always)]
    unsafe fn larger(mut self, other: Self) -> Self {
        for part in 0..4 {
            let (own, other) = (self.0[part], other.0[part]);
            // The instruction for the larger one would keep what is no number.
            // SAFETY: the caller guarantees NEON.
            self.0[part] = unsafe { vbslq_f32(vcgtq_f32(own, other), own, other) };
        }
        self
    }

    #[inline(always)]
    unsafe fn power_of_two(mut self) -> Self {
        for part in 0..4 {
            // SAFETY: the caller guarantees NEON.
            self.0[part] = unsafe {
                let exponent = vshlq_n_s32::<23>(vreinterpretq_s32_f32(self.0[part]));
                vreinterpretq_f32_s32(vaddq_s32(exponent, vdupq_n_s32(127 << 23)))
            };
        }
        self
    }

    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        let [a, b, c, d] = self.0;
        // SAFETY: the caller guarantees NEON.
        unsafe {
            let four = vaddq_f32(vaddq_f32(a, c), vaddq_f32(b, d));
            let two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
            vget_lane_f32::<0>(two) + vget_lane_f32::<1>(two)
        }
    }
}
