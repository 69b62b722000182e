//! Products with packed matrices of E2B's shapes, beside a plain read of the same bytes.
//!
//! `decode` goes over 150 MB of matrices, more than caches hold: its share of `read` in the same run
//! is what counts. `prefill` counts two operations a weight and token.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use half::f16;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::hint::black_box;
use w4pack_kernels::cpu::{Kernels, Matrix, Output, Precision, Steps, Values};

struct Packed {
    rows: usize,
    columns: usize,
    words: Vec<u32>,
    steps: Vec<f16>,
}

impl Packed {
    fn random(rows: usize, columns: usize, random: &mut ChaCha8Rng) -> Self {
        let words = (0..rows * columns / 8).map(|_| random.next_u32()).collect();
        let step = |bits: u32| f16::from_f32((bits % 1000) as f32 * 1e-5 - 5.005e-3);
        let steps = (0..rows * columns / 32).map(|_| step(random.next_u32())).collect();
        Self { rows, columns, words, steps }
    }

    fn matrix(&self) -> Matrix<'_> {
        let steps = Steps::F16(&self.steps);
        let values = Values::Packed { words: &self.words, steps, round_to_bf16: false };
        Matrix::new(self.rows, self.columns, values)
    }

    fn bytes(&self) -> u64 {
        (4 * self.words.len() + 2 * self.steps.len()) as u64
    }
}

fn activations(count: usize, random: &mut ChaCha8Rng) -> Vec<f32> {
    (0..count).map(|_| (random.next_u32() >> 8) as f32 * 2f32.powi(-23) - 1.0).collect()
}

fn multiply(kernels: &Kernels, packed: &Packed, x: &[f32], out: &mut [f32], precision: Precision) {
    let matrix = packed.matrix();
    let x = kernels.prepare(&matrix, x, precision);
    let out = Output::whole(&mut out[..packed.rows * x.tokens()], x.tokens());
    kernels.multiply(&matrix, 0, &x, out);
}

fn decode(criterion: &mut Criterion) {
    let mut random = ChaCha8Rng::seed_from_u64(1);
    // A layer of each kind but for the smallest matrices, and a part of the head.
    let shapes = [
        (2048, 1536),
        (1536, 2048),
        (4096, 1536),
        (1536, 4096),
        (6144, 1536),
        (6144, 1536),
        (1536, 6144),
        (256, 1536),
        (1536, 256),
        (12288, 1536),
        (12288, 1536),
        (1536, 12288),
        (98304, 1536),
    ];
    let matrices = shapes.map(|(rows, columns)| Packed::random(rows, columns, &mut random));
    let x = activations(8 * 12288, &mut random);
    let mut out = vec![0.0; 8 * 98304];
    let mut group = criterion.benchmark_group("decode");
    group.sample_size(10);
    group.throughput(Throughput::Bytes(matrices.iter().map(Packed::bytes).sum()));
    group.bench_function("read", |bencher| {
        bencher.iter(|| {
            for matrix in &matrices {
                black_box(matrix.words.iter().fold(0, |sum, &word| sum ^ word));
                black_box(matrix.steps.iter().fold(0, |sum, step| sum ^ step.to_bits()));
            }
        });
    });
    for kernels in Kernels::available() {
        for (tokens, precision) in [
            (1, Precision::Bits16),
            (1, Precision::Bits8),
            (2, Precision::Bits16),
            (4, Precision::Bits16),
            (8, Precision::Bits16),
        ] {
            let name = format!("{}, {tokens} tokens, {precision:?}", kernels.name());
            group.bench_function(name, |bencher| {
                bencher.iter(|| {
                    for matrix in &matrices {
                        let x = &x[..tokens * matrix.columns];
                        multiply(kernels, matrix, x, &mut out, precision);
                    }
                });
            });
        }
    }
}

fn prefill(criterion: &mut Criterion) {
    let mut random = ChaCha8Rng::seed_from_u64(2);
    let mut group = criterion.benchmark_group("prefill");
    group.sample_size(10);
    for (rows, columns) in [(12288, 1536), (1536, 6144)] {
        let matrix = Packed::random(rows, columns, &mut random);
        let x = activations(512 * columns, &mut random);
        let mut out = vec![0.0; 512 * rows];
        group.throughput(Throughput::Elements((2 * out.len() * columns) as u64));
        for kernels in Kernels::available() {
            let name = format!("{}, 512 tokens, {rows} x {columns}", kernels.name());
            group.bench_function(name, |bencher| {
                bencher.iter(|| multiply(kernels, &matrix, &x, &mut out, Precision::Bits16));
            });
        }
    }
}

fn prepare(criterion: &mut Criterion) {
    let mut random = ChaCha8Rng::seed_from_u64(3);
    let mut group = criterion.benchmark_group("prepare");
    for (tokens, columns) in [(1, 1536), (1, 12288), (512, 1536)] {
        let matrix = Packed::random(1, columns, &mut random);
        let x = activations(tokens * columns, &mut random);
        group.throughput(Throughput::Elements(x.len() as u64));
        for kernels in Kernels::available() {
            let name = format!("{}, {tokens} tokens, {columns} columns", kernels.name());
            group.bench_function(name, |bencher| {
                bencher
                    .iter(|| kernels.prepare(&matrix.matrix(), black_box(&x), Precision::Bits16));
            });
        }
    }
}

criterion_group!(benches, decode, prefill, prepare);
criterion_main!(benches);
