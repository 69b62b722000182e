//! How the forward pass multiplies.
//!
//! The pass is described once, in `forward.rs`; an [`Arithmetic`] says how its few heavy
//! operations are done. [`Plain`] does them in loops anybody can check, in f32 or in f64. The CPU
//! device has another one, of kernels and threads.

use crate::number::Number;
use crate::weights::Matrix;
use std::marker::PhantomData;
use w4pack_format::group::{GROUP, unpack};
use w4pack_kernels::cpu::Values;

/// The heavy operations of a forward pass. Every implementation sums in an order of its own that
/// depends on nothing but the lengths of the operands: not on the batch, nor on threads.
pub trait Arithmetic: Sync {
    /// What the pass is computed in.
    type Number: Number;

    /// Writes row `row` of `table` to `out` (`[columns]`).
    fn table_row(&self, table: &Matrix, row: usize, out: &mut [Self::Number]);

    /// `x·Wᵀ`: `x` is `[tokens, columns]`, the result `[tokens, rows]`.
    fn linear(&self, weight: &Matrix, x: &[Self::Number]) -> Vec<Self::Number>;

    /// The dot product of two equally long slices.
    fn dot(&self, a: &[Self::Number], b: &[Self::Number]) -> Self::Number;

    /// `out += factor·x`, element by element.
    fn add_scaled(&self, factor: Self::Number, x: &[Self::Number], out: &mut [Self::Number]);

    /// Calls `work` with the number and the numbers of every row of `rows` (`[_, width]`), in any
    /// order and perhaps on several threads.
    fn for_each_row(
        &self,
        rows: &mut [Self::Number],
        width: usize,
        work: impl Fn(usize, &mut [Self::Number]) + Sync + Send,
    );
}

/// Slow and obviously right: sums from left to right, one thread.
#[derive(Debug, Default, Clone, Copy)]
pub struct Plain<N>(PhantomData<N>);

impl<N: Number> Plain<N> {
    /// Plain arithmetic in `N`.
    pub fn new() -> Self {
        Self(PhantomData)
    }
}

impl<N: Number> Arithmetic for Plain<N> {
    type Number = N;

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
                out[token * rows + row] = self.dot(&values, &x[token * columns..][..columns]);
            }
        }
        out
    }

    fn dot(&self, a: &[N], b: &[N]) -> N {
        let mut sum = N::default();
        for (&a, &b) in a.iter().zip(b) {
            sum += a * b;
        }
        sum
    }

    fn add_scaled(&self, factor: N, x: &[N], out: &mut [N]) {
        for (&x, out) in x.iter().zip(out) {
            *out += factor * x;
        }
    }

    fn for_each_row(&self, rows: &mut [N], width: usize, work: impl Fn(usize, &mut [N])) {
        for (number, row) in rows.chunks_exact_mut(width).enumerate() {
            work(number, row);
        }
    }
}
