//! Products of packed words with activations: what every instruction set does in its own way.

mod portable;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;

use super::activations::Block;
use super::numbers::{LANES, Numbers};
use w4pack_format::group::{GROUP, WORDS};

/// The packed words of sixteen groups of a row, 256 bytes.
pub(super) type RowWords = [u32; LANES * WORDS];

/// Nibbles of one group of sixteen rows, one a byte: of every row a word's four even elements,
/// then its four odd ones, word by word.
pub(super) type TileGroup = [[[u8; 4]; LANES]; GROUP / 4];

/// Sums of codes times integers, as sixteen [`Numbers`].
///
/// # Safety
/// As there: every method requires the instruction set of its implementation.
pub(super) trait Products: Numbers {
    /// Tokens that [`Products::tile_sums`] takes at once without running out of registers.
    const TILE_TOKENS: usize;
    /// Tokens from which unpacking tiles pays.
    const LEAST_TILED: usize;

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
