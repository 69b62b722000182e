//! `settle.rs` by hand, for x86-64 processors with AVX2: the same 32 lanes, in registers from the
//! source's bytes to packed words.
//!
//! The names are those of `lanes.rs`, `settle.rs` and `readers.rs`, where the reasons stand. What
//! differs is how a lane is asked:
//! - the factor 840/level comes from a table of eight, in which a level of 8 takes the place of the
//!   forbidden level 0;
//! - counts are taken from masks of one bit a lane;
//! - groups without a code of ±1, of which there are few, are left to [`recover`](super::recover).
//!
//! Left to the compiler, the loops of `settle.rs` took 62 ns a group with AVX2 and 110 ns with
//! 512-bit registers, where masks were taken apart lane by lane. With 512-bit intrinsics in place
//! of these nothing would be gained that is not lost on what a group needs only once.

use std::arch::x86_64::*;

use w4pack_format::group::{GROUP, NIBBLE_OFFSET, PACKED_BYTES};
use w4pack_format::scale::ScaleDtype;

use super::Grid;
use super::lanes::{self, PEAKS, PLAIN, ROUNDER, interval};
use super::readers::{self, Differing, PLAIN_F16};
use super::settle::Settled;
use super::step;

/// What [`settle_all`](super::settle::settle_all) does.
#[target_feature(enable = "avx2,popcnt")]
pub(super) fn settle_all(
    groups: &[[u8; 2 * GROUP]],
    dtype: ScaleDtype,
    settled: &mut [Option<Settled>],
) {
    for (bytes, settled) in groups.iter().zip(settled) {
        *settled = settle(bytes, dtype);
    }
}

#[target_feature(enable = "avx2,popcnt")]
#[inline]
fn settle(bytes: &[u8; 2 * GROUP], dtype: ScaleDtype) -> Option<Settled> {
    let (halves, _) = bytes.as_chunks::<GROUP>();
    let (first, second) = (load(&halves[0]), load(&halves[1]));
    let without_sign = _mm256_set1_epi16(0x7fff);
    let (low, high) =
        (_mm256_and_si256(first, without_sign), _mm256_and_si256(second, without_sign));
    let largest = largest(low, high);
    if !PLAIN.contains(&largest) {
        return None;
    }
    let none = _mm256_setzero_si256();
    let (low_zeros, high_zeros) = (_mm256_cmpeq_epi16(low, none), _mm256_cmpeq_epi16(high, none));
    let zeros = bytes_of(low_zeros, high_zeros);
    // Zero, which any step gives, stands as the largest value.
    let stands = _mm256_set1_epi16(largest as i16);
    let low = _mm256_or_si256(low, _mm256_and_si256(low_zeros, stands));
    let high = _mm256_or_si256(high, _mm256_and_si256(high_zeros, stands));
    let signs = bytes_of(_mm256_srai_epi16::<15>(first), _mm256_srai_epi16::<15>(second));
    let one = 1.0 / f32::from_bits(u32::from(largest) << 16);
    for peak in PEAKS {
        let Some(levels) = levels(low, high, one * peak as f32) else { continue };
        // A level under its value's sign, and 0 for a zero.
        let signed = _mm256_sub_epi8(_mm256_xor_si256(levels.lanes, signs), signs);
        let mut codes = _mm256_andnot_si256(zeros, signed);
        if places(levels.lanes, 1) & !mask(zeros) == 0 {
            return None;
        }
        let mut negative = false;
        if peak == 8 {
            negative = places(codes, 8) != 0;
            if negative {
                if places(codes, -8) != 0 {
                    continue;
                }
                codes = _mm256_sub_epi8(_mm256_setzero_si256(), codes);
            }
        }
        let interval = interval(levels.low, levels.high, 1);
        let grid = Grid { peak: peak as u8, negative, interval };
        let step = step::clearly_canonical(&grid, dtype)?;
        return Some(Settled {
            words: packed(codes),
            step,
            peak: grid.peak,
            zeros: mask(zeros).count_ones() as u8,
            negative_zeros: (mask(zeros) & mask(signs)).count_ones() as u8,
            differing: differing(bytes, codes, step, dtype),
        });
    }
    None
}

/// The levels of all values under one peak, as bytes in the order of the group.
struct Levels {
    lanes: __m256i,
    /// Bit patterns of 840 times the ends, moved by one where they are open.
    low: i32,
    high: i32,
}

/// Magnitudes, 16 a half, times `factor`, rounded; `None` if no step is left.
#[target_feature(enable = "avx2,popcnt")]
#[inline]
fn levels(first: __m256i, second: __m256i, factor: f32) -> Option<Levels> {
    let factor = _mm256_set1_ps(factor);
    // 840/level at the level's lowest three bits: level 8 stands at 0, level 0 is asked for apart.
    let table = _mm256_setr_ps(105.0, 840.0, 420.0, 280.0, 210.0, 168.0, 140.0, 120.0);
    let mut ends = Ends { low: _mm256_setzero_si256(), high: _mm256_set1_epi32(i32::MAX) };
    // Unpacking and packing keep to halves of 128 bits both: the order comes back.
    let zero = _mm256_setzero_si256();
    let a = ends.take(_mm256_unpacklo_epi16(zero, first), factor, table);
    let b = ends.take(_mm256_unpackhi_epi16(zero, first), factor, table);
    let c = ends.take(_mm256_unpacklo_epi16(zero, second), factor, table);
    let d = ends.take(_mm256_unpackhi_epi16(zero, second), factor, table);
    let lanes = bytes_of(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
    let low = horizontal_max(ends.low);
    let high = !horizontal_max(_mm256_xor_si256(ends.high, _mm256_set1_epi32(-1)));
    (low <= high && places(lanes, 0) == 0).then_some(Levels { lanes, low, high })
}

/// The largest low ends and the smallest high ends, lane by lane.
struct Ends {
    low: __m256i,
    high: __m256i,
}

impl Ends {
    /// Takes eight bit patterns of magnitudes and gives their levels.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn take(&mut self, pattern: __m256i, factor: __m256, table: __m256) -> __m256i {
        let rounder = _mm256_set1_ps(ROUNDER);
        let quotient = _mm256_mul_ps(_mm256_castsi256_ps(pattern), factor);
        let rounded = _mm256_castps_si256(_mm256_add_ps(quotient, rounder));
        let level = _mm256_sub_epi32(rounded, _mm256_castps_si256(rounder));
        let units = _mm256_permutevar8x32_ps(table, level);
        let half_way = _mm256_set1_epi32(0x8000);
        let below = _mm256_castsi256_ps(_mm256_sub_epi32(pattern, half_way));
        let above = _mm256_castsi256_ps(_mm256_add_epi32(pattern, half_way));
        let below = _mm256_castps_si256(_mm256_mul_ps(below, units));
        let above = _mm256_castps_si256(_mm256_mul_ps(above, units));
        let open = _mm256_and_si256(_mm256_srli_epi32::<16>(pattern), _mm256_set1_epi32(1));
        self.low = _mm256_max_epi32(self.low, _mm256_add_epi32(below, open));
        self.high = _mm256_min_epi32(self.high, _mm256_sub_epi32(above, open));
        level
    }
}

/// What readers that round make of a group whose step gives all its values: bits by level for the
/// usual step, as `readers.rs` has them, else its own loop.
#[target_feature(enable = "avx2,popcnt")]
#[inline]
fn differing(bytes: &[u8; 2 * GROUP], codes: __m256i, step: f32, dtype: ScaleDtype) -> Differing {
    if dtype != ScaleDtype::F16 || !PLAIN_F16.contains(&step.abs()) {
        return readers::differing(&lanes::bits_of(bytes), &stored(codes), step, dtype, true);
    }
    let level = _mm256_setr_ps(1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0);
    let step = _mm256_set1_ps(step.abs());
    let narrow = upper_half(to_bf16(_mm256_castps_si256(step)));
    let product = _mm256_castps_si256(_mm256_mul_ps(level, step));
    let value = upper_half(to_bf16(product));
    let in_f16 = upper_half(to_bf16(plain_f16(product)));
    let in_bf16 = _mm256_mul_ps(level, _mm256_castsi256_ps(narrow));
    let in_bf16 = upper_half(to_bf16(_mm256_castps_si256(in_bf16)));
    let magnitudes = _mm256_abs_epi8(codes);
    Differing {
        product_in_scale_dtype: missed(_mm256_cmpeq_epi32(in_f16, value), magnitudes),
        scale_in_bf16: missed(_mm256_cmpeq_epi32(in_bf16, value), magnitudes),
    }
}

/// How many codes of these magnitudes stand at a level from 1 to 8 that is not right.
#[target_feature(enable = "avx2,popcnt")]
#[inline]
fn missed(right: __m256i, magnitudes: __m256i) -> u8 {
    let right =
        _mm_packs_epi32(_mm256_castsi256_si128(right), _mm256_extracti128_si256::<1>(right));
    let right = _mm_packs_epi16(right, right);
    let wrong = _mm_andnot_si128(right, _mm_setr_epi32(-1, -1, 0, 0));
    // The table begins with level 0, which is never wrong.
    let table = _mm256_broadcastsi128_si256(_mm_slli_si128::<1>(wrong));
    mask(_mm256_shuffle_epi8(table, magnitudes)).count_ones() as u8
}

/// The bit pattern of the nearest f16 number, which is a normal one.
#[target_feature(enable = "avx2")]
#[inline]
fn plain_f16(product: __m256i) -> __m256i {
    let odd = _mm256_and_si256(_mm256_srli_epi32::<13>(product), _mm256_set1_epi32(1));
    let rounded = _mm256_add_epi32(_mm256_add_epi32(product, _mm256_set1_epi32(0xfff)), odd);
    _mm256_and_si256(rounded, _mm256_set1_epi32(!0x1fff))
}

/// The nearest bf16 number, half to even: the upper half of what it gives.
#[target_feature(enable = "avx2")]
#[inline]
fn to_bf16(bits: __m256i) -> __m256i {
    let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
    _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd)
}

#[target_feature(enable = "avx2")]
#[inline]
fn upper_half(bits: __m256i) -> __m256i {
    _mm256_and_si256(bits, _mm256_set1_epi32(!0xffff))
}

/// Codes as nibbles, the first in the lower half of its byte.
#[target_feature(enable = "avx2")]
#[inline]
fn packed(codes: __m256i) -> [u8; PACKED_BYTES] {
    // Adding 8 to four bits turns the highest one round.
    let nibbles = _mm256_and_si256(codes, _mm256_set1_epi8(0x0f));
    let nibbles = _mm256_xor_si256(nibbles, _mm256_set1_epi8(NIBBLE_OFFSET));
    // Low nibble times 1 and high nibble times 16, added.
    let pairs = _mm256_maddubs_epi16(nibbles, _mm256_set1_epi16(0x1001));
    let (low, high) = (_mm256_castsi256_si128(pairs), _mm256_extracti128_si256::<1>(pairs));
    let words = _mm_packus_epi16(low, high);
    let mut bytes = [0; PACKED_BYTES];
    // SAFETY: the array has the register's 16 bytes; the store asks for no alignment.
    unsafe { _mm_storeu_si128(bytes.as_mut_ptr().cast(), words) };
    bytes
}

/// The largest of 32 magnitudes: the smallest of their complements.
#[target_feature(enable = "avx2")]
#[inline]
fn largest(first: __m256i, second: __m256i) -> u16 {
    let lanes = _mm256_max_epu16(first, second);
    let lanes = _mm_max_epu16(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256::<1>(lanes));
    let complements = _mm_xor_si128(lanes, _mm_set1_epi16(-1));
    !_mm_extract_epi16::<0>(_mm_minpos_epu16(complements)) as u16
}

#[target_feature(enable = "avx2")]
#[inline]
fn horizontal_max(lanes: __m256i) -> i32 {
    let lanes = _mm_max_epi32(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256::<1>(lanes));
    let lanes = _mm_max_epi32(lanes, _mm_shuffle_epi32::<0b01_00_11_10>(lanes));
    let lanes = _mm_max_epi32(lanes, _mm_shuffle_epi32::<0b10_11_00_01>(lanes));
    _mm_cvtsi128_si32(lanes)
}

/// Two halves of 16-bit lanes as 32 bytes in the order of the group, each kept within -128..=127.
#[target_feature(enable = "avx2")]
#[inline]
fn bytes_of(first: __m256i, second: __m256i) -> __m256i {
    _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi16(first, second))
}

/// The lanes whose highest bit is set, the first in the lowest bit.
#[target_feature(enable = "avx2")]
#[inline]
fn mask(bytes: __m256i) -> u32 {
    _mm256_movemask_epi8(bytes) as u32
}

/// The lanes that hold a value.
#[target_feature(enable = "avx2")]
#[inline]
fn places(bytes: __m256i, value: i8) -> u32 {
    mask(_mm256_cmpeq_epi8(bytes, _mm256_set1_epi8(value)))
}

#[target_feature(enable = "avx2")]
#[inline]
fn load(bytes: &[u8; 32]) -> __m256i {
    // SAFETY: 32 bytes are there to be read; the load asks for no alignment.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

#[target_feature(enable = "avx2")]
#[inline]
fn stored(codes: __m256i) -> [i8; GROUP] {
    let mut bytes = [0; GROUP];
    // SAFETY: the array has the register's 32 bytes; the store asks for no alignment.
    unsafe { _mm256_storeu_si256(bytes.as_mut_ptr().cast(), codes) };
    bytes
}
