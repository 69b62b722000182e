//! How the forward pass multiplies.
//!
//! The pass is described once, in `forward.rs`; an [`Arithmetic`] says how its few heavy
//! operations are done. [`Plain`] does them in loops anybody can check, in f32 or in f64. The CPU
//! device has another one, of kernels and threads.

use crate::cache::LayerCache;
use crate::number::{Kept, Number};
use crate::weights::Matrix;
use std::marker::PhantomData;
use w4pack_format::group::{GROUP, unpack};
use w4pack_kernels::cpu::Values;

/// The heavy operations of a forward pass. Every implementation sums in an order of its own that
/// depends on nothing but the lengths of the operands: not on the batch, nor on threads.
pub trait Arithmetic: Sync {
    /// What the pass is computed in.
    type Number: Number;
    /// What keys and values are kept in.
    type Kept: Kept<Self::Number>;

    /// Writes row `row` of `table` to `out` (`[columns]`).
    fn table_row(&self, table: &Matrix, row: usize, out: &mut [Self::Number]);

    /// `x·Wᵀ`: `x` is `[tokens, columns]`, the result `[tokens, rows]`.
    fn linear(&self, weight: &Matrix, x: &[Self::Number]) -> Vec<Self::Number>;

    /// Takes what [`Arithmetic::linear`] has returned and nobody needs any longer: room for what it will
    /// return.
    fn take_back(&self, _numbers: Vec<Self::Number>) {}

    /// Attention of one sequence's `queries` (`[tokens, heads, head_dim]`), the first of which is at
    /// position `first`, into `out`, which has the same shape.
    ///
    /// A query head sees the visible positions of its key head: a softmax over its products with the
    /// keys (not scaled by anything), then the sum of the values under it.
    fn attend(
        &self,
        kept: &LayerCache<Self::Kept>,
        first: usize,
        heads: Heads,
        queries: &[Self::Number],
        out: &mut [Self::Number],
    );

    /// Divides every row of `width` numbers by its root mean square, then multiplies by the weight
    /// (by `w`, not by `1 + w` as earlier Gemmas did).
    fn rms_norm(
        &self,
        rows: &mut [Self::Number],
        width: usize,
        weight: Option<&[f32]>,
        epsilon: f64,
    );

    /// `gate = gelu(gate)·other`, element by element, with the tanh form of GELU.
    fn gelu_times(&self, gate: &mut [Self::Number], other: &[Self::Number]);

    /// `x = cap·tanh(x / cap)`, element by element.
    fn soft_cap(&self, numbers: &mut [Self::Number], cap: f64);
}

/// The heads of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heads {
    /// Query heads.
    pub queries: usize,
    /// Query heads that share a key head.
    pub queries_per_key: usize,
    /// Numbers of a head.
    pub head_dim: usize,
}

/// Slow and obviously right: sums from left to right, one thread.
/// Keys and values are kept as `S`; oracles of devices that keep them in f16 do so too.
#[derive(Debug, Default, Clone, Copy)]
pub struct Plain<N, S = N>(PhantomData<(N, S)>);

impl<N: Number, S: Kept<N>> Plain<N, S> {
    /// Plain arithmetic in `N`.
    pub fn new() -> Self {
        Self(PhantomData)
    }
}

impl<N: Number, S: Kept<N>> Arithmetic for Plain<N, S> {
    type Number = N;
    type Kept = S;

    fn table_row(&self, table: &Matrix, row: usize, out: &mut [N]) {
        let view = table.view();
        if let Values::Packed { words, round_to_bf16: false, .. } = view.values() {
            let groups = table.columns() / GROUP;
            let words = &words.as_chunks().0[row * groups..][..groups];
            for (group, (words, out)) in words.iter().zip(out.chunks_exact_mut(GROUP)).enumerate() {
                let step = N::from_f32(table.step(row, group));
                for (code, out) in unpack(words).into_iter().zip(out) {
                    *out = N::from_f32(code.into()) * step;
                }
            }
        } else {
            let mut values = vec![0.0; out.len()];
            view.row_values(row, &mut values);
            for (out, value) in out.iter_mut().zip(values) {
                *out = N::from_f32(value);
            }
        }
    }

    fn linear(&self, weight: &Matrix, x: &[N]) -> Vec<N> {
        let (rows, columns) = (weight.rows(), weight.columns());
        let tokens = x.len() / columns;
        let mut out = vec![N::default(); tokens * rows];
        let mut values = vec![N::default(); columns];
        for row in 0..rows {
            self.table_row(weight, row, &mut values);
            for token in 0..tokens {
                out[token * rows + row] = dot(&values, &x[token * columns..][..columns]);
            }
        }
        out
    }

    fn attend(
        &self,
        kept: &LayerCache<S>,
        first: usize,
        heads: Heads,
        queries: &[N],
        out: &mut [N],
    ) {
        let Heads { queries: count, queries_per_key, head_dim } = heads;
        let rows = queries.chunks_exact(head_dim).zip(out.chunks_exact_mut(head_dim));
        for (row, (query, out)) in rows.enumerate() {
            let (token, key_head) = (row / count, row % count / queries_per_key);
            let number = |numbers: &[S], i: usize| numbers[key_head * head_dim + i].number();
            let visible = kept.visible(first + token);
            let score = |position: usize| {
                let key = kept.key(position);
                let mut sum = N::default();
                for (i, &query) in query.iter().enumerate() {
                    sum += query * number(key, i);
                }
                sum
            };
            let mut weights: Vec<N> = visible.clone().map(score).collect();
            softmax(&mut weights);
            out.fill(N::default());
            for (position, weight) in visible.zip(weights) {
                let value = kept.value(position);
                for (i, out) in out.iter_mut().enumerate() {
                    *out += weight * number(value, i);
                }
            }
        }
    }

    fn rms_norm(&self, rows: &mut [N], width: usize, weight: Option<&[f32]>, epsilon: f64) {
        let count = N::from_f64(width as f64);
        for row in rows.chunks_exact_mut(width) {
            let squares = dot(row, row);
            let root = (squares / count + N::from_f64(epsilon)).sqrt();
            let factor = N::from_f64(1.0) / root;
            for value in row.iter_mut() {
                *value = *value * factor;
            }
            for (value, &weight) in row.iter_mut().zip(weight.unwrap_or_default()) {
                *value = *value * N::from_f32(weight);
            }
        }
    }

    fn gelu_times(&self, gate: &mut [N], other: &[N]) {
        let number = N::from_f64;
        for (gate, &other) in gate.iter_mut().zip(other) {
            let x = *gate;
            let inner =
                number((2.0 / std::f64::consts::PI).sqrt()) * (x + number(0.044715) * x * x * x);
            *gate = number(0.5) * x * (number(1.0) + inner.tanh()) * other;
        }
    }

    fn soft_cap(&self, numbers: &mut [N], cap: f64) {
        let cap = N::from_f64(cap);
        for number in numbers {
            *number = (*number / cap).tanh() * cap;
        }
    }
}

/// The dot product of two equally long slices.
fn dot<N: Number>(a: &[N], b: &[N]) -> N {
    let mut sum = N::default();
    for (&a, &b) in a.iter().zip(b) {
        sum += a * b;
    }
    sum
}

/// Exponentials of the scores, divided by their sum.
pub(crate) fn softmax<N: Number>(scores: &mut [N]) {
    let mut largest = scores[0];
    for &score in scores.iter() {
        if score > largest {
            largest = score;
        }
    }
    let mut sum = N::default();
    for score in scores.iter_mut() {
        *score = (*score - largest).exp();
        sum += *score;
    }
    for score in scores.iter_mut() {
        *score = *score / sum;
    }
}
