//! Packed rows by tiles of sixteen, for many tokens: how a prompt is multiplied.
//!
//! The words of sixteen rows are unpacked once, so that the lanes of a register are rows; then
//! every token passes over them. An output's sums and their order are those of `rows.rs`: the
//! sixteen lanes there are sixteen registers here.
//!
//! Tried (Zen 4, 3.6 GHz, AVX-512, one core): one tile and 8 tokens at once reach 0.19 TFLOP/s, of the
//! 0.23 that two byte products a weight allow; 4 tokens 0.19; two tiles, 2 and 4 tokens 0.17 and 0.13.
//!
//! # Safety
//! All functions here require the instruction set of `P`; see [`Products`].

use super::activations::{Activations, BLOCK_GROUPS, Block};
use super::numbers::{LANES, Stored};
use super::output::Output;
use super::packed::Packed;
use super::products::{Products, TileGroup};
use w4pack_format::group::{GROUP, WORDS};

/// Bytes of unpacked rows that stay in the second-level cache while tokens pass over them.
const PANEL_BYTES: usize = 256 << 10;

/// Sixteen rows, unpacked. What stands for rows behind the last one is multiplied, and not used.
struct Tile {
    /// The groups of a row in order.
    codes: Vec<TileGroup>,
    /// By group, of the sixteen rows.
    steps: Vec<[f32; LANES]>,
}

/// Multiplies rows, as many as `out` has, with all of `x`.
#[inline(always)]
pub(super) unsafe fn multiply<P: Products, S: Stored, const BYTES: usize>(
    rows: &Packed<'_, S>,
    x: &Activations<'_>,
    out: &mut Output<'_>,
) {
    let tile_bytes = rows.groups * (size_of::<TileGroup>() + size_of::<[f32; LANES]>());
    let mut panel: Vec<Tile> = Vec::new();
    for _ in 0..(PANEL_BYTES / tile_bytes).clamp(1, out.rows().div_ceil(LANES)) {
        let codes = vec![[[[0; 4]; LANES]; GROUP / 4]; rows.groups];
        panel.push(Tile { codes, steps: vec![[0.0; LANES]; rows.groups] });
    }
    for first in (0..out.rows()).step_by(LANES * panel.len()) {
        let tiles = (out.rows() - first).div_ceil(LANES).min(panel.len());
        // SAFETY: the instruction set of `P` is the caller's promise.
        unsafe {
            for (number, tile) in panel[..tiles].iter_mut().enumerate() {
                unpack::<P, S>(&rows.some(first + LANES * number, LANES), tile);
            }
            let mut token = 0;
            while token < x.tokens() {
                // The largest power of two that is left and allowed.
                let left = (x.tokens() - token).min(P::TILE_TOKENS);
                let tokens = 1 << left.ilog2();
                for (number, tile) in panel[..tiles].iter().enumerate() {
                    let row = first + LANES * number;
                    match tokens {
                        8.. => some::<P, 8, BYTES>(tile, row, x, token, out),
                        4 => some::<P, 4, BYTES>(tile, row, x, token, out),
                        2 => some::<P, 2, BYTES>(tile, row, x, token, out),
                        _ => some::<P, 1, BYTES>(tile, row, x, token, out),
                    }
                }
                token += tokens;
            }
        }
    }
}

/// Unpacks sixteen rows or fewer.
#[inline(always)]
unsafe fn unpack<P: Products, S: Stored>(rows: &Packed<'_, S>, tile: &mut Tile) {
    let mut words: [&[[u32; WORDS]]; LANES] = [&[]; LANES];
    let mut steps: [&[S]; LANES] = [&[]; LANES];
    for (lane, (row_words, row_steps)) in rows.iter().enumerate() {
        (words[lane], steps[lane]) = (row_words.as_chunks().0, row_steps);
    }
    for lane in 1..LANES {
        if words[lane].is_empty() {
            (words[lane], steps[lane]) = (words[0], steps[0]);
        }
    }
    for (group, (codes, tile_steps)) in tile.codes.iter_mut().zip(&mut tile.steps).enumerate() {
        let mut column_steps = [S::default(); LANES];
        for lane in 0..LANES {
            column_steps[lane] = steps[lane][group];
        }
        // SAFETY: the instruction set of `P` is the caller's promise.
        unsafe { S::load::<P>(&column_steps).store(tile_steps) };
        for word in 0..WORDS {
            let mut column = [0; LANES];
            for lane in 0..LANES {
                column[lane] = words[lane][group][word];
            }
            for lane in 0..LANES {
                codes[2 * word][lane] = (column[lane] & 0x0f0f_0f0f).to_le_bytes();
                codes[2 * word + 1][lane] = (column[lane] >> 4 & 0x0f0f_0f0f).to_le_bytes();
            }
        }
    }
}

/// One tile, rows `row` and on of `out`, times `T` tokens from `token` on.
#[inline(always)]
unsafe fn some<P: Products, const T: usize, const BYTES: usize>(
    tile: &Tile,
    row: usize,
    x: &Activations<'_>,
    token: usize,
    out: &mut Output<'_>,
) {
    let mut blocks: [&[Block]; T] = [&[]; T];
    for t in 0..T {
        blocks[t] = x.token(token + t);
    }
    // SAFETY: the instruction set of `P` is the caller's promise.
    unsafe {
        let mut sums = [[P::splat(0.0); T]; BLOCK_GROUPS];
        for (number, (codes, steps)) in tile.codes.iter().zip(&tile.steps).enumerate() {
            let (block, group) = (number / BLOCK_GROUPS, number % BLOCK_GROUPS);
            let mut x = [&blocks[0][block]; T];
            for t in 0..T {
                x[t] = &blocks[t][block];
            }
            let steps = P::load(steps);
            let group_sums = P::tile_sums::<T, BYTES>(codes, group, x);
            for t in 0..T {
                let values = group_sums[t].multiply(steps).multiply(P::splat(x[t].steps[group]));
                sums[group][t] = sums[group][t].add(values);
            }
        }
        for half in [8, 4, 2, 1] {
            for i in 0..half {
                for t in 0..T {
                    sums[i][t] = sums[i][t].add(sums[half + i][t]);
                }
            }
        }
        for t in 0..T {
            let mut outputs = [0.0; LANES];
            sums[0][t].store(&mut outputs);
            out.put_lanes(token + t, row, &outputs);
        }
    }
}
