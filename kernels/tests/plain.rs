//! Plain values: every instruction set of this machine against sums in f64 that are obviously right.

use half::{bf16, f16};
use proptest::prelude::*;
use proptest::sample::select;
use w4pack_format::group::{GROUP, pack, unpack};
use w4pack_kernels::cpu::{Kernels, Matrix, Output, Precision, Steps, Values};

/// A packed matrix as plain lists.
#[derive(Debug, Clone)]
struct Packed {
    rows: usize,
    columns: usize,
    codes: Vec<i8>,
    /// Exact in f16 and in bf16, so that one list serves every dtype.
    steps: Vec<f32>,
}

impl Packed {
    fn words(&self) -> Vec<u32> {
        self.codes.as_chunks::<GROUP>().0.iter().flat_map(pack).collect()
    }

    /// Dot products with the activations `[tokens, columns]`, as `[tokens, rows]`, and for each the
    /// sum of the terms' sizes, which bounds the rounding.
    fn oracle(&self, x: &[f32], value: impl Fn(f64) -> f64) -> Vec<(f64, f64)> {
        let mut sums = Vec::new();
        for x in x.chunks(self.columns) {
            for row in 0..self.rows {
                let terms = (0..self.columns).map(|column| {
                    let element = row * self.columns + column;
                    let step = f64::from(self.steps[element / GROUP]);
                    value(f64::from(self.codes[element]) * step) * f64::from(x[column])
                });
                let size = terms.clone().map(f64::abs).sum();
                sums.push((terms.sum(), size));
            }
        }
        sums
    }
}

/// All 16 codes, steps of both signs and many sizes, odd numbers of rows, one to nine groups.
fn packed() -> impl Strategy<Value = Packed> {
    (1usize..6, 1usize..10).prop_flat_map(|(rows, groups)| {
        let codes = prop::collection::vec(-8i8..8, rows * groups * GROUP);
        let step = (select(vec![-1.0f32, 1.0]), -12i32..4, 128u32..256).prop_map(
            |(sign, exponent, mantissa)| sign * mantissa as f32 * 2f32.powi(exponent - 7),
        );
        let steps = prop::collection::vec(step, rows * groups);
        (codes, steps).prop_map(move |(codes, steps)| Packed {
            rows,
            columns: groups * GROUP,
            codes,
            steps,
        })
    })
}

/// Activations for up to ten tokens: on both sides of every block of the kernels.
fn with_activations() -> impl Strategy<Value = (Packed, Vec<f32>)> {
    (packed(), 1usize..11).prop_flat_map(|(packed, batch)| {
        let x = prop::collection::vec(-4.0f32..4.0, batch * packed.columns);
        (Just(packed), x)
    })
}

/// Three rows and an activation, on both sides of whole chunks.
fn bf16_rows() -> impl Strategy<Value = (Vec<bf16>, Vec<f32>)> {
    (1usize..70).prop_flat_map(|columns| {
        let values = prop::collection::vec((-4.0f32..4.0).prop_map(bf16::from_f32), 3 * columns);
        (values, prop::collection::vec(-4.0f32..4.0, columns))
    })
}

fn product(kernels: &Kernels, matrix: &Matrix<'_>, x: &[f32]) -> Vec<f32> {
    let x = kernels.prepare(matrix, x, Precision::Bits16);
    let mut out = vec![f32::NAN; matrix.rows() * x.tokens()];
    kernels.multiply(matrix, 0, &x, Output::whole(&mut out, x.tokens()));
    out
}

/// A sum of n terms in f32 is off by at most n roundings of the sum of the terms' sizes.
fn assert_near(found: &[f32], oracle: &[(f64, f64)], columns: usize, name: &str) {
    assert_eq!(found.len(), oracle.len());
    for (&found, &(expected, size)) in found.iter().zip(oracle) {
        let allowed = size * (columns + 4) as f64 * 2f64.powi(-24);
        let difference = (f64::from(found) - expected).abs();
        assert!(difference <= allowed, "{name}: {found} for {expected}, allowed {allowed}");
    }
}

proptest! {
    #[test]
    fn products_rounded_to_bf16((packed, x) in with_activations()) {
        let words = packed.words();
        let f16s: Vec<f16> = packed.steps.iter().map(|&step| f16::from_f32(step)).collect();
        let values = Values::Packed { words: &words, steps: Steps::F16(&f16s), round_to_bf16: true };
        let matrix = Matrix::new(packed.rows, packed.columns, values);
        for kernels in Kernels::available() {
            // These products are exact in f32, so rounding them from f32 is rounding once.
            let round = |value: f64| bf16::from_f32(value as f32).to_f64();
            let rounded = product(kernels, &matrix, &x);
            assert_near(&rounded, &packed.oracle(&x, round), packed.columns, kernels.name());
        }
    }

    #[test]
    fn a_batch_gives_the_bits_of_its_members((packed, x) in with_activations()) {
        let words = packed.words();
        let values: Vec<bf16> = packed.codes.iter().map(|&code| bf16::from_f32(code.into())).collect();
        for kernels in Kernels::available() {
            for values in [
                Values::Packed { words: &words, steps: Steps::F32(&packed.steps), round_to_bf16: true },
                Values::Bf16(&values),
            ] {
                let matrix = Matrix::new(packed.rows, packed.columns, values);
                let together = product(kernels, &matrix, &x);
                let alone = x.chunks(packed.columns).flat_map(|x| product(kernels, &matrix, x));
                prop_assert_eq!(alone.collect::<Vec<f32>>(), together);
            }
        }
    }

    #[test]
    fn bf16_rows_of_any_length((values, x) in bf16_rows()) {
        let columns = x.len();
        let oracle: Vec<(f64, f64)> = values
            .chunks(columns)
            .map(|row| {
                let terms = row.iter().zip(&x).map(|(value, &x)| value.to_f64() * f64::from(x));
                (terms.clone().sum(), terms.map(f64::abs).sum())
            })
            .collect();
        let matrix = Matrix::new(values.len() / columns, columns, Values::Bf16(&values));
        for kernels in Kernels::available() {
            assert_near(&product(kernels, &matrix, &x), &oracle, columns, kernels.name());
        }
    }

    #[test]
    fn rows_are_written_as_values((packed, _) in with_activations()) {
        let words = packed.words();
        let values = Values::Packed { words: &words, steps: Steps::F32(&packed.steps), round_to_bf16: false };
        let matrix = Matrix::new(packed.rows, packed.columns, values);
        let mut row_values = vec![0.0; packed.columns];
        for row in 0..packed.rows {
            matrix.row_values(row, &mut row_values);
            for (column, &value) in row_values.iter().enumerate() {
                let element = row * packed.columns + column;
                let code = f32::from(unpack(words[element / GROUP * 4..][..4].try_into().unwrap())[column % GROUP]);
                prop_assert_eq!(value, code * packed.steps[element / GROUP]);
            }
        }
    }
}
