//! AVX-512 with VNNI: F, BW and the byte products of `vpdpbusd`.

use super::{Products, RowWords, TileGroup, four_bytes};
use crate::cpu::activations::{Block, EVEN_HIGH, EVEN_LOW, Parts};
use crate::cpu::numbers::LANES;
use std::arch::x86_64::*;

impl Products for __m512 {
    const TILE_TOKENS: usize = 8;
    const LEAST_TILED: usize = 5;

    #[inline(always)]
    unsafe fn row_sums<const T: usize, const BYTES: usize>(
        words: &RowWords,
        x: [&Block; T],
    ) -> [Self; T] {
        // SAFETY: the caller guarantees AVX-512 F, BW and VNNI; every load is of 64 bytes that its
        // reference covers, unaligned.
        unsafe {
            let mask = _mm512_set1_epi8(15);
            let mut even = [_mm512_setzero_si512(); 4];
            let mut odd = even;
            for (four, words) in words.as_chunks::<LANES>().0.iter().enumerate() {
                let words = _mm512_loadu_si512(words.as_ptr().cast());
                even[four] = _mm512_and_si512(words, mask);
                odd[four] = _mm512_and_si512(_mm512_srli_epi16::<4>(words), mask);
            }
            let mut sums = [_mm512_setzero_ps(); T];
            for t in 0..T {
                // Lane 4·group + k of each: a quarter of the sum of a group.
                let mut quarters = [_mm512_setzero_si512(); 4];
                for four in 0..4 {
                    let parts = &x[t].bytes[four];
                    let codes = [even[four], odd[four]];
                    let sum = products(_mm512_setzero_si512(), codes, parts, EVEN_HIGH);
                    quarters[four] = match BYTES {
                        2 => products(_mm512_slli_epi32::<8>(sum), codes, parts, EVEN_LOW),
                        _ => sum,
                    };
                }
                // Transposed while they are added, which leaves group 4·k + l in lane 4·l + k.
                let [a, b, c, d] = quarters;
                let ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
                let cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
                let groups =
                    _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
                let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
                let groups = _mm512_permutexvar_epi32(order, groups);
                let starts = _mm512_loadu_si512(x[t].starts.as_ptr().cast());
                sums[t] = _mm512_cvtepi32_ps(_mm512_add_epi32(groups, starts));
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
        // SAFETY: the caller guarantees AVX-512 F, BW and VNNI; `codes` are read by 64 bytes.
        unsafe {
            let mut high = [_mm512_setzero_si512(); T];
            let mut low = high;
            for t in 0..T {
                low[t] = _mm512_set1_epi32(x[t].starts[group]);
            }
            for (k, codes) in codes.iter().enumerate() {
                let codes = _mm512_loadu_si512(codes.as_ptr().cast());
                for t in 0..T {
                    let parts = &x[t].bytes[group / 4];
                    let high_bytes = &parts[EVEN_HIGH + k % 2][group % 4];
                    let high_bytes = _mm512_set1_epi32(four_bytes(high_bytes, k / 2));
                    if BYTES == 2 {
                        let low_bytes = &parts[EVEN_LOW + k % 2][group % 4];
                        let low_bytes = _mm512_set1_epi32(four_bytes(low_bytes, k / 2));
                        high[t] = _mm512_dpbusd_epi32(high[t], codes, high_bytes);
                        low[t] = _mm512_dpbusd_epi32(low[t], codes, low_bytes);
                    } else {
                        low[t] = _mm512_dpbusd_epi32(low[t], codes, high_bytes);
                    }
                }
            }
            let mut sums = [_mm512_setzero_ps(); T];
            for t in 0..T {
                if BYTES == 2 {
                    low[t] = _mm512_add_epi32(low[t], _mm512_slli_epi32::<8>(high[t]));
                }
                sums[t] = _mm512_cvtepi32_ps(low[t]);
            }
            sums
        }
    }
}

/// Adds the products of four groups' nibbles, even and odd, with the bytes at `even_part` and
/// behind it, four neighbours a lane.
///
/// # Safety
/// Requires AVX-512 VNNI.
#[inline(always)]
unsafe fn products(sum: __m512i, codes: [__m512i; 2], parts: &Parts, even_part: usize) -> __m512i {
    // SAFETY: the caller guarantees the instructions; a part has 64 bytes.
    unsafe {
        let even = _mm512_loadu_si512(parts[even_part].as_ptr().cast());
        let odd = _mm512_loadu_si512(parts[even_part + 1].as_ptr().cast());
        _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(sum, codes[0], even), codes[1], odd)
    }
}
