//! The algorithm, once, for every implementation of [`Lanes`].
//!
//! ```text
//! output(row, x) =
//!     lane[0..16] = 0
//!     for each group of 32:                       codes k[0..32), step s
//!         part[i] = k[i]·x[i] + k[16+i]·x[16+i]   the sum inside the group first,
//!         lane[i] = lane[i] + part[i]·s           the step last
//!     add the lanes in halves: 8 + 8, 4 + 4, 2 + 2, 1 + 1
//! ```
//! Rows of plain values do the same with `lane[i] += w[i]·x[i]` over chunks of 16.
//!
//! Tried: leaving the vectors to the compiler (plain arrays, compiled for AVX2 and AVX-512) is
//! several times slower. And no closure may touch lanes: a closure called inside the standard
//! library is compiled without the leaf's instruction set, so every operation becomes a call.
//!
//! # Safety
//! All functions here require the instruction set of `L`; see [`Lanes`].

use super::lanes::{LANES, Lanes};
use super::matrix::Matrix;
use w4pack_format::group::WORDS;

/// Activations multiplied with one pass over a row. Four keep the partial sums in registers.
const BLOCK: usize = 4;

/// Multiplies rows `first_row..` of `matrix` with the activations `x` (`[batch, columns]`) into
/// `out` (`[rows, batch]`; its length says how many rows).
#[inline(always)]
pub(super) unsafe fn multiply<L: Lanes>(
    matrix: &Matrix<'_>,
    first_row: usize,
    x: &[f32],
    out: &mut [f32],
) {
    let columns = matrix.columns();
    let batch = x.len() / columns;
    let mut codes = Vec::new();
    let mut steps = Vec::new();
    let mut values = Vec::new();
    for (row, out) in (first_row..).zip(out.chunks_exact_mut(batch)) {
        // SAFETY: the instruction set of `L` is the caller's promise.
        unsafe {
            if let Some((words, steps)) = matrix.row_codes(row, &mut steps) {
                if batch < BLOCK {
                    for (x, out) in x.chunks_exact(columns).zip(out) {
                        [*out] = grouped::<_, L, 1>(words, steps, [x]);
                    }
                    continue;
                }
                // Enough activations: unpack the row once for all of them.
                codes.resize(words.len(), [[0.0; LANES]; 2]);
                for (words, codes) in words.iter().zip(&mut codes) {
                    let [low, high]: [L; 2] = words.load();
                    low.store(&mut codes[0]);
                    high.store(&mut codes[1]);
                }
                for (x, out) in blocks(x, columns, out) {
                    *out = grouped::<_, L, BLOCK>(&codes, steps, x);
                }
                for (x, out) in rest(x, columns, out) {
                    [*out] = grouped::<_, L, 1>(&codes, steps, [x]);
                }
            } else {
                values.resize(columns, 0.0);
                matrix.row_values(row, &mut values);
                for (x, out) in blocks(x, columns, out) {
                    *out = dense::<L, BLOCK>(&values, x);
                }
                for (x, out) in rest(x, columns, out) {
                    [*out] = dense::<L, 1>(&values, [x]);
                }
            }
        }
    }
}

/// Whole blocks of activations with their outputs.
#[inline(always)]
fn blocks<'a>(
    x: &'a [f32],
    columns: usize,
    out: &'a mut [f32],
) -> impl Iterator<Item = ([&'a [f32]; BLOCK], &'a mut [f32; BLOCK])> {
    x.chunks_exact(BLOCK * columns)
        .map(move |x| std::array::from_fn(|token| &x[token * columns..][..columns]))
        .zip(out.as_chunks_mut().0)
}

/// The activations behind the last whole block with their outputs.
#[inline(always)]
fn rest<'a>(
    x: &'a [f32],
    columns: usize,
    out: &'a mut [f32],
) -> impl Iterator<Item = (&'a [f32], &'a mut f32)> {
    let done = out.len() / BLOCK * BLOCK;
    x[done * columns..].chunks_exact(columns).zip(&mut out[done..])
}

/// The 32 codes of a group, packed or not.
trait Codes<L> {
    /// The codes as numbers, elements 0..16 and 16..32.
    unsafe fn load(&self) -> [L; 2];
}

impl<L: Lanes> Codes<L> for [u32; WORDS] {
    #[inline(always)]
    unsafe fn load(&self) -> [L; 2] {
        // SAFETY: the instruction set of `L` is the caller's promise.
        unsafe { [L::codes(self[0], self[1]), L::codes(self[2], self[3])] }
    }
}

impl<L: Lanes> Codes<L> for [[f32; LANES]; 2] {
    #[inline(always)]
    unsafe fn load(&self) -> [L; 2] {
        // SAFETY: the instruction set of `L` is the caller's promise.
        unsafe { [L::load(&self[0]), L::load(&self[1])] }
    }
}

/// Dot products of one row of codes and steps with `T` activations.
#[inline(always)]
unsafe fn grouped<C: Codes<L>, L: Lanes, const T: usize>(
    groups: &[C],
    steps: &[f32],
    x: [&[f32]; T],
) -> [f32; T] {
    let x = x.map(|x| &x.as_chunks::<LANES>().0.as_chunks::<2>().0[..groups.len()]);
    let mut sums = [0.0; T];
    // SAFETY: the instruction set of `L` is the caller's promise.
    unsafe {
        let mut lanes = [L::splat(0.0); T];
        for (group, (codes, &step)) in groups.iter().zip(steps).enumerate() {
            let [low, high] = codes.load();
            let step = L::splat(step);
            for t in 0..T {
                let part = low.multiply(L::load(&x[t][group][0]));
                let part = high.multiply_add(L::load(&x[t][group][1]), part);
                lanes[t] = part.multiply_add(step, lanes[t]);
            }
        }
        for t in 0..T {
            sums[t] = sum(lanes[t]);
        }
    }
    sums
}

/// Dot products of one row of values with `T` activations, of any equal length.
#[inline(always)]
pub(super) unsafe fn dense<L: Lanes, const T: usize>(values: &[f32], x: [&[f32]; T]) -> [f32; T] {
    let (chunks, last) = values.as_chunks::<LANES>();
    let x = x.map(|x| {
        let (x_chunks, x_last) = x.as_chunks::<LANES>();
        (&x_chunks[..chunks.len()], x_last)
    });
    let mut sums = [0.0; T];
    // SAFETY: the instruction set of `L` is the caller's promise.
    unsafe {
        let mut lanes = [L::splat(0.0); T];
        for (chunk, values) in chunks.iter().enumerate() {
            let values = L::load(values);
            for t in 0..T {
                lanes[t] = values.multiply_add(L::load(&x[t].0[chunk]), lanes[t]);
            }
        }
        for t in 0..T {
            let tail: f32 = last.iter().zip(x[t].1).map(|(&value, &x)| value * x).sum();
            sums[t] = sum(lanes[t]) + tail;
        }
    }
    sums
}

/// The sum of the lanes, in halves.
#[inline(always)]
unsafe fn sum<L: Lanes>(lanes: L) -> f32 {
    let mut sums = [0.0; LANES];
    // SAFETY: the instruction set of `L` is the caller's promise.
    unsafe { lanes.store(&mut sums) };
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            sums[i] += sums[half + i];
        }
    }
    sums[0]
}

/// `out += factor·x`, element by element.
#[inline(always)]
pub(super) unsafe fn add_scaled<L: Lanes>(factor: f32, x: &[f32], out: &mut [f32]) {
    let (x_chunks, x_last) = x.as_chunks::<LANES>();
    let (out_chunks, out_last) = out.as_chunks_mut::<LANES>();
    // SAFETY: the instruction set of `L` is the caller's promise.
    unsafe {
        for (x, out) in x_chunks.iter().zip(out_chunks) {
            L::load(x).multiply_add(L::splat(factor), L::load(out)).store(out);
        }
    }
    for (x, out) in x_last.iter().zip(out_last) {
        *out += factor * x;
    }
}
