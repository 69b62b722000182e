//! AVX2, FMA and F16C: lanes 0..8 and 8..16.

use super::{Products, RowWords, TileGroup, four_bytes};
use crate::cpu::activations::{Block, EVEN_HIGH, EVEN_LOW, Parts};
use crate::cpu::numbers::Numbers;
use std::arch::x86_64::*;

impl Products for [__m256; 2] {
    const TILE_TOKENS: usize = 2;
    const LEAST_TILED: usize = 5;

    #[inline(always)]
    unsafe fn row_sums<const T: usize, const BYTES: usize>(
        words: &RowWords,
        x: [&Block; T],
    ) -> [Self; T] {
        // SAFETY: the caller guarantees AVX2; every load is of 32 bytes that its reference covers,
        // unaligned.
        unsafe {
            let mask = _mm256_set1_epi8(15);
            let one = _mm256_set1_epi16(1);
            // From the lanes of two hadds to the order of the groups.
            let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
            let mut sums = [Self::splat(0.0); T];
            for (half, words) in words.as_chunks::<32>().0.iter().enumerate() {
                let mut quarters = [[_mm256_setzero_si256(); 4]; T];
                for (two, words) in words.as_chunks::<8>().0.iter().enumerate() {
                    let words = _mm256_loadu_si256(words.as_ptr().cast());
                    let even = _mm256_and_si256(words, mask);
                    let odd = _mm256_and_si256(_mm256_srli_epi16::<4>(words), mask);
                    for t in 0..T {
                        let parts = &x[t].bytes[2 * half + two / 2];
                        let high = products([even, odd], parts, EVEN_HIGH, two % 2);
                        quarters[t][two] = if BYTES == 2 {
                            let low = products([even, odd], parts, EVEN_LOW, two % 2);
                            _mm256_add_epi32(
                                _mm256_madd_epi16(high, _mm256_set1_epi16(256)),
                                _mm256_madd_epi16(low, one),
                            )
                        } else {
                            _mm256_madd_epi16(high, one)
                        };
                    }
                }
                for t in 0..T {
                    let [a, b, c, d] = quarters[t];
                    let groups =
                        _mm256_hadd_epi32(_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d));
                    let groups = _mm256_permutevar8x32_epi32(groups, order);
                    let starts = x[t].starts.as_ptr().add(8 * half);
                    let groups = _mm256_add_epi32(groups, _mm256_loadu_si256(starts.cast()));
                    sums[t][half] = _mm256_cvtepi32_ps(groups);
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
        // SAFETY: the caller guarantees AVX2; `codes` are read by 32 bytes.
        unsafe {
            let mut sums = [Self::splat(0.0); T];
            // Eight pairs of products of at most 3,840 in size, which 16 bits hold.
            let mut high = [[_mm256_setzero_si256(); 2]; T];
            let mut low = high;
            for (k, codes) in codes.iter().enumerate() {
                let first: *const __m256i = codes.as_ptr().cast();
                let codes = [_mm256_loadu_si256(first), _mm256_loadu_si256(first.add(1))];
                for t in 0..T {
                    let parts = &x[t].bytes[group / 4];
                    let bytes = &parts[EVEN_HIGH + k % 2][group % 4];
                    let bytes = _mm256_set1_epi32(four_bytes(bytes, k / 2));
                    for half in 0..2 {
                        let products = _mm256_maddubs_epi16(codes[half], bytes);
                        high[t][half] = _mm256_add_epi16(high[t][half], products);
                    }
                    if BYTES == 2 {
                        let bytes = &parts[EVEN_LOW + k % 2][group % 4];
                        let bytes = _mm256_set1_epi32(four_bytes(bytes, k / 2));
                        for half in 0..2 {
                            let products = _mm256_maddubs_epi16(codes[half], bytes);
                            low[t][half] = _mm256_add_epi16(low[t][half], products);
                        }
                    }
                }
            }
            let one = _mm256_set1_epi16(1);
            for t in 0..T {
                let start = _mm256_set1_epi32(x[t].starts[group]);
                for half in 0..2 {
                    let sum = if BYTES == 2 {
                        _mm256_add_epi32(
                            _mm256_madd_epi16(high[t][half], _mm256_set1_epi16(256)),
                            _mm256_madd_epi16(low[t][half], one),
                        )
                    } else {
                        _mm256_madd_epi16(high[t][half], one)
                    };
                    sums[t][half] = _mm256_cvtepi32_ps(_mm256_add_epi32(sum, start));
                }
            }
            sums
        }
    }
}

/// Sums of a nibble times a byte, two even ones and two odd ones a lane of 16 bits (at most 7,680),
/// of the first or second two groups of four, with the bytes at `even_part` and behind it.
///
/// # Safety
/// Requires AVX2.
#[inline(always)]
unsafe fn products(codes: [__m256i; 2], parts: &Parts, even_part: usize, two: usize) -> __m256i {
    // SAFETY: the caller guarantees the instructions; a group has 16 bytes.
    unsafe {
        let even = _mm256_loadu_si256(parts[even_part][2 * two..].as_ptr().cast());
        let odd = _mm256_loadu_si256(parts[even_part + 1][2 * two..].as_ptr().cast());
        _mm256_add_epi16(_mm256_maddubs_epi16(codes[0], even), _mm256_maddubs_epi16(codes[1], odd))
    }
}
