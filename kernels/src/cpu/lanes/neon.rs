//! NEON, which every 64-bit Arm processor has: lanes 0..4, 4..8, 8..12 and 12..16.

use super::{LANES, Lanes, RowWords, TileGroup, four_bytes};
use crate::cpu::activations::{Block, EVEN_HIGH, EVEN_LOW};
use half::{bf16, f16};
use std::arch::aarch64::*;
use w4pack_format::group::WORDS;

impl Lanes for [float32x4_t; 4] {
    const TILE_TOKENS: usize = 2;
    const LEAST_TILED: usize = 5;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        // SAFETY: the caller guarantees NEON.
        unsafe { [vdupq_n_f32(value); 4] }
    }

    #[inline(always)]
    unsafe fn load(values: &[f32; LANES]) -> Self {
        // SAFETY: the caller guarantees NEON; 16 values are read.
        unsafe {
            let first = values.as_ptr();
            [
                vld1q_f32(first),
                vld1q_f32(first.add(4)),
                vld1q_f32(first.add(8)),
                vld1q_f32(first.add(12)),
            ]
        }
    }

    #[inline(always)]
    unsafe fn load_f16(values: &[f16; LANES]) -> Self {
        let mut wide = [0.0; LANES];
        for lane in 0..LANES {
            wide[lane] = super::portable::f16_to_f32(values[lane]);
        }
        // SAFETY: the caller guarantees NEON.
        unsafe { Self::load(&wide) }
    }

    #[inline(always)]
    unsafe fn load_bf16(values: &[bf16; LANES]) -> Self {
        let mut wide = [0.0; LANES];
        for lane in 0..LANES {
            wide[lane] = f32::from_bits(u32::from(values[lane].to_bits()) << 16);
        }
        // SAFETY: the caller guarantees NEON.
        unsafe { Self::load(&wide) }
    }

    #[inline(always)]
    unsafe fn store(self, out: &mut [f32; LANES]) {
        // SAFETY: the caller guarantees NEON; 16 values are written.
        unsafe {
            for part in 0..4 {
                vst1q_f32(out.as_mut_ptr().add(4 * part), self[part]);
            }
        }
    }

    #[inline(always)]
    unsafe fn add(mut self, other: Self) -> Self {
        for part in 0..4 {
            // SAFETY: the caller guarantees NEON.
            self[part] = unsafe { vaddq_f32(self[part], other[part]) };
        }
        self
    }

    #[inline(always)]
    unsafe fn multiply(mut self, other: Self) -> Self {
        for part in 0..4 {
            // SAFETY: the caller guarantees NEON.
            self[part] = unsafe { vmulq_f32(self[part], other[part]) };
        }
        self
    }

    #[inline(always)]
    unsafe fn multiply_add(mut self, factor: Self, sum: Self) -> Self {
        for part in 0..4 {
            // SAFETY: the caller guarantees NEON.
            self[part] = unsafe { vfmaq_f32(sum[part], self[part], factor[part]) };
        }
        self
    }

    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        // SAFETY: the caller guarantees NEON.
        unsafe {
            let [a, b, c, d] = self;
            let four = vaddq_f32(vaddq_f32(a, c), vaddq_f32(b, d));
            let two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
            vget_lane_f32::<0>(two) + vget_lane_f32::<1>(two)
        }
    }

    #[inline(always)]
    unsafe fn prefetch(_address: *const u8) {
        // Stable Rust has no instruction for it here.
    }

    #[inline(always)]
    unsafe fn row_sums<const T: usize, const BYTES: usize>(
        words: &RowWords,
        x: [&Block; T],
    ) -> [Self; T] {
        // SAFETY: the caller guarantees NEON; every load is of 16 bytes that its
        // reference covers.
        unsafe {
            let mask = vdupq_n_u8(15);
            let mut sums = [Self::splat(0.0); T];
            for (four, words) in words.as_chunks::<{ 4 * WORDS }>().0.iter().enumerate() {
                let mut quarters = [[vdupq_n_s32(0); 4]; T];
                for (group, words) in words.as_chunks::<WORDS>().0.iter().enumerate() {
                    let words = vreinterpretq_u8_u32(vld1q_u32(words.as_ptr()));
                    let even = vreinterpretq_s8_u8(vandq_u8(words, mask));
                    let odd = vreinterpretq_s8_u8(vshrq_n_u8::<4>(words));
                    for t in 0..T {
                        let parts = &x[t].bytes[four];
                        let mut sum = vdupq_n_s32(0);
                        sum = dot(sum, even, vld1q_s8(parts[EVEN_HIGH][group].as_ptr()));
                        sum = dot(sum, odd, vld1q_s8(parts[EVEN_HIGH + 1][group].as_ptr()));
                        if BYTES == 2 {
                            sum = vshlq_n_s32::<8>(sum);
                            sum = dot(sum, even, vld1q_s8(parts[EVEN_LOW][group].as_ptr()));
                            sum = dot(sum, odd, vld1q_s8(parts[EVEN_LOW + 1][group].as_ptr()));
                        }
                        quarters[t][group] = sum;
                    }
                }
                for t in 0..T {
                    let [a, b, c, d] = quarters[t];
                    let groups = vpaddq_s32(vpaddq_s32(a, b), vpaddq_s32(c, d));
                    let starts = vld1q_s32(x[t].starts.as_ptr().add(4 * four));
                    sums[t][four] = vcvtq_f32_s32(vaddq_s32(groups, starts));
                }
            }
            sums
        }
    }

    #[inline(always)]
    unsafe fn tile_sums<const T: usize, const BYTES: usize>(
        codes: &TileGroup,
        group: usize,
        x: [&Block; T],
    ) -> [Self; T] {
        // SAFETY: the caller guarantees NEON; `codes` are read by 16 bytes.
        unsafe {
            let mut high = [[vdupq_n_s32(0); 4]; T];
            let mut low = high;
            for t in 0..T {
                low[t] = [vdupq_n_s32(x[t].starts[group]); 4];
            }
            for (k, codes) in codes.iter().enumerate() {
                let codes = codes.as_flattened().as_ptr().cast();
                for part in 0..4 {
                    let codes = vld1q_s8(codes.add(16 * part));
                    for t in 0..T {
                        let parts = &x[t].bytes[group / 4];
                        let bytes = four_bytes(&parts[EVEN_HIGH + k % 2][group % 4], k / 2);
                        let bytes = vreinterpretq_s8_s32(vdupq_n_s32(bytes));
                        if BYTES == 2 {
                            high[t][part] = dot(high[t][part], codes, bytes);
                            let bytes = four_bytes(&parts[EVEN_LOW + k % 2][group % 4], k / 2);
                            let bytes = vreinterpretq_s8_s32(vdupq_n_s32(bytes));
                            low[t][part] = dot(low[t][part], codes, bytes);
                        } else {
                            low[t][part] = dot(low[t][part], codes, bytes);
                        }
                    }
                }
            }
            let mut sums = [Self::splat(0.0); T];
            for t in 0..T {
                for part in 0..4 {
                    let high = vshlq_n_s32::<8>(high[t][part]);
                    sums[t][part] = vcvtq_f32_s32(vaddq_s32(low[t][part], high));
                }
            }
            sums
        }
    }
}

/// Adds the products of four neighbouring bytes to each lane.
///
/// `sdot` does the same in one instruction; Rust 1.95 has no stable name for it.
///
/// # Safety
/// Requires NEON. Products of two pairs must fit 16 bits.
#[inline(always)]
unsafe fn dot(sum: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: the caller guarantees NEON.
    unsafe {
        let low = vmull_s8(vget_low_s8(a), vget_low_s8(b));
        let high = vmull_high_s8(a, b);
        vpadalq_s16(sum, vpaddq_s16(low, high))
    }
}
