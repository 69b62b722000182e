//! NEON, which every 64-bit Arm processor has, and the byte products of `sdot`, which most have since
//! 2018.

use super::{Products, RowWords, TileGroup, four_bytes};
use crate::cpu::activations::{Block, EVEN_HIGH, EVEN_LOW};
use crate::cpu::numbers::{Neon, Numbers};
use std::arch::aarch64::*;
use std::arch::asm;
use w4pack_format::group::WORDS;

impl<const SDOT: bool> Products for Neon<SDOT> {
    const TILE_TOKENS: usize = 2;
    const LEAST_TILED: usize = 5;

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
                        sum = dot::<SDOT>(sum, even, vld1q_s8(parts[EVEN_HIGH][group].as_ptr()));
                        sum = dot::<SDOT>(sum, odd, vld1q_s8(parts[EVEN_HIGH + 1][group].as_ptr()));
                        if BYTES == 2 {
                            sum = vshlq_n_s32::<8>(sum);
                            sum = dot::<SDOT>(sum, even, vld1q_s8(parts[EVEN_LOW][group].as_ptr()));
                            sum = dot::<SDOT>(
                                sum,
                                odd,
                                vld1q_s8(parts[EVEN_LOW + 1][group].as_ptr()),
                            );
                        }
                        quarters[t][group] = sum;
                    }
                }
                for t in 0..T {
                    let [a, b, c, d] = quarters[t];
                    let groups = vpaddq_s32(vpaddq_s32(a, b), vpaddq_s32(c, d));
                    let starts = vld1q_s32(x[t].starts.as_ptr().add(4 * four));
                    sums[t].0[four] = vcvtq_f32_s32(vaddq_s32(groups, starts));
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
                let first: *const i8 = codes.as_flattened().as_ptr().cast();
                for part in 0..4 {
                    let codes = vld1q_s8(first.add(16 * part));
                    for t in 0..T {
                        let parts = &x[t].bytes[group / 4];
                        let bytes = four_bytes(&parts[EVEN_HIGH + k % 2][group % 4], k / 2);
                        let bytes = vreinterpretq_s8_s32(vdupq_n_s32(bytes));
                        if BYTES == 2 {
                            high[t][part] = dot::<SDOT>(high[t][part], codes, bytes);
                            let bytes = four_bytes(&parts[EVEN_LOW + k % 2][group % 4], k / 2);
                            let bytes = vreinterpretq_s8_s32(vdupq_n_s32(bytes));
                            low[t][part] = dot::<SDOT>(low[t][part], codes, bytes);
                        } else {
                            low[t][part] = dot::<SDOT>(low[t][part], codes, bytes);
                        }
                    }
                }
            }
            let mut sums = [Self::splat(0.0); T];
            for t in 0..T {
                for part in 0..4 {
                    let high = vshlq_n_s32::<8>(high[t][part]);
                    sums[t].0[part] = vcvtq_f32_s32(vaddq_s32(low[t][part], high));
                }
            }
            sums
        }
    }
}

/// Adds the products of four neighbouring bytes to each lane.
///
/// # Safety
/// Requires NEON, and where `SDOT` the extension of that name. Sums of two products must fit 16 bits.
#[inline(always)]
unsafe fn dot<const SDOT: bool>(mut sum: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: the caller guarantees the instructions.
    unsafe {
        if SDOT {
            // Rust 1.95 has no stable name for it.
            asm!(
                "sdot {sum:v}.4s, {a:v}.16b, {b:v}.16b",
                sum = inout(vreg) sum, a = in(vreg) a, b = in(vreg) b,
                options(pure, nomem, nostack, preserves_flags)
            );
            return sum;
        }
        let low = vmull_s8(vget_low_s8(a), vget_low_s8(b));
        let high = vmull_high_s8(a, b);
        vpadalq_s16(sum, vpaddq_s16(low, high))
    }
}
