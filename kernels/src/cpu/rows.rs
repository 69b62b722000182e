//! Packed rows, one at a time, for a few tokens: how a decoded token is multiplied.
//!
//! ```text
//! output(row, x) =
//!     lane[0..16] = 0
//!     for each block of 16 groups, for each group g of it:
//!         sum[g]  = Σ code·integer                        exact
//!         lane[g] = lane[g] + (sum[g]·step[g])·x step[g]
//!     add the lanes in halves: 8 + 8, 4 + 4, 2 + 2, 1 + 1
//! ```
//! Every operation on f32 is rounded by itself, so that all instruction sets, and `tiles.rs`, give
//! the same bits. The words of a row are read once for all tokens; memory is what limits this.
//!
//! From the second-level cache a block of 288 bytes takes 10 to 11 ns (Zen 4, AVX-512; AVX2 14), from memory 12 to 15.
//!
//! Tried: two, four and eight rows at once lose 3, 18 and 29 % of the speed of reading from memory (a
//! Xeon); two on Zen 4 gain 4 to 8 % in the second-level cache and lose 2 % from memory. Words asked for once more, into
//! the first-level cache 0.5 to 1 KB ahead: 0.8 to 0.97 of the speed without (Zen 4).
//!
//! # Safety
//! All functions here require the instruction set of `P`; see [`Products`].

use super::activations::{Activations, BLOCK_GROUPS, Block};
use super::numbers::{LANES, Stored};
use super::output::Output;
use super::packed::Packed;
use super::products::{Products, RowWords};
use w4pack_format::group::WORDS;

/// How far ahead of the multiplication words are asked for, in bytes.
///
/// Of the speed of reading alone (25.6 GB/s, Zen 4, one thread): into the first-level cache 2 KB
/// ahead 66 %, 16 KB 57 %; into the second-level one 4 KB ahead 74 %, 8 KB 80 %, 16 KB 81 %; without
/// 59 %. A Xeon, two threads, whole tokens of an E2B: into the first-level cache 2 KB ahead 0.92 of this, 8 KB
/// 0.97; into the second-level one 2 KB 0.89, 4 KB 0.95, 16 KB 0.90; past the caches 0.68; without 0.67.
const AHEAD: usize = 8192;

/// Multiplies rows, as many as `out` has, with all of `x`.
#[inline(always)]
pub(super) unsafe fn multiply<P: Products, S: Stored, const BYTES: usize>(
    rows: &Packed<'_, S>,
    x: &Activations<'_>,
    out: &mut Output<'_>,
) {
    let mut token = 0;
    while token < x.tokens() {
        let tokens = (x.tokens() - token).min(4);
        // SAFETY: the instruction set of `P` is the caller's promise.
        unsafe {
            match tokens {
                1 => some::<P, S, 1, BYTES>(rows, x, token, out),
                2 => some::<P, S, 2, BYTES>(rows, x, token, out),
                3 => some::<P, S, 3, BYTES>(rows, x, token, out),
                _ => some::<P, S, 4, BYTES>(rows, x, token, out),
            }
        }
        token += tokens;
    }
}

/// The same for `T` tokens from `token` on.
#[inline(always)]
unsafe fn some<P: Products, S: Stored, const T: usize, const BYTES: usize>(
    rows: &Packed<'_, S>,
    x: &Activations<'_>,
    token: usize,
    out: &mut Output<'_>,
) {
    let mut blocks: [&[Block]; T] = [&[]; T];
    for t in 0..T {
        blocks[t] = x.token(token + t);
    }
    for (row, (words, steps)) in rows.iter().enumerate() {
        // SAFETY: the instruction set of `P` is the caller's promise.
        let outputs = unsafe { dot::<P, S, T, BYTES>(words, steps, blocks) };
        for t in 0..T {
            out.put(token + t, row, &[outputs[t]]);
        }
    }
}

/// One row times `T` tokens.
#[inline(always)]
unsafe fn dot<P: Products, S: Stored, const T: usize, const BYTES: usize>(
    words: &[u32],
    steps: &[S],
    x: [&[Block]; T],
) -> [f32; T] {
    let (words, last_words) = words.as_chunks::<{ BLOCK_GROUPS * WORDS }>();
    let (steps, last_steps) = steps.as_chunks::<LANES>();
    let mut outputs = [0.0; T];
    // SAFETY: the instruction set of `P` is the caller's promise.
    unsafe {
        let mut lanes = [P::splat(0.0); T];
        for (number, (words, steps)) in words.iter().zip(steps).enumerate() {
            for line in 0..size_of::<RowWords>() / 64 {
                P::prefetch(words.as_ptr().cast::<u8>().wrapping_add(AHEAD + 64 * line));
            }
            P::prefetch(steps.as_ptr().cast::<u8>().wrapping_add(AHEAD / 8));
            add_block::<P, S, T, BYTES>(&mut lanes, words, steps, x, number);
        }
        if !last_words.is_empty() {
            // Absent groups have a step of 0, here and in the activations.
            let mut all_words = [0; BLOCK_GROUPS * WORDS];
            for (word, &last) in all_words.iter_mut().zip(last_words) {
                *word = last;
            }
            let mut all_steps = [S::default(); LANES];
            for (step, &last) in all_steps.iter_mut().zip(last_steps) {
                *step = last;
            }
            add_block::<P, S, T, BYTES>(&mut lanes, &all_words, &all_steps, x, words.len());
        }
        for t in 0..T {
            outputs[t] = lanes[t].sum();
        }
    }
    outputs
}

/// Adds block `number` of a row to the lanes of every token.
#[inline(always)]
unsafe fn add_block<P: Products, S: Stored, const T: usize, const BYTES: usize>(
    lanes: &mut [P; T],
    words: &RowWords,
    steps: &[S; LANES],
    x: [&[Block]; T],
    number: usize,
) {
    let mut blocks = [&x[0][number]; T];
    for t in 0..T {
        blocks[t] = &x[t][number];
    }
    // SAFETY: the instruction set of `P` is the caller's promise.
    unsafe {
        let steps = S::load::<P>(steps);
        let sums = P::row_sums::<T, BYTES>(words, blocks);
        for t in 0..T {
            let values = sums[t].multiply(steps).multiply(P::load(&blocks[t].steps));
            lanes[t] = lanes[t].add(values);
        }
    }
}
