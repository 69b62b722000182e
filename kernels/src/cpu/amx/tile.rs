//! Sixteen tokens times sixteen rows: the unit's sums, scaled and added in order.
//!
//! Lanes come one after another, as `order.rs` says, so that the lane at work stays in registers, and at
//! any time no more than four sums wait for their other half.
//!
//! Three groups are at work: one is multiplied, the sums of the one before leave the unit, and those of
//! the one before that are scaled. So nobody waits for the 52 cycles that a product takes.

use super::SIDE;
use super::rows::RowTile;
use super::tokens::Tokens;
use super::unit::{Sums, Unit};
use crate::cpu::numbers::{LANES, Numbers};
use crate::cpu::output::Output;
use std::arch::x86_64::*;

/// A lane of all outputs: `[tokens][rows]`.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Lane([[f32; LANES]; SIDE]);

/// What a tile needs between its operands and its outputs.
pub struct Room {
    /// Of the last two groups.
    sums: [Sums; 2],
    /// Sums of 1, 2, 4 and 8 lanes that wait for as many others.
    waiting: [Lane; 4],
    /// 256 in every place: not known to the compiler, which would make two operations of one.
    weight: [i32; LANES],
}

impl Default for Room {
    fn default() -> Self {
        const SUMS: Sums = Sums { high: [[0; SIDE]; SIDE], low: [[0; SIDE]; SIDE] };
        let waiting = [Lane([[0.0; LANES]; SIDE]); 4];
        Self { sums: [SUMS; 2], waiting, weight: [256; LANES] }
    }
}

/// Multiplies, and writes outputs from row `row` on. `ends` are the order's, `BYTES` is as in `products/`.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx2,fma,f16c")]
pub unsafe fn multiply<U: Unit, const BYTES: usize>(
    unit: &mut U,
    tokens: Tokens<'_>,
    rows: RowTile<'_>,
    ends: &[usize],
    room: &mut Room,
    row: usize,
    out: &mut Output<'_>,
) {
    let Room { sums, waiting, weight } = room;
    let groups = ends.len();
    // SAFETY: the unit is the caller's promise, and this function compiled for the instruction set.
    unsafe {
        let weight = _mm512_loadu_si512(weight.as_ptr().cast());
        let mut lane = [__m512::splat(0.0); SIDE];
        let mut lanes = 0;
        for step in 0..groups + 2 {
            if step < groups {
                unit.multiply::<BYTES>(step % 2, &tokens.bytes[step], &rows.codes[step]);
            }
            if (1..=groups).contains(&step) {
                unit.store::<BYTES>((step - 1) % 2, &mut sums[(step - 1) % 2]);
            }
            if step < 2 {
                continue;
            }
            let scaled = step - 2;
            let steps = __m512::load(&rows.steps[scaled].0);
            let x_steps = &tokens.steps[scaled].0;
            let sums = &sums[step % 2];
            for token in 0..SIDE {
                let values = sum::<BYTES>(sums, token, weight).multiply(steps);
                lane[token] = lane[token].add(values.multiply(__m512::splat(x_steps[token])));
            }
            for _ in 0..ends[scaled] {
                end(&mut lane, lanes, waiting);
                lanes += 1;
            }
        }
        for token in 0..tokens.count {
            let mut outputs = [0.0; LANES];
            lane[token].store(&mut outputs);
            out.put_lanes(tokens.first + token, row, &outputs);
        }
    }
}

/// Adds the lane that ends to what has waited for it: as many sums as the number of lanes before has
/// ones in front of its lowest zero. Then it waits itself, and the next begins; unless it is the last.
#[inline(always)]
unsafe fn end(lane: &mut [__m512; SIDE], lanes_before: usize, waiting: &mut [Lane; 4]) {
    let halves = lanes_before.trailing_ones() as usize;
    // SAFETY: the instruction set is the caller's promise.
    unsafe {
        for waiting in waiting.iter().take(halves) {
            for token in 0..SIDE {
                lane[token] = __m512::load(&waiting.0[token]).add(lane[token]);
            }
        }
        if let Some(waiting) = waiting.get_mut(halves) {
            for token in 0..SIDE {
                lane[token].store(&mut waiting.0[token]);
                lane[token] = __m512::splat(0.0);
            }
        }
    }
}

/// The sums of a token's integers with sixteen rows' codes. The high ones fit 16 bits.
#[inline(always)]
unsafe fn sum<const BYTES: usize>(sums: &Sums, token: usize, weight: __m512i) -> __m512 {
    // SAFETY: the instruction set is the caller's promise; loads are of sixteen sums.
    unsafe {
        let mut sum = _mm512_loadu_si512(sums.high[token].as_ptr().cast());
        if BYTES == 2 {
            let low = _mm512_loadu_si512(sums.low[token].as_ptr().cast());
            // 256 times the lower half of a high sum, and 0 times its sign.
            sum = _mm512_dpwssd_epi32(low, sum, weight);
        }
        _mm512_cvtepi32_ps(sum)
    }
}
