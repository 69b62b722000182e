//! AMX: packed rows for a prompt, on the matrix unit of Intel's servers (Sapphire Rapids, 2023).
//!
//! The unit adds products of signed bytes, 16 tokens by 16 rows at a stroke, and is exact, as the sums
//! inside a group are. So an output is the same bits as on any other instruction set:
//! ```text
//! for each 16 tokens, for each pair of 16 rows:
//!     for each lane (0, 8, 4, 12, … as halves are added), for each group of the lane:
//!         high, low = Σ code·byte          16 by 16 by 32 on the matrix unit, two for each of the pair
//!         lane += ((256·high + low)·step)·x step                                         AVX-512
//!     output = the lanes, added in halves
//! ```
//! | file | holds |
//! |---|---|
//! | `tokens.rs` | activations of 16 tokens, as the unit takes them |
//! | `rows.rs` | codes of 16 rows, as the unit takes them |
//! | `unit.rs` | the unit: its registers and its one product |
//! | `pair.rs` | the loop above |
//! | `permission.rs` | whether the processor has the unit and the system gives it |
//!
//! What limits it is the second line: five operations for 16 outputs of a group, 40 of the 32
//! cycles that the unit itself needs.
//!
//! # Safety
//! All functions here require AVX-512 F, BW and VNNI, and the matrix unit where they take a [`Unit`].

mod pair;
mod permission;
mod rows;
mod tokens;
mod unit;

#[cfg(test)]
mod tests;

pub(super) use permission::refusal;
pub(super) use tokens::{TokenTile, TokenTiles, fill};
pub(super) use unit::MatrixUnit;

use super::activations::Precision;
use super::matrix::Matrix;
use super::numbers::Stored;
use super::output::Output;
use super::packed::{Packed, PackedRows};
use rows::Panel;
use std::cell::Cell;
use unit::Unit;

/// Tokens and rows of a tile.
const SIDE: usize = 16;

/// Tokens from which tiles pay: with fewer, most of a tile would be empty.
pub(super) const LEAST_TOKENS: usize = 12;

/// Bytes of unpacked rows over which all tokens pass: with the activations of 16 tokens they stay in
/// the second-level cache, of 2 MB.
const PANEL_BYTES: usize = 768 << 10;

/// What a thread needs besides operands and outputs.
#[derive(Default)]
struct Room {
    panel: Panel,
    pair: pair::Room,
}

thread_local! {
    /// Kept from one matrix to the next.
    static ROOM: Cell<Option<Box<Room>>> = const { Cell::new(None) };
}

/// Multiplies the rows of `matrix`, which is read by codes, from `first_row` on, as many as `out` has,
/// with all of `x`.
#[inline(always)]
pub(super) unsafe fn multiply<U: Unit>(
    matrix: &Matrix<'_>,
    first_row: usize,
    x: &TokenTiles,
    precision: Precision,
    out: &mut Output<'_>,
) {
    let rows = PackedRows::of(matrix, first_row, out.rows()).expect("a matrix that is read by codes");
    // SAFETY: the instruction sets are the caller's promise.
    unsafe {
        match (rows, precision) {
            (PackedRows::F16(rows), Precision::Bits16) => packed::<U, _, 2>(&rows, x, out),
            (PackedRows::F16(rows), Precision::Bits8) => packed::<U, _, 1>(&rows, x, out),
            (PackedRows::Bf16(rows), Precision::Bits16) => packed::<U, _, 2>(&rows, x, out),
            (PackedRows::Bf16(rows), Precision::Bits8) => packed::<U, _, 1>(&rows, x, out),
            (PackedRows::F32(rows), Precision::Bits16) => packed::<U, _, 2>(&rows, x, out),
            (PackedRows::F32(rows), Precision::Bits8) => packed::<U, _, 1>(&rows, x, out),
        }
    }
}

/// The same for rows with steps of one dtype. `BYTES` as in `products/`.
#[inline(always)]
unsafe fn packed<U: Unit, S: Stored, const BYTES: usize>(
    rows: &Packed<'_, S>,
    x: &TokenTiles,
    out: &mut Output<'_>,
) {
    let mut room = ROOM.take().unwrap_or_default();
    let Room { panel, pair: pair_room } = &mut *room;
    let tiles = (PANEL_BYTES / Panel::tile_bytes(rows.groups)).max(2) / 2 * 2;
    // SAFETY: the instruction sets are the caller's promise.
    unsafe {
        let unit = U::configured();
        for first in (0..out.rows()).step_by(SIDE * tiles) {
            panel.unpack(&rows.some(first, SIDE * tiles));
            for token_tile in 0..x.tiles() {
                for pair in 0..panel.tiles().div_ceil(2) {
                    let row = first + 2 * SIDE * pair;
                    let (tokens, rows) = (x.tile(token_tile), panel.pair(pair));
                    pair::multiply::<U, BYTES>(&unit, tokens, rows, pair_room, row, out);
                }
            }
        }
    }
    ROOM.set(Some(room));
}
