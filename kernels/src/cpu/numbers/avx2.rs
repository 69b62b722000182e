//! AVX2, FMA and F16C: lanes 0..8 and 8..16.

use super::{LANES, Numbers};
use half::{bf16, f16};
use std::arch::x86_64::*;

impl Numbers for [__m256; 2] {
    #[inline(always)]
    unsafe fn prefetch(address: *const u8) {
        // SAFETY: a prefetch of any address is allowed.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(address.cast()) }
    }

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
    unsafe fn subtract(self, other: Self) -> Self {
        // SAFETY: the caller guarantees AVX2.
        unsafe { [_mm256_sub_ps(self[0], other[0]), _mm256_sub_ps(self[1], other[1])] }
    }

    #[inline(always)]
    unsafe fn multiply(self, other: Self) -> Self {
        // SAFETY: the caller guarantees AVX2.
        unsafe { [_mm256_mul_ps(self[0], other[0]), _mm256_mul_ps(self[1], other[1])] }
    }

    #[inline(always)]
    unsafe fn divide(self, other: Self) -> Self {
        // SAFETY: the caller guarantees AVX2.
        unsafe { [_mm256_div_ps(self[0], other[0]), _mm256_div_ps(self[1], other[1])] }
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
    unsafe fn larger(self, other: Self) -> Self {
        // SAFETY: the caller guarantees AVX2.
        unsafe { [_mm256_max_ps(self[0], other[0]), _mm256_max_ps(self[1], other[1])] }
    }

    #[inline(always)]
    unsafe fn power_of_two(self) -> Self {
        // SAFETY: the caller guarantees AVX2.
        unsafe {
            let one = _mm256_set1_epi32(127 << 23);
            let low = _mm256_slli_epi32::<23>(_mm256_castps_si256(self[0]));
            let high = _mm256_slli_epi32::<23>(_mm256_castps_si256(self[1]));
            [
                _mm256_castsi256_ps(_mm256_add_epi32(low, one)),
                _mm256_castsi256_ps(_mm256_add_epi32(high, one)),
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
    unsafe fn sums(eight: [Self; 8]) -> [f32; 8] {
        // SAFETY: the caller guarantees AVX2.
        unsafe {
            let mut eights = [_mm256_setzero_ps(); 8];
            for i in 0..8 {
                eights[i] = _mm256_add_ps(eight[i][0], eight[i][1]);
            }
            sums_of_eights(eights)
        }
    }
}

/// Lanes i and 4 + i of each added; those of `x` come first.
#[inline(always)]
unsafe fn fours(x: __m256, y: __m256) -> __m256 {
    // SAFETY: the caller guarantees AVX2.
    unsafe {
        let low = _mm256_permute2f128_ps::<0x20>(x, y);
        _mm256_add_ps(low, _mm256_permute2f128_ps::<0x31>(x, y))
    }
}

/// Of every four lanes, 0 and 2, 1 and 3 added.
#[inline(always)]
unsafe fn twos(x: __m256, y: __m256) -> __m256 {
    // SAFETY: the caller guarantees AVX2.
    unsafe {
        let low = _mm256_shuffle_ps::<0x44>(x, y);
        _mm256_add_ps(low, _mm256_shuffle_ps::<0xee>(x, y))
    }
}

/// The sums of eight vectors of eight: 4 + 4, 2 + 2, 1 + 1. A step adds the halves of two
/// vectors side by side.
#[inline(always)]
pub(super) unsafe fn sums_of_eights(eight: [__m256; 8]) -> [f32; 8] {
    // SAFETY: the caller guarantees AVX2; eight values are stored, unaligned.
    unsafe {
        let [a, b, c, d, e, f, g, h] = eight;
        let (ae, bf, cg, dh) = (fours(a, e), fours(b, f), fours(c, g), fours(d, h));
        // Pairs whose sums end up in order: a b c d | e f g h.
        let (ab, cd) = (twos(ae, bf), twos(cg, dh));
        let (even, odd) = (_mm256_shuffle_ps::<0x88>(ab, cd), _mm256_shuffle_ps::<0xdd>(ab, cd));
        let mut sums = [0.0; 8];
        _mm256_storeu_ps(sums.as_mut_ptr(), _mm256_add_ps(even, odd));
        sums
    }
}
