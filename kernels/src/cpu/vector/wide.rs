//! Sixteen f32 numbers side by side, as attention and the element-wise stages use them.
//!
//! Every operation rounds once, as IEEE says, and none is fused: so all instruction sets give the
//! same bits. (A fused multiply-add gained nothing in attention: products and sums go to different
//! pipes, and keys have to be converted anyway.)

use half::{bf16, f16};

/// Numbers side by side.
pub(super) const LANES: usize = 16;

/// Added to a number of less than 2^22 it leaves the nearest integer in the lowest bits.
pub(super) const ROUND: f32 = 12_582_912.0;

/// Sixteen f32 numbers and what is done with them.
///
/// # Safety
/// Every method requires the instruction set of its implementation: they are called only from the
/// leaves, which are compiled for it and called only where it was detected.
pub(super) trait Wide: Copy {
    unsafe fn splat(value: f32) -> Self;
    unsafe fn load(values: &[f32; LANES]) -> Self;
    unsafe fn load_f16(values: &[f16; LANES]) -> Self;
    unsafe fn load_bf16(values: &[bf16; LANES]) -> Self;
    unsafe fn store(self, out: &mut [f32; LANES]);
    unsafe fn add(self, other: Self) -> Self;
    unsafe fn subtract(self, other: Self) -> Self;
    unsafe fn multiply(self, other: Self) -> Self;
    unsafe fn divide(self, other: Self) -> Self;
    /// Of each pair the larger; where one is no number, that of `other`.
    unsafe fn larger(self, other: Self) -> Self;
    /// 2 to the integer that adding [`ROUND`] has left in the lowest bits, -126 to 127.
    unsafe fn power_of_two(self) -> Self;

    /// The sum of each: 8 + 8, 4 + 4, 2 + 2, 1 + 1.
    #[inline(always)]
    unsafe fn sums(eight: [Self; 8]) -> [f32; 8] {
        let mut sums = [0.0; 8];
        for (lanes, out) in eight.into_iter().zip(&mut sums) {
            let mut numbers = [0.0; LANES];
            // SAFETY: the instruction set is the caller's promise.
            unsafe { lanes.store(&mut numbers) };
            for half in [8, 4, 2, 1] {
                for i in 0..half {
                    numbers[i] += numbers[half + i];
                }
            }
            *out = numbers[0];
        }
        sums
    }
}

/// No instruction set in particular. The compiler makes of it what the target's baseline has.
impl Wide for [f32; LANES] {
    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        [value; LANES]
    }

    #[inline(always)]
    unsafe fn load(values: &[f32; LANES]) -> Self {
        *values
    }

    #[inline(always)]
    unsafe fn load_f16(values: &[f16; LANES]) -> Self {
        std::array::from_fn(|lane| values[lane].to_f32())
    }

    #[inline(always)]
    unsafe fn load_bf16(values: &[bf16; LANES]) -> Self {
        std::array::from_fn(|lane| f32::from_bits(u32::from(values[lane].to_bits()) << 16))
    }

    #[inline(always)]
    unsafe fn store(self, out: &mut [f32; LANES]) {
        *out = self;
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        std::array::from_fn(|lane| self[lane] + other[lane])
    }

    #[inline(always)]
    unsafe fn subtract(self, other: Self) -> Self {
        std::array::from_fn(|lane| self[lane] - other[lane])
    }

    #[inline(always)]
    unsafe fn multiply(self, other: Self) -> Self {
        std::array::from_fn(|lane| self[lane] * other[lane])
    }

    #[inline(always)]
    unsafe fn divide(self, other: Self) -> Self {
        std::array::from_fn(|lane| self[lane] / other[lane])
    }

    #[inline(always)]
    unsafe fn larger(self, other: Self) -> Self {
        std::array::from_fn(|lane| if self[lane] > other[lane] { self[lane] } else { other[lane] })
    }

    #[inline(always)]
    unsafe fn power_of_two(self) -> Self {
        std::array::from_fn(|lane| {
            f32::from_bits((self[lane].to_bits() << 23).wrapping_add(127 << 23))
        })
    }
}

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use super::{LANES, Wide};
    use half::{bf16, f16};
    use std::arch::x86_64::*;

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
    unsafe fn sums_of_eights(eight: [__m256; 8]) -> [f32; 8] {
        // SAFETY: the caller guarantees AVX2; eight values are stored, unaligned.
        unsafe {
            let [a, b, c, d, e, f, g, h] = eight;
            let (ae, bf, cg, dh) = (fours(a, e), fours(b, f), fours(c, g), fours(d, h));
            // Pairs whose sums end up in order: a b c d | e f g h.
            let (ab, cd) = (twos(ae, bf), twos(cg, dh));
            let (even, odd) =
                (_mm256_shuffle_ps::<0x88>(ab, cd), _mm256_shuffle_ps::<0xdd>(ab, cd));
            let mut sums = [0.0; 8];
            _mm256_storeu_ps(sums.as_mut_ptr(), _mm256_add_ps(even, odd));
            sums
        }
    }

    /// AVX2 and F16C: lanes 0..8 and 8..16.
    impl Wide for [__m256; 2] {
        #[inline(always)]
        unsafe fn splat(value: f32) -> Self {
            // SAFETY: the caller guarantees AVX2.
            unsafe { [_mm256_set1_ps(value); 2] }
        }

        #[inline(always)]
        unsafe fn load(values: &[f32; LANES]) -> Self {
            // SAFETY: the caller guarantees AVX2; 8 + 8 values are read, unaligned.
            unsafe {
                let first = values.as_ptr();
                [_mm256_loadu_ps(first), _mm256_loadu_ps(first.add(8))]
            }
        }

        #[inline(always)]
        unsafe fn load_f16(values: &[f16; LANES]) -> Self {
            // SAFETY: the caller guarantees F16C; 8 + 8 values are read, unaligned.
            unsafe {
                let first: *const __m128i = values.as_ptr().cast();
                let high = _mm_loadu_si128(first.add(1));
                [_mm256_cvtph_ps(_mm_loadu_si128(first)), _mm256_cvtph_ps(high)]
            }
        }

        #[inline(always)]
        unsafe fn load_bf16(values: &[bf16; LANES]) -> Self {
            // SAFETY: the caller guarantees AVX2; 8 + 8 values are read, unaligned.
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

    /// AVX-512F and AVX2.
    impl Wide for __m512 {
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
            // SAFETY: the caller guarantees AVX-512F; 16 values are read, unaligned.
            unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(values.as_ptr().cast())) }
        }

        #[inline(always)]
        unsafe fn load_bf16(values: &[bf16; LANES]) -> Self {
            // SAFETY: the caller guarantees AVX-512F; 16 values are read, unaligned.
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
}
