//! AMX: packed rows for a prompt, on the matrix unit of Intel's servers (Sapphire Rapids, 2023).
//!
//! The unit adds products of signed bytes for 16 tokens and 16 rows at a stroke, and is exact, as the
//! sums inside a group are. So an output is the same bits as on any other instruction set:
//! ```text
//! for each 16 tokens, for each 16 rows:
//!     for each lane (0, 8, 4, 12, … as halves are added), for each group of the lane:
//!         high, low = Σ code·byte                            16 by 16 by 32 each, the matrix unit
//!         lane += ((256·high + low)·step)·x step             16 by 16, AVX-512
//!     output = the lanes, added in halves
//! ```
//! | file | holds |
//! |---|---|
//! | `tokens.rs` | activations of 16 tokens, as the unit takes them |
//! | `rows.rs` | codes of 16 rows, as the unit takes them |
//! | `unit.rs` | the unit: its registers and what it does with them |
//! | `order.rs` | the order of groups in both |
//! | `tile.rs` | the loop over lanes and groups |
//! | `permission.rs` | whether the processor has the unit and the system gives it |
//!
//! Tried (bench/cpu-amx-2026-11-30.txt): two tiles of rows at once, which load a token's bytes once for
//! both, leave no registers for the lanes, and were 4 to 8 % slower. Not tried: three products of halves
//! in bf16, with sums of whole rows in the unit. As a prototype they took 2.2 times AVX-512's speed, where
//! this takes 2.4, and they give other bits.
//!
//! # Safety
//! Functions require AVX-512 F, BW and VNNI, for which they are compiled, and what the [`Unit`] does.

mod order;
mod permission;
mod rows;
mod tile;
mod tokens;
mod unit;

#[cfg(test)]
mod model;
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

/// Tokens from which tiles pay: with fewer, most of one would be empty.
pub(super) const LEAST_TOKENS: usize = 12;

/// Bytes of unpacked rows over which all tokens pass: with the activations of 16 tokens they stay in
/// the second-level cache, of 2 MB.
const PANEL_BYTES: usize = 768 << 10;

/// What a thread needs besides operands and outputs.
#[derive(Default)]
struct Room {
    panel: Panel,
    tile: tile::Room,
}

thread_local! {
    /// Kept from one matrix to the next.
    static ROOM: Cell<Option<Box<Room>>> = const { Cell::new(None) };
}

/// Multiplies the rows of `matrix`, which is read by codes, from `first_row` on, as many as `out` has,
/// with all of `x`.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn multiply<U: Unit>(
    matrix: &Matrix<'_>,
    first_row: usize,
    x: &TokenTiles,
    precision: Precision,
    out: &mut Output<'_>,
) {
    let rows =
        PackedRows::of(matrix, first_row, out.rows()).expect("a matrix that is read by codes");
    // SAFETY: the unit is the caller's promise.
    unsafe {
        match rows {
            PackedRows::F16(rows) => packed::<U, _>(&rows, x, precision, out),
            PackedRows::Bf16(rows) => packed::<U, _>(&rows, x, precision, out),
            PackedRows::F32(rows) => packed::<U, _>(&rows, x, precision, out),
        }
    }
}

/// The same for rows with steps of one dtype.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx2,fma,f16c")]
unsafe fn packed<U: Unit, S: Stored>(
    rows: &Packed<'_, S>,
    x: &TokenTiles,
    precision: Precision,
    out: &mut Output<'_>,
) {
    let mut room = ROOM.take().unwrap_or_default();
    let Room { panel, tile: tile_room } = &mut *room;
    let (order, ends) = (x.order(), &x.order().ends[..]);
    let tiles = (PANEL_BYTES / Panel::tile_bytes(rows.groups)).max(1);
    // SAFETY: the unit is the caller's promise.
    unsafe {
        let mut unit = U::configured();
        for first in (0..out.rows()).step_by(SIDE * tiles) {
            panel.unpack(&rows.some(first, SIDE * tiles), order);
            for tokens in x.iter() {
                for (number, tile) in panel.iter().enumerate() {
                    let row = first + SIDE * number;
                    match precision {
                        Precision::Bits16 => {
                            tile::multiply::<U, 2>(
                                &mut unit, tokens, tile, ends, tile_room, row, out,
                            );
                        }
                        Precision::Bits8 => {
                            tile::multiply::<U, 1>(
                                &mut unit, tokens, tile, ends, tile_room, row, out,
                            );
                        }
                    }
                }
            }
        }
    }
    ROOM.set(Some(room));
}
