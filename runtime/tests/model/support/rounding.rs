//! How far a card's logits may be from the exact ones, derived model by model.
//!
//! [`Rounded`] is the pass in f64 with every rounding that a card makes, drawn anew each time within
//! its bound:
//!
//! | what | off by at most |
//! |---|---|
//! | an activation of a product | 2^-21 of the largest of its row (22 bits are kept) |
//! | a sum in f32 of n products | 2^-23 √n of the larger of the sum and the root of its squares |
//! | a norm, GELU, the softcap | 2^-21 of itself |
//! | a query, a weight of attention | [`Roundings`]: 2^-21 of itself, or 2^-11; a weight also 2^-25 of the largest |
//! | a key or a value | as the cache keeps it: f16, bf16, or a step of 32 of them |
//!
//! The bounds are those that the kernels' own tests hold against f64 (`tests/cuda/kernels.rs`,
//! `tests/cuda/attention/`). Carried through the layers as sums of absolute values they would say
//! nothing, since a network multiplies them by the product of its norms; so some draws are carried
//! through the model itself. What comes out is mostly not the roundings but what they set off: now
//! and then a key or a value lies so near the middle of two f16 numbers that the draws round it
//! differently, by 2^-11 of its size.

use half::f16;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use w4pack_runtime::arithmetic::Heads;
use w4pack_runtime::cache::LayerCache;
use w4pack_runtime::{Arithmetic, Kept, Matrix, Number, Plain};

/// Draws of which the worst counts.
const DRAWS: u64 = 4;

/// A card is one draw more, of roundings that are smaller than their bounds: it may be as far off as
/// the worst draw, times this. Where the cache's rounding decides, an H200 was as far off as the worst
/// draw (0.99 to 1.00 of it); else a tenth or less.
const MARGIN: f64 = 2.0;

/// What logits may be off by.
#[derive(Debug, Clone, Copy)]
pub struct Tolerance {
    /// Any of them.
    pub worst: f64,
    /// The root of the mean square.
    pub usual: f64,
}

impl Tolerance {
    /// Asserts that `found` is no further from `expected`; returns how far the worst one is.
    pub fn check<A: Number, B: Number>(&self, found: &[A], expected: &[B], what: &str) -> f64 {
        let (far, usual) =
            (super::worst(found, expected), super::root_mean_square(found, expected));
        assert!(far <= self.worst, "{what}: {far:e} off, at most {:e}", self.worst);
        // Of a few rows the root of the mean square may be all of the worst.
        let rows_enough = found.len() >= 4096;
        assert!(!rows_enough || usual <= self.usual, "{what}: usually {usual:e} off, {self:?}");
        far
    }
}

/// What logits may be off by from `expected`, where `pass` gives them for a draw.
pub fn tolerance<S: Kept<f64>, N: Number>(
    expected: &[N],
    roundings: Roundings,
    mut pass: impl FnMut(&Rounded<S>) -> Vec<f64>,
) -> Tolerance {
    let mut found = Tolerance { worst: 0.0, usual: 0.0 };
    for draw in 0..DRAWS {
        let logits = pass(&Rounded::new(draw, roundings));
        found.worst = found.worst.max(super::worst(&logits, expected));
        found.usual = found.usual.max(super::root_mean_square(&logits, expected));
    }
    // Two units of f32 in a logit of up to 30: what the comparison itself cannot see.
    let least = 4e-6;
    Tolerance { worst: MARGIN * found.worst.max(least), usual: MARGIN * found.usual.max(least) }
}

/// What differs between the ways through a card.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Roundings {
    /// Of a query and of a weight of attention, relative.
    attention: f64,
    /// Keys and values are bytes with a step for every 32; the cache's numbers are f64.
    q8: bool,
}

impl Roundings {
    /// Attention of single tokens, and of prompts on ordinary cores: f32, or two f16 numbers.
    pub const SINGLE: Self = Self { attention: 1.0 / (1 << 21) as f64, q8: false };
    /// Attention of prompts on tensor cores: f16.
    #[allow(dead_code, reason = "for the suite of cards")]
    pub const PROMPT: Self = Self { attention: 1.0 / (1 << 11) as f64, q8: false };

    /// The same with a q8 cache.
    #[allow(dead_code, reason = "for the suite of cards")]
    pub const fn with_q8(self) -> Self {
        Self { q8: true, ..self }
    }
}

/// The pass in f64 with a card's roundings.
pub struct Rounded<S> {
    drawn: AtomicU64,
    roundings: Roundings,
    plain: Plain<f64, S>,
    _kept: PhantomData<S>,
}

impl<S: Kept<f64>> Rounded<S> {
    fn new(draw: u64, roundings: Roundings) -> Self {
        let drawn = AtomicU64::new(draw << 48);
        Self { drawn, roundings, plain: Plain::new(), _kept: PhantomData }
    }

    /// A number in -1..1: splitmix64 of a counter.
    fn draw(&self) -> f64 {
        let mut z = self.drawn.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) as i64 as f64 / 2f64.powi(63)
    }

    fn each(&self, numbers: &mut [f64], relative: f64) {
        for number in numbers {
            *number *= 1.0 + relative * self.draw();
        }
    }

    /// What an f32 sum of the products of `a` and `b` may be.
    fn sum(&self, a: &[f64], b: impl Iterator<Item = f64>) -> f64 {
        let (mut sum, mut squares) = (0.0f64, 0.0f64);
        for (a, b) in a.iter().zip(b) {
            sum += a * b;
            squares += a * b * a * b;
        }
        let size = sum.abs().max(squares.sqrt());
        sum + 2f64.powi(-23) * (a.len() as f64).sqrt() * size * self.draw()
    }

    /// A row as it is read from the cache.
    fn read(&self, row: &[S], to: &mut Vec<f64>) {
        to.clear();
        to.extend(row.iter().map(|number| number.number()));
        if self.roundings.q8 {
            for group in to.chunks_mut(32) {
                let largest = group.iter().fold(0.0f64, |most, x| most.max(x.abs()));
                let step = f16::from_f64(largest / 127.0).to_f64();
                for number in group.iter_mut().filter(|_| step > 0.0) {
                    *number = (*number / step).round_ties_even().clamp(-127.0, 127.0) * step;
                }
            }
        }
    }
}

impl<S: Kept<f64>> Arithmetic for Rounded<S> {
    type Number = f64;
    type Kept = S;

    fn table_row(&self, table: &Matrix, row: usize, out: &mut [f64]) {
        self.plain.table_row(table, row, out);
    }

    fn linear(&self, weight: &Matrix, x: &[f64]) -> Vec<f64> {
        let (rows, columns) = (weight.rows(), weight.columns());
        let mut x = x.to_vec();
        for token in x.chunks_exact_mut(columns) {
            let largest = token.iter().fold(0.0f64, |most, x| most.max(x.abs()));
            for number in token {
                *number += 2f64.powi(-21) * largest * self.draw();
            }
        }
        let tokens = x.len() / columns;
        let (mut out, mut values) = (vec![0.0; tokens * rows], vec![0.0; columns]);
        for row in 0..rows {
            self.table_row(weight, row, &mut values);
            for (token, x) in x.chunks_exact(columns).enumerate() {
                out[token * rows + row] = self.sum(&values, x.iter().copied());
            }
        }
        out
    }

    fn attend(
        &self,
        kept: &LayerCache<S>,
        first: usize,
        heads: Heads,
        queries: &[f64],
        out: &mut [f64],
    ) {
        let Heads { queries: count, queries_per_key, head_dim } = heads;
        let mut row_read = Vec::new();
        let rows = queries.chunks_exact(head_dim).zip(out.chunks_exact_mut(head_dim));
        for (row, (query, out)) in rows.enumerate() {
            let (token, key_head) = (row / count, row % count / queries_per_key);
            let part = key_head * head_dim..(key_head + 1) * head_dim;
            let mut query = query.to_vec();
            self.each(&mut query, self.roundings.attention);
            let visible = kept.visible(first + token);
            let mut weights = Vec::new();
            for position in visible.clone() {
                self.read(&kept.key(position)[part.clone()], &mut row_read);
                weights.push(self.sum(&query, row_read.iter().copied()));
            }
            let most = weights.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            for weight in &mut weights {
                *weight = (*weight - most).exp() * (1.0 + self.roundings.attention * self.draw());
                *weight += 2f64.powi(-25) * self.draw();
            }
            let total: f64 = weights.iter().sum();
            let roundings = 2f64.powi(-23) * (weights.len() as f64).sqrt();
            let mut squares = vec![0.0; head_dim];
            out.fill(0.0);
            for (position, weight) in visible.zip(weights) {
                self.read(&kept.value(position)[part.clone()], &mut row_read);
                for ((out, squares), value) in out.iter_mut().zip(&mut squares).zip(&row_read) {
                    let term = weight / total * value;
                    *out += term;
                    *squares += term * term;
                }
            }
            for (out, squares) in out.iter_mut().zip(squares) {
                *out += roundings * out.abs().max(squares.sqrt()) * self.draw();
            }
        }
    }

    fn rms_norm(&self, rows: &mut [f64], width: usize, weight: Option<&[f32]>, epsilon: f64) {
        self.plain.rms_norm(rows, width, weight, epsilon);
        self.each(rows, 2f64.powi(-21));
    }

    fn gelu_times(&self, gate: &mut [f64], other: &[f64]) {
        self.plain.gelu_times(gate, other);
        self.each(gate, 2f64.powi(-21));
    }

    fn soft_cap(&self, numbers: &mut [f64], cap: f64) {
        self.plain.soft_cap(numbers, cap);
        self.each(numbers, 2f64.powi(-21));
    }
}
