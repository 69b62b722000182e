//! AVX2, FMA and F16C: lanes 0..8 and 8..16.

use super::{LANES, Lanes, RowWords, TileGroup, four_bytes};
use crate::cpu::activations::{Block, EVEN_HIGH, EVEN_LOW, Parts};
use half::{bf16, f16};
use std::arch::x86_64::*;

impl Lanes for [__m256; 2] {
    const TILE_TOKENS: usize = 2;
    const LEAST_TILED: usize = 5;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        // SAFETY: the caller guarantees AVX2.
        unsafe { [_mm256_set1_ps(value); 2] }
    }

    #[inline(always)]
    unsafe fn load(values: &[f32; LANES]) -> Self {
        // SAFETY: the caller guarantees AVX2; 8 + 8 values are read, with no alignment asked.
        unsafe {
            let first = values.as_ptr();
            [_mm256_loadu_ps(first), _mm256_loadu_ps(first.add(8))]
        }
    }

    #[inline(always)]
    unsafe fn load_f16(values: &[f16; LANES]) -> Self {
        // SAFETY: the caller guarantees F16C; 16 + 16 bytes are read, unaligned.
        unsafe {
            let first: *const __m128i = values.as_ptr().cast();
            [
                _mm256_cvtph_ps(_mm_loadu_si128(first)),
                _mm256_cvtph_ps(_mm_loadu_si128(first.add(1))),
            ]
        }
    }

    #[inline(always)]
    unsafe fn load_bf16(values: &[bf16; LANES]) -> Self {
        // SAFETY: the caller guarantees AVX2; 16 + 16 bytes are read, unaligned.
        unsafe {
            let first: *const __m128i = values.as_ptr().cast();
            let low = _mm256_cvtepu16_epi32(_mm_loadu_si128(first));
            let high = _mm256_cvtepu16_epi32(_mm_loadu_si128(first.add(1)));
            [
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(low)),
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(high)),
            ]
        }
    }

    #[inline(always)]
    unsafe fn store(self, out: &mut [f32; LANES]) {
        // SAFETY: the caller guarantees AVX2; 8 + 8 values are written, unaligned.
        unsafe {
            let first = out.as_mut_ptr();
            _mm256_storeu_ps(first, self[0]);
            _mm256_storeu_ps(first.add(8), self[1]);
        }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: the caller guarantees AVX2.
        unsafe { [_mm256_add_ps(self[0], other[0]), _mm256_add_ps(self[1], other[1])] }
    }

    #[inline(always)]
    unsafe fn multiply(self, other: Self) -> Self {
        // SAFETY: the caller guarantees AVX2.
        unsafe { [_mm256_mul_ps(self[0], other[0]), _mm256_mul_ps(self[1], other[1])] }
    }

    #[inline(always)]
    unsafe fn multiply_add(self, factor: Self, sum: Self) -> Self {
        // SAFETY: the caller guarantees FMA.
        unsafe {
            [
                _mm256_fmadd_ps(self[0], factor[0], sum[0]),
                _mm256_fmadd_ps(self[1], factor[1], sum[1]),
            ]
        }
    }

    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        // SAFETY: the caller guarantees AVX2.
        unsafe {
            let eight = _mm256_add_ps(self[0], self[1]);
            let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        }
    }

    #[inline(always)]
    unsafe fn prefetch(address: *const u8) {
        // SAFETY: a prefetch of any address is allowed.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(address.cast()) }
    }

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
