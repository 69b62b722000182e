//! Matrices and activations of every kind, and the slow versions of what the kernels compute.

use half::{bf16, f16};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use w4pack_format::group::{GROUP, pack};
use w4pack_kernels::cpu::{Activations, Kernels, Matrix, Output, Precision, Steps, Values};

/// The dtype of a matrix's steps.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Dtype {
    F16,
    Bf16,
    F32,
}

pub const DTYPES: [Dtype; 3] = [Dtype::F16, Dtype::Bf16, Dtype::F32];

/// A packed matrix and what it was packed from.
#[derive(Debug, Clone)]
pub struct Packed {
    pub rows: usize,
    pub groups: usize,
    pub codes: Vec<i8>,
    /// Numbers of the dtype.
    pub steps: Vec<f32>,
    words: Vec<u32>,
    f16s: Vec<f16>,
    bf16s: Vec<bf16>,
    dtype: Dtype,
}

impl Packed {
    pub fn new(
        rows: usize,
        groups: usize,
        codes: Vec<i8>,
        mut steps: Vec<f32>,
        dtype: Dtype,
    ) -> Self {
        let f16s: Vec<f16> = steps.iter().map(|&step| f16::from_f32(step)).collect();
        let bf16s: Vec<bf16> = steps.iter().map(|&step| bf16::from_f32(step)).collect();
        match dtype {
            Dtype::F16 => steps = f16s.iter().map(|step| step.to_f32()).collect(),
            Dtype::Bf16 => steps = bf16s.iter().map(|step| step.to_f32()).collect(),
            Dtype::F32 => {}
        }
        let words = codes.as_chunks::<GROUP>().0.iter().flat_map(pack).collect();
        Self { rows, groups, codes, steps, words, f16s, bf16s, dtype }
    }

    /// All 16 codes and steps of both signs, of sizes from 2^-20 to 1.
    pub fn random(rows: usize, groups: usize, dtype: Dtype, seed: u64) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let codes = (0..rows * groups * GROUP).map(|_| (random.next_u32() % 16) as i8 - 8);
        let codes = codes.collect();
        let steps = (0..rows * groups).map(|_| {
            let size = 2f32.powi(-((random.next_u32() % 20) as i32)) * (1.0 + uniform(&mut random));
            if random.next_u32() % 2 == 0 { size / 2.0 } else { -size / 2.0 }
        });
        let steps = steps.collect();
        Self::new(rows, groups, codes, steps, dtype)
    }

    /// All 16 codes, and steps of both signs and of nearly one size, as trained weights have.
    pub fn even(rows: usize, groups: usize, seed: u64) -> Self {
        let mut packed = Self::random(rows, groups, Dtype::F32, seed);
        let mut random = ChaCha8Rng::seed_from_u64(seed + 1);
        for step in &mut packed.steps {
            *step = step.signum() * 0.01 * (0.5 + uniform(&mut random));
        }
        Self::new(rows, groups, packed.codes, packed.steps, Dtype::F16)
    }

    pub fn columns(&self) -> usize {
        self.groups * GROUP
    }

    pub fn matrix(&self) -> Matrix<'_> {
        let steps = match self.dtype {
            Dtype::F16 => Steps::F16(&self.f16s),
            Dtype::Bf16 => Steps::Bf16(&self.bf16s),
            Dtype::F32 => Steps::F32(&self.steps),
        };
        let values = Values::Packed { words: &self.words, steps, round_to_bf16: false };
        Matrix::new(self.rows, self.columns(), values)
    }
}

/// In 0..1.
fn uniform(random: &mut ChaCha8Rng) -> f32 {
    (random.next_u32() >> 8) as f32 * 2f32.powi(-24)
}

/// Roughly normal, of mean 0 and deviation 1.
fn normal(random: &mut ChaCha8Rng) -> f32 {
    (0..12).map(|_| uniform(random)).sum::<f32>() - 6.0
}

/// What activations may look like.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    Normal,
    /// One in 200 is thirty times as large.
    Outliers,
    Zero,
    NegativeZero,
    /// Near the largest f32: sums may overflow.
    Huge,
    /// Around the smallest normal f32 and below.
    Tiny,
    /// Halves of the step, where rounding has a tie.
    Ties,
    /// One group of the second token has an infinity or a NaN.
    NotFinite,
}

pub const KINDS: [Kind; 8] = [
    Kind::Normal,
    Kind::Outliers,
    Kind::Zero,
    Kind::NegativeZero,
    Kind::Huge,
    Kind::Tiny,
    Kind::Ties,
    Kind::NotFinite,
];

/// `[tokens, columns]`.
pub fn activations(kind: Kind, tokens: usize, columns: usize, seed: u64) -> Vec<f32> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut x: Vec<f32> = (0..tokens * columns)
        .map(|element| match kind {
            Kind::Normal | Kind::NotFinite => normal(&mut random),
            Kind::Outliers => {
                let large = random.next_u32().is_multiple_of(200);
                normal(&mut random) * if large { 30.0 } else { 1.0 }
            }
            Kind::Zero => 0.0,
            Kind::NegativeZero => -0.0,
            Kind::Huge => normal(&mut random) * 5e37,
            Kind::Tiny => normal(&mut random) * f32::MIN_POSITIVE * 40_000.0,
            // 32,512 for the step 1, then integers and a half.
            Kind::Ties if element % GROUP == 0 => 32_512.0,
            Kind::Ties => (random.next_u32() % 2001) as f32 - 1000.5,
        })
        .collect();
    if kind == Kind::NotFinite {
        let odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY][seed as usize % 3];
        let place = (columns + columns / 2).min(x.len() - 1);
        x[place] = odd;
    }
    x
}

/// What the kernels give, `[tokens, rows]`.
pub fn product(kernels: &Kernels, packed: &Packed, x: &[f32], precision: Precision) -> Vec<f32> {
    let matrix = packed.matrix();
    let activations = kernels.prepare(&matrix, x, precision);
    let mut out = vec![f32::from_bits(0x7fab_cdef); packed.rows * activations.tokens()];
    multiply(kernels, &matrix, &activations, &mut out);
    out
}

/// In two stripes, as threads would.
fn multiply(kernels: &Kernels, matrix: &Matrix<'_>, x: &Activations<'_>, out: &mut [f32]) {
    let first = matrix.rows() / 3;
    let (above, below) = Output::whole(out, x.tokens()).split_at(first);
    kernels.multiply(matrix, first, x, below);
    kernels.multiply(matrix, 0, x, above);
}

/// The arithmetic spelled out: integers of a group, their sum with the codes in 64 bits, then f32 in
/// the order that is promised. `[tokens, rows]`.
pub fn spelled_out(packed: &Packed, x: &[f32], precision: Precision) -> Vec<f32> {
    let mut outputs = Vec::new();
    for x in x.chunks_exact(packed.columns()) {
        let groups: Vec<(Vec<i64>, f32)> =
            x.chunks_exact(GROUP).map(|group| integers(group, precision)).collect();
        for row in 0..packed.rows {
            let mut lanes = [0f32; 16];
            for (group, (integers, x_step)) in groups.iter().enumerate() {
                let place = row * packed.groups + group;
                let codes = &packed.codes[place * GROUP..][..GROUP];
                let sum: i64 = codes.iter().zip(integers).map(|(&k, &i)| i64::from(k) * i).sum();
                assert!(sum.abs() < 1 << 23, "exact in f32");
                lanes[group % 16] += (sum as f32 * packed.steps[place]) * x_step;
            }
            for half in [8, 4, 2, 1] {
                for lane in 0..half {
                    lanes[lane] += lanes[lane + half];
                }
            }
            outputs.push(lanes[0]);
        }
    }
    outputs
}

/// A group's integers and what one of them stands for.
fn integers(group: &[f32], precision: Precision) -> (Vec<i64>, f32) {
    if group.iter().any(|value| !value.is_finite()) {
        return (vec![0; GROUP], f32::NAN);
    }
    let largest = group.iter().fold(0f32, |largest, value| largest.max(value.abs()));
    let limit = match precision {
        Precision::Bits16 => 32_512.0,
        Precision::Bits8 => 127.0,
    };
    let step = largest / limit;
    if !step.is_normal() {
        return (vec![0; GROUP], 0.0);
    }
    let inverse = limit / largest;
    let integers = group.iter().map(|value| (value * inverse).round_ties_even() as i64);
    (integers.collect(), step)
}

/// Sums in f64, `[tokens, rows]`.
pub fn in_f64(packed: &Packed, x: &[f32]) -> Vec<f64> {
    let mut outputs = Vec::new();
    for x in x.chunks_exact(packed.columns()) {
        for codes in 0..packed.rows {
            let first = codes * packed.columns();
            let terms = x.iter().enumerate().map(|(column, &x)| {
                let element = first + column;
                let weight =
                    f64::from(packed.codes[element]) * f64::from(packed.steps[element / GROUP]);
                weight * f64::from(x)
            });
            outputs.push(terms.sum());
        }
    }
    outputs
}

/// Equal bits, but that a NaN is a NaN.
pub fn same(a: &[f32], b: &[f32]) -> bool {
    let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
    a.len() == b.len() && a.iter().zip(b).all(same)
}
