//! AVX-512F, and AVX2 for sums.

use super::avx2::sums_of_eights;
use super::{LANES, Numbers};
use half::{bf16, f16};
use std::arch::x86_64::*;

impl Numbers for __m512 {
    const MANY_REGISTERS: bool = true;

    #[inline(always)]
    unsafe fn prefetch(address: *const u8) {
        // SAFETY: a prefetch of any address is allowed.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(address.cast()) }
    }

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        // SAFETY: the caller guarantees AVX-512F.
        unsafe { _mm512_set1_ps(value) }
    }

    #[inline(always)]
    unsafe fn load(values: &[f32; LANES]) -> Self {
        // SAFETY: the caller guarantees AVX-512F; 16 values are read, unaligned.
        unsafe { _mm512_loadu_ps(values.as_ptr()) }
    }

    #[inline(always)]
    unsafe fn load_f16(values: &[f16; LANES]) -> Self {
        // SAFETY: the caller guarantees AVX-512F; 32 bytes are read, unaligned.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(values.as_ptr().cast())) }
    }

    #[inline(always)]
    unsafe fn load_bf16(values: &[bf16; LANES]) -> Self {
        // SAFETY: the caller guarantees AVX-512F; 32 bytes are read, unaligned.
        unsafe {
            let bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(values.as_ptr().cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits))
        }
    }

    #[inline(always)]
    unsafe fn store(self, out: &mut [f32; LANES]) {
        // SAFETY: the caller guarantees AVX-512F; 16 values are written, unaligned.
        unsafe { _mm512_storeu_ps(out.as_mut_ptr(), self) }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: the caller guarantees AVX-512F.
        unsafe { _mm512_add_ps(self, other) }
    }

    #[inline(always)]
    unsafe fn subtract(self, other: Self) -> Self {
        // SAFETY: the caller guarantees AVX-512F.
        unsafe { _mm512_sub_ps(self, other) }
    }

    #[inline(always)]
    unsafe fn multiply(self, other: Self) -> Self {
        // SAFETY: the caller guarantees AVX-512F.
        unsafe { _mm512_mul_ps(self, other) }
    }

    #[inline(always)]
    unsafe fn divide(self, other: Self) -> Self {
        // SAFETY: the caller guarantees AVX-512F.
        unsafe { _mm512_div_ps(self, other) }
    }

    #[inline(always)]
    unsafe fn multiply_add(self, factor: Self, sum: Self) -> Self {
        // SAFETY: the caller guarantees AVX-512F.
        unsafe { _mm512_fmadd_ps(self, factor, sum) }
    }

    #[inline(always)]
    unsafe fn larger(self, other: Self) -> Self {
        // SAFETY: the caller guarantees AVX-512F.
        unsafe { _mm512_max_ps(self, other) }
    }

    #[inline(always)]
    unsafe fn power_of_two(self) -> Self {
        // SAFETY: the caller guarantees AVX-512F.
        unsafe {
            let exponent = _mm512_slli_epi32::<23>(_mm512_castps_si512(self));
            _mm512_castsi512_ps(_mm512_add_epi32(exponent, _mm512_set1_epi32(127 << 23)))
        }
    }

    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        // SAFETY: the caller guarantees AVX-512F, and AVX2 with it.
        unsafe {
            let upper = _mm512_castpd_ps(_mm512_shuffle_f64x2::<0b11_10_11_10>(
                _mm512_castps_pd(self),
                _mm512_castps_pd(self),
            ));
            let eight = _mm256_add_ps(_mm512_castps512_ps256(self), _mm512_castps512_ps256(upper));
            let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        }
    }

    #[inline(always)]
    unsafe fn sums(eight: [Self; 8]) -> [f32; 8] {
        // SAFETY: the caller guarantees AVX-512F and AVX2.
        unsafe {
            let mut eights = [_mm256_setzero_ps(); 8];
            for i in 0..8 {
                let doubles = _mm512_castps_pd(eight[i]);
                let high = _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(doubles));
                eights[i] = _mm256_add_ps(_mm512_castps512_ps256(eight[i]), high);
            }
            sums_of_eights(eights)
        }
    }
}
