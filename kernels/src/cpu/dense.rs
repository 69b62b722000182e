//! Rows of plain values, in f32.
//!
//! ```text
//! output(row, x) =
//!     lane[0..16] = 0
//!     for each chunk of 16 elements: lane[i] = lane[i] + w[i]·x[i]
//!     add the lanes in halves: 8 + 8, 4 + 4, 2 + 2, 1 + 1
//! ```
//! Tried: leaving the vectors to the compiler (plain arrays, compiled for AVX2 and AVX-512) is
//! several times slower. And no closure may touch lanes: a closure called inside the standard
//! library is compiled without the leaf's instruction set, so every operation becomes a call.
//!
//! # Safety
//! All functions here require the instruction set of `N`; see [`Numbers`].

use super::activations::Activations;
use super::matrix::Matrix;
use super::numbers::{LANES, Numbers};
use super::output::Output;

/// Activations multiplied with one pass over a row. Four keep the partial sums in registers.
const BLOCK: usize = 4;

/// Multiplies the rows of `matrix` from `first_row` on, as many as `out` has, with all of `x`.
#[inline(always)]
pub(super) unsafe fn multiply<N: Numbers>(
    matrix: &Matrix<'_>,
    first_row: usize,
    x: &Activations<'_>,
    out: &mut Output<'_>,
) {
    let columns = matrix.columns();
    let (blocks, rest) = {
        let whole = x.tokens() / BLOCK * BLOCK;
        x.values.split_at(whole * columns)
    };
    let mut values = vec![0.0; columns];
    for row in 0..out.rows() {
        matrix.row_values(first_row + row, &mut values);
        let mut token = 0;
        // SAFETY: the instruction set of `N` is the caller's promise.
        unsafe {
            for x in blocks.chunks_exact(BLOCK * columns) {
                let mut tokens: [&[f32]; BLOCK] = [&[]; BLOCK];
                for (tokens, x) in tokens.iter_mut().zip(x.chunks_exact(columns)) {
                    *tokens = x;
                }
                for output in dense::<N, BLOCK>(&values, tokens) {
                    out.put(token, row, &[output]);
                    token += 1;
                }
            }
            for x in rest.chunks_exact(columns) {
                out.put(token, row, &dense::<N, 1>(&values, [x]));
                token += 1;
            }
        }
    }
}

/// Dot products of one row of values with `T` activations, of any equal length.
#[inline(always)]
unsafe fn dense<N: Numbers, const T: usize>(values: &[f32], x: [&[f32]; T]) -> [f32; T] {
    let (chunks, last) = values.as_chunks::<LANES>();
    let x = x.map(|x| {
        let (x_chunks, x_last) = x.as_chunks::<LANES>();
        (&x_chunks[..chunks.len()], x_last)
    });
    let mut sums = [0.0; T];
    // SAFETY: the instruction set of `N` is the caller's promise.
    unsafe {
        let mut lanes = [N::splat(0.0); T];
        for (chunk, values) in chunks.iter().enumerate() {
            let values = N::load(values);
            for t in 0..T {
                lanes[t] = values.multiply_add(N::load(&x[t].0[chunk]), lanes[t]);
            }
        }
        for t in 0..T {
            let tail: f32 = last.iter().zip(x[t].1).map(|(&value, &x)| value * x).sum();
            sums[t] = lanes[t].sum() + tail;
        }
    }
    sums
}
