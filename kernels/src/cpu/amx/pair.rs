//! Sixteen tokens times two tiles of sixteen rows: the unit's sums, scaled and added in order.
//!
//! Lanes come one after another, in the order in which their halves are added (0 + 8, 4 + 12, and
//! those two; 2 + 10, 6 + 14, …), so that at any time no more than four sums wait for their other
//! half. The unit works on some groups of a lane while the ones before are scaled.

use super::SIDE;
use super::rows::RowTile;
use super::tokens::Tokens;
use super::unit::{Sums, Unit};
use crate::cpu::activations::BLOCK_GROUPS;
use crate::cpu::numbers::{LANES, Numbers};
use crate::cpu::output::Output;
use std::arch::x86_64::*;

/// Groups of a lane that are scaled together: their sums, twice, stay in the first-level cache.
const AT_ONCE: usize = 4;

/// Sums of a pair of tiles of rows for sixteen tokens.
#[repr(C, align(64))]
struct Outputs([[[f32; LANES]; SIDE]; 2]);

/// Room for what a pair needs between its operands and its outputs.
pub struct Room {
    /// Of the groups at work and of those before.
    sums: [[[Sums; 2]; AT_ONCE]; 2],
    /// The lane at work; at last the outputs.
    lane: Outputs,
    /// Sums of 1, 2, 4 and 8 lanes that wait for as many others.
    waiting: [Outputs; 4],
}

impl Default for Room {
    fn default() -> Self {
        const OUTPUTS: Outputs = Outputs([[[0.0; LANES]; SIDE]; 2]);
        const SUMS: Sums = Sums { high: [[0; SIDE]; SIDE], low: [[0; SIDE]; SIDE] };
        Self { sums: [[[SUMS; 2]; AT_ONCE]; 2], lane: OUTPUTS, waiting: [OUTPUTS; 4] }
    }
}

/// Neighbouring groups of a lane.
#[derive(Clone, Copy)]
struct Run {
    /// The how manieth lane it is.
    turn: usize,
    /// The first group.
    first: usize,
    groups: usize,
    begins_lane: bool,
    ends_lane: bool,
}

/// The runs of rows of `groups` groups, in order. A lane without groups is a run without groups.
#[inline(always)]
fn runs(groups: usize) -> impl Iterator<Item = Run> {
    (0..LANES).flat_map(move |turn| {
        let lane = usize::from((turn as u8).reverse_bits() >> 4);
        let in_lane = (groups + LANES - 1 - lane) / LANES;
        (0..in_lane.max(1)).step_by(AT_ONCE).map(move |begin| Run {
            turn,
            first: lane + LANES * begin,
            groups: (in_lane - begin).min(AT_ONCE),
            begins_lane: begin == 0,
            ends_lane: begin + AT_ONCE >= in_lane,
        })
    })
}

/// Multiplies, and writes outputs from row `row` on.
///
/// # Safety
/// Requires AVX-512 F, BW and VNNI and the unit.
#[inline(always)]
pub unsafe fn multiply<U: Unit, const BYTES: usize>(
    unit: &U,
    tokens: Tokens<'_>,
    rows: [RowTile<'_>; 2],
    room: &mut Room,
    row: usize,
    out: &mut Output<'_>,
) {
    let mut work = Work { tokens, rows, room };
    let mut before: Option<Run> = None;
    let mut buffer = 0;
    // SAFETY: the instruction sets are the caller's promise.
    unsafe {
        for run in runs(tokens.bytes.len()) {
            for number in 0..run.groups {
                let group = run.first + LANES * number;
                let codes = [&rows[0].codes[group], &rows[1].codes[group]];
                let sums = &mut work.room.sums[buffer][number];
                unit.products::<BYTES>(&tokens.bytes[group], codes, sums);
                if let Some(before) = before {
                    let part = |number: usize| number * tokens.count / run.groups;
                    work.scale::<BYTES>(before, 1 - buffer, part(number)..part(number + 1));
                }
            }
            if let (Some(before), 0) = (before, run.groups) {
                work.scale::<BYTES>(before, 1 - buffer, 0..tokens.count);
            }
            before = Some(run);
            buffer = 1 - buffer;
        }
        if let Some(before) = before {
            work.scale::<BYTES>(before, 1 - buffer, 0..tokens.count);
        }
    }
    for (tile, outputs) in work.room.lane.0.iter().enumerate() {
        let row = row + SIDE * tile;
        let rows = out.rows().saturating_sub(row).min(LANES);
        for (token, outputs) in outputs[..tokens.count].iter().enumerate() {
            match rows {
                0 => {}
                LANES => out.put_all(tokens.first + token, row, outputs),
                _ => out.put(tokens.first + token, row, &outputs[..rows]),
            }
        }
    }
}

/// A pair at work.
struct Work<'a> {
    tokens: Tokens<'a>,
    rows: [RowTile<'a>; 2],
    room: &'a mut Room,
}

impl Work<'_> {
    /// Adds a run's sums to its lane, and the lane, if it ends, to what has waited for it; for some
    /// of the tokens.
    #[inline(always)]
    unsafe fn scale<const BYTES: usize>(
        &mut self,
        run: Run,
        buffer: usize,
        tokens: std::ops::Range<usize>,
    ) {
        // SAFETY: the instruction sets are the caller's promise.
        unsafe {
            match run.groups {
                0 => self.scale_groups::<0, BYTES>(run, buffer, tokens),
                1 => self.scale_groups::<1, BYTES>(run, buffer, tokens),
                2 => self.scale_groups::<2, BYTES>(run, buffer, tokens),
                3 => self.scale_groups::<3, BYTES>(run, buffer, tokens),
                _ => self.scale_groups::<AT_ONCE, BYTES>(run, buffer, tokens),
            }
        }
    }

    #[inline(always)]
    unsafe fn scale_groups<const GROUPS: usize, const BYTES: usize>(
        &mut self,
        run: Run,
        buffer: usize,
        tokens: std::ops::Range<usize>,
    ) {
        // As many sums wait as the number of lanes before has ones in front of its lowest zero.
        let halves = if run.ends_lane { run.turn.trailing_ones() as usize } else { 0 };
        // SAFETY: the instruction sets are the caller's promise.
        unsafe {
            for tile in 0..2 {
                let mut steps = [__m512::splat(0.0); GROUPS];
                let mut x_steps = [&[0.0; SIDE]; GROUPS];
                for number in 0..GROUPS {
                    let group = run.first + LANES * number;
                    steps[number] = __m512::load(&self.rows[tile].steps[group].0);
                    x_steps[number] = &self.tokens.steps[group].0;
                }
                for token in tokens.clone() {
                    let mut values = [__m512::splat(0.0); GROUPS];
                    for number in 0..GROUPS {
                        let sums = integers::<BYTES>(&self.room.sums[buffer][number][tile], token);
                        let sums = _mm512_cvtepi32_ps(sums).multiply(steps[number]);
                        values[number] = sums.multiply(__m512::splat(x_steps[number][token]));
                    }
                    // A lane begins as 0, which is added at the very end.
                    let mut lane = match (run.begins_lane, values.first()) {
                        (true, None) => __m512::splat(0.0),
                        (true, Some(&first)) => first,
                        (false, None) => __m512::load(&self.room.lane.0[tile][token]),
                        (false, Some(&first)) => {
                            __m512::load(&self.room.lane.0[tile][token]).add(first)
                        }
                    };
                    for &value in values.iter().skip(1) {
                        lane = lane.add(value);
                    }
                    for waiting in &self.room.waiting[..halves] {
                        lane = __m512::load(&waiting.0[tile][token]).add(lane);
                    }
                    let place = match run.ends_lane && run.turn + 1 < LANES {
                        true => &mut self.room.waiting[halves],
                        false => &mut self.room.lane,
                    };
                    lane.store(&mut place.0[tile][token]);
                }
            }
        }
    }
}

/// The sums of a token's integers with sixteen rows' codes. The high ones fit 16 bits.
#[inline(always)]
unsafe fn integers<const BYTES: usize>(sums: &Sums, token: usize) -> __m512i {
    // SAFETY: the caller guarantees AVX-512 F, BW and VNNI; loads are of sixteen sums.
    unsafe {
        let high = _mm512_loadu_si512(sums.high[token].as_ptr().cast());
        if BYTES == 1 {
            return high;
        }
        let low = _mm512_loadu_si512(sums.low[token].as_ptr().cast());
        // 256 times the lower half of a high sum, and 0 times its sign.
        _mm512_dpwssd_epi32(low, high, _mm512_set1_epi32(256))
    }
}

const _: () = assert!(BLOCK_GROUPS == LANES && SIDE == LANES);
