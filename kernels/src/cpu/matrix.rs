//! The view of a weight matrix that the kernels multiply.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use w4pack_format::group::{GROUP, WORDS};

/// The steps of a packed matrix, one for each group of 32 codes, row-major, as they are stored.
#[derive(Clone, Copy, Debug)]
pub enum Steps<'a> {
    /// IEEE half precision.
    F16(&'a [f16]),
    /// bfloat16.
    Bf16(&'a [bf16]),
    /// Single precision.
    F32(&'a [f32]),
}

/// The values of a matrix, row-major.
#[derive(Clone, Copy, Debug)]
pub enum Values<'a> {
    /// Plain bfloat16 values.
    Bf16(&'a [bf16]),
    /// Codes (`nibble - 8`, lowest nibble first, eight a word, four words a group) and steps.
    Packed {
        /// Packed words, `rows * columns / 8`.
        words: &'a [u32],
        /// Steps, `rows * columns / 32`.
        steps: Steps<'a>,
        /// Round each product code·step to bfloat16, as Google stores it. Slower; off for the
        /// unrounded value.
        round_to_bf16: bool,
    },
}

/// A weight matrix `[rows, columns]`; an output is the dot product of a row with an activation.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    rows: usize,
    columns: usize,
    values: Values<'a>,
}

impl<'a> Matrix<'a> {
    /// A matrix `[rows, columns]` over `values`.
    ///
    /// # Panics
    /// When the lengths do not fit the shape, or packed columns are no multiple of 32: the loader
    /// has checked both against the file before it builds a view.
    pub fn new(rows: usize, columns: usize, values: Values<'a>) -> Self {
        match values {
            Values::Bf16(values) => assert_eq!(values.len(), rows * columns, "bf16 values"),
            Values::Packed { words, steps, .. } => {
                assert_eq!(columns % GROUP, 0, "columns of a packed matrix");
                assert_eq!(words.len(), rows * columns / GROUP * WORDS, "packed words");
                let steps = match steps {
                    Steps::F16(steps) => steps.len(),
                    Steps::Bf16(steps) => steps.len(),
                    Steps::F32(steps) => steps.len(),
                };
                assert_eq!(steps, rows * columns / GROUP, "steps");
            }
        }
        Self { rows, columns, values }
    }

    /// Number of rows, which is the number of outputs.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns, which is the length of an activation.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// The values as they are stored.
    pub fn values(&self) -> Values<'a> {
        self.values
    }

    /// Whether codes and steps are what is multiplied: not plain values, nor products rounded to
    /// bf16, of which [`Matrix::row_values`] tells.
    pub fn is_read_by_codes(&self) -> bool {
        matches!(self.values, Values::Packed { round_to_bf16: false, .. })
    }

    /// Writes the values of `row` to `out` (length `columns`): exact for bf16 and for rounded
    /// products; an unrounded product code·step is rounded once to f32.
    pub fn row_values(&self, row: usize, out: &mut [f32]) {
        match self.values {
            Values::Bf16(values) => {
                let row = &values[row * self.columns..][..self.columns];
                for (out, value) in out.iter_mut().zip(row) {
                    *out = value.to_f32();
                }
            }
            Values::Packed { words, steps, round_to_bf16 } => {
                let mut scratch = Vec::new();
                let steps = self.row_steps(row, steps, &mut scratch);
                let words = self.row_words(row, words);
                for ((out, words), &step) in out.chunks_exact_mut(GROUP).zip(words).zip(steps) {
                    for (out, code) in out.iter_mut().zip(w4pack_format::group::unpack(words)) {
                        // The product of a 4-bit code and an f32 step is exact in f64.
                        let product = f64::from(code) * f64::from(step);
                        *out = if round_to_bf16 { to_bf16(product) } else { product as f32 };
                    }
                }
            }
        }
    }

    #[inline(always)]
    fn row_words(&self, row: usize, words: &'a [u32]) -> &'a [[u32; WORDS]] {
        let words_per_row = self.columns / GROUP * WORDS;
        words[row * words_per_row..][..words_per_row].as_chunks().0
    }

    fn row_steps<'s>(&self, row: usize, steps: Steps<'a>, scratch: &'s mut Vec<f32>) -> &'s [f32]
    where
        'a: 's,
    {
        let groups = self.columns / GROUP;
        let (first, last) = (row * groups, (row + 1) * groups);
        scratch.resize(groups, 0.0);
        match steps {
            Steps::F16(steps) => steps[first..last].convert_to_f32_slice(scratch),
            Steps::Bf16(steps) => steps[first..last].convert_to_f32_slice(scratch),
            Steps::F32(steps) => return &steps[first..last],
        }
        scratch
    }
}

/// `value` rounded once to bfloat16, half to even.
///
/// By way of f32 rounded to odd: cut towards zero, with the lowest bit set when anything was cut
/// off. That keeps what the second rounding needs to know, where two ordinary ones could differ
/// from one.
fn to_bf16(value: f64) -> f32 {
    let mut nearest = value as f32;
    if f64::from(nearest) != value {
        let mut bits = nearest.to_bits();
        if f64::from(nearest).abs() > value.abs() {
            bits -= 1;
        }
        nearest = f32::from_bits(bits | 1);
    }
    bf16::from_f32(nearest).to_f32()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_product_is_rounded_to_bf16_once() {
        // Above the half-way point between the bf16 numbers 1 and 1 + 2^-7 by less than an f32
        // at this size can say: rounding to f32 first would make a tie of it, and 1 of the tie.
        let above_half = 1.0 + 2f64.powi(-8) + 2f64.powi(-30);
        assert_eq!(to_bf16(above_half), 1.0 + 2f32.powi(-7));
        assert_eq!(to_bf16(-above_half), -1.0 - 2f32.powi(-7));
        assert_eq!(to_bf16(1.0 + 2f64.powi(-8)), 1.0, "a tie goes to even");
        assert_eq!(to_bf16(1.0 + 3.0 * 2f64.powi(-8)), 1.0 + 2f32.powi(-6));
        assert_eq!(to_bf16(1.0 + 2f64.powi(-8) - 2f64.powi(-30)), 1.0);
        assert_eq!(to_bf16(0.0), 0.0);
        assert_eq!(to_bf16(f64::from(f32::MAX)), f32::INFINITY);
    }
}
