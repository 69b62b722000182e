//! Sixteen f32 lanes: the small trait that every instruction set implements.

/// Partial sums kept side by side: one AVX-512 register, two of AVX2, four of SSE or NEON.
pub(super) const LANES: usize = 16;

/// Sixteen f32 numbers and the operations that the algorithm needs.
///
/// # Safety
/// Every method requires the instruction set of its implementation: they are called only from the
/// leaves, which are compiled for it and called only where it was detected.
pub(super) trait Lanes: Copy {
    unsafe fn splat(value: f32) -> Self;
    unsafe fn load(values: &[f32; LANES]) -> Self;
    unsafe fn store(self, out: &mut [f32; LANES]);
    /// The codes in two packed words, lowest nibble first, as numbers in -8..=7.
    unsafe fn codes(low: u32, high: u32) -> Self;
    unsafe fn multiply(self, other: Self) -> Self;
    /// `self·factor + sum`: fused, but for the baseline, where it rounds twice.
    unsafe fn multiply_add(self, factor: Self, sum: Self) -> Self;
}

/// Added to the bits of a nibble: 0x4b00_0000 | n are the bits of the number 2^23 + n, so that an
/// "or" and a subtraction turn a nibble into a code.
const NIBBLE_BITS: u32 = 0x4b00_0000;
const NIBBLE_BIAS: f32 = 8_388_608.0 + 8.0;

/// No instruction set in particular. The compiler makes of it what the target's baseline has.
impl Lanes for [f32; LANES] {
    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        [value; LANES]
    }

    #[inline(always)]
    unsafe fn load(values: &[f32; LANES]) -> Self {
        *values
    }

    #[inline(always)]
    unsafe fn store(self, out: &mut [f32; LANES]) {
        *out = self;
    }

    #[inline(always)]
    unsafe fn codes(low: u32, high: u32) -> Self {
        std::array::from_fn(|lane| {
            let word = if lane < 8 { low } else { high };
            f32::from_bits(NIBBLE_BITS | (word >> (4 * (lane % 8))) & 15) - NIBBLE_BIAS
        })
    }

    #[inline(always)]
    unsafe fn multiply(self, other: Self) -> Self {
        std::array::from_fn(|lane| self[lane] * other[lane])
    }

    #[inline(always)]
    unsafe fn multiply_add(self, factor: Self, sum: Self) -> Self {
        // A fused operation would be a library call here, a hundred times slower.
        std::array::from_fn(|lane| self[lane] * factor[lane] + sum[lane])
    }
}

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use super::{LANES, Lanes, NIBBLE_BIAS, NIBBLE_BITS};
    use std::arch::x86_64::*;

    /// AVX2 and FMA: lanes 0..8 and 8..16.
    impl Lanes for [__m256; 2] {
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
        unsafe fn store(self, out: &mut [f32; LANES]) {
            // SAFETY: the caller guarantees AVX2; 8 + 8 values are written, unaligned.
            unsafe {
                let first = out.as_mut_ptr();
                _mm256_storeu_ps(first, self[0]);
                _mm256_storeu_ps(first.add(8), self[1]);
            }
        }

        #[inline(always)]
        unsafe fn codes(low: u32, high: u32) -> Self {
            // SAFETY: the caller guarantees AVX2.
            unsafe {
                let shifts = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
                let mask = _mm256_set1_epi32(15);
                let bits = _mm256_set1_epi32(NIBBLE_BITS as i32);
                let bias = _mm256_set1_ps(NIBBLE_BIAS);
                let low = _mm256_srlv_epi32(_mm256_set1_epi32(low as i32), shifts);
                let high = _mm256_srlv_epi32(_mm256_set1_epi32(high as i32), shifts);
                let low = _mm256_or_si256(_mm256_and_si256(low, mask), bits);
                let high = _mm256_or_si256(_mm256_and_si256(high, mask), bits);
                [
                    _mm256_sub_ps(_mm256_castsi256_ps(low), bias),
                    _mm256_sub_ps(_mm256_castsi256_ps(high), bias),
                ]
            }
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
    }

    /// AVX-512F.
    impl Lanes for __m512 {
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
        unsafe fn store(self, out: &mut [f32; LANES]) {
            // SAFETY: the caller guarantees AVX-512F; 16 values are written, unaligned.
            unsafe { _mm512_storeu_ps(out.as_mut_ptr(), self) }
        }

        #[inline(always)]
        unsafe fn codes(low: u32, high: u32) -> Self {
            // The permutation looks at four bits of each lane only, so that the nibbles need no
            // mask: the table of all 16 codes is the conversion.
            // SAFETY: the caller guarantees AVX-512F.
            unsafe {
                let shifts =
                    _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
                let table = _mm512_setr_ps(
                    -8.0, -7.0, -6.0, -5.0, -4.0, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0,
                    6.0, 7.0,
                );
                let words =
                    _mm512_mask_set1_epi32(_mm512_set1_epi32(low as i32), 0xff00, high as i32);
                _mm512_permutexvar_ps(_mm512_srlv_epi32(words, shifts), table)
            }
        }

        #[inline(always)]
        unsafe fn multiply(self, other: Self) -> Self {
            // SAFETY: the caller guarantees AVX-512F.
            unsafe { _mm512_mul_ps(self, other) }
        }

        #[inline(always)]
        unsafe fn multiply_add(self, factor: Self, sum: Self) -> Self {
            // SAFETY: the caller guarantees AVX-512F.
            unsafe { _mm512_fmadd_ps(self, factor, sum) }
        }
    }
}
