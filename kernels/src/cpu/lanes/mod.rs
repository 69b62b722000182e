//! Sixteen lanes: the small trait that every instruction set implements.

mod portable;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;

use super::activations::Block;
use half::{bf16, f16};
use w4pack_format::group::{GROUP, WORDS};

/// Partial sums kept side by side: one AVX-512 register, two of AVX2, four of SSE or NEON.
pub(super) const LANES: usize = 16;

/// The packed words of sixteen groups of a row, 256 bytes.
pub(super) type RowWords = [u32; LANES * WORDS];

/// Nibbles of one group of sixteen rows, one a byte: of every row a word's four even elements,
/// then its four odd ones, word by word.
pub(super) type TileGroup = [[[u8; 4]; LANES]; GROUP / 4];

/// Sixteen f32 numbers, and the operations that the algorithms need.
///
/// # Safety
/// Every method requires the instruction set of its implementation: they are called only from the
/// leaves, which are compiled for it and called only where it was detected.
pub(super) trait Lanes: Copy {
    /// Tokens that [`Lanes::tile_sums`] takes at once without running out of registers.
    const TILE_TOKENS: usize;
    /// Tokens from which unpacking tiles pays.
    const LEAST_TILED: usize;

    unsafe fn splat(value: f32) -> Self;
    unsafe fn load(values: &[f32; LANES]) -> Self;
    unsafe fn load_f16(values: &[f16; LANES]) -> Self;
    unsafe fn load_bf16(values: &[bf16; LANES]) -> Self;
    unsafe fn store(self, out: &mut [f32; LANES]);
    unsafe fn add(self, other: Self) -> Self;
    unsafe fn multiply(self, other: Self) -> Self;
    /// `self·factor + sum`: fused, but for the baseline, where it rounds twice.
    unsafe fn multiply_add(self, factor: Self, sum: Self) -> Self;
    /// The sum of the lanes, in halves: 8 + 8, 4 + 4, 2 + 2, 1 + 1.
    unsafe fn sum(self) -> f32;

    /// Asks for the cache line at `address`, which need not exist, into the second-level cache.
    unsafe fn prefetch(address: *const u8);

    /// Sums code·integer of sixteen groups of a row, a lane each, for `T` tokens. They are below
    /// 2^23, so that they are exact. `BYTES` of an integer are multiplied: 2, or the high one.
    unsafe fn row_sums<const T: usize, const BYTES: usize>(
        words: &RowWords,
        x: [&Block; T],
    ) -> [Self; T];

    /// The same sums of one group, number `group` of the block, of sixteen rows, a lane each.
    unsafe fn tile_sums<const T: usize, const BYTES: usize>(
        codes: &TileGroup,
        group: usize,
        x: [&Block; T],
    ) -> [Self; T];
}

/// Bytes `4·four` to `4·four + 3` as they lie in memory.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[inline(always)]
fn four_bytes(bytes: &[i8; 16], four: usize) -> i32 {
    let [a, b, c, d] = bytes.as_chunks::<4>().0[four];
    i32::from_le_bytes([a as u8, b as u8, c as u8, d as u8])
}
