//! Sixteen f32 numbers side by side: what every instruction set does with them.
//!
//! Products with packed rows (`products/`), rows of plain values, attention and norms are all built
//! on this trait. Every operation but [`Numbers::multiply_add`] rounds once, as IEEE says, and none is
//! fused: so all instruction sets give the same bits.

mod portable;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;

#[cfg(target_arch = "aarch64")]
pub(super) use neon::Neon;

use half::{bf16, f16};

/// Numbers side by side: one AVX-512 register, two of AVX2, four of SSE or NEON.
pub(super) const LANES: usize = 16;

/// Added to a number of less than 2^22 in size, it leaves the nearest integer (half to even) in the
/// lowest bits.
pub(super) const ROUND: f32 = 12_582_912.0;

/// Sixteen f32 numbers.
///
/// # Safety
/// Every method requires the instruction set of its implementation: they are called only from the
/// leaves, which are compiled for it and called only where it was detected.
pub(super) trait Numbers: Copy {
    /// Whether sixteen numbers are one register and there are 32 of them.
    const MANY_REGISTERS: bool = false;

    /// Asks for the cache line at `address`, which need not exist, into the second-level cache.
    unsafe fn prefetch(address: *const u8);

    unsafe fn splat(value: f32) -> Self;
    unsafe fn load(values: &[f32; LANES]) -> Self;
    unsafe fn load_f16(values: &[f16; LANES]) -> Self;
    unsafe fn load_bf16(values: &[bf16; LANES]) -> Self;
    unsafe fn store(self, out: &mut [f32; LANES]);
    unsafe fn add(self, other: Self) -> Self;
    unsafe fn subtract(self, other: Self) -> Self;
    unsafe fn multiply(self, other: Self) -> Self;
    unsafe fn divide(self, other: Self) -> Self;
    /// `self·factor + sum`: fused, but for the baseline, where it rounds twice.
    unsafe fn multiply_add(self, factor: Self, sum: Self) -> Self;
    /// Of each pair the larger; where one is no number, that of `other`.
    unsafe fn larger(self, other: Self) -> Self;
    /// 2 to the integer that adding [`ROUND`] has left in the lowest bits, -126 to 127.
    unsafe fn power_of_two(self) -> Self;
    /// The sum of the lanes, in halves: 8 + 8, 4 + 4, 2 + 2, 1 + 1.
    unsafe fn sum(self) -> f32;

    /// The same of each of eight.
    #[inline(always)]
    unsafe fn sums(eight: [Self; 8]) -> [f32; 8] {
        let mut sums = [0.0; 8];
        for i in 0..8 {
            // SAFETY: the instruction set is the caller's promise.
            sums[i] = unsafe { eight[i].sum() };
        }
        sums
    }
}

/// A dtype in which numbers are stored.
pub(super) trait Stored: Copy + Default {
    /// Sixteen in f32.
    ///
    /// # Safety
    /// Requires the instruction set of `N`.
    unsafe fn load<N: Numbers>(values: &[Self; LANES]) -> N;
}

impl Stored for f16 {
    #[inline(always)]
    unsafe fn load<N: Numbers>(values: &[f16; LANES]) -> N {
        // SAFETY: the instruction set of `N` is the caller's promise.
        unsafe { N::load_f16(values) }
    }
}

impl Stored for bf16 {
    #[inline(always)]
    unsafe fn load<N: Numbers>(values: &[bf16; LANES]) -> N {
        // SAFETY: as above.
        unsafe { N::load_bf16(values) }
    }
}

impl Stored for f32 {
    #[inline(always)]
    unsafe fn load<N: Numbers>(values: &[f32; LANES]) -> N {
        // SAFETY: as above.
        unsafe { N::load(values) }
    }
}
