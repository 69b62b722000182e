//! Matrix products against sums in f64: all 16 codes, steps of both signs and every dtype, the shapes
//! of E2B and odd ones.

use crate::bench::{Bench, Weight, activations, weight};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use std::ffi::c_void;
use w4pack_kernels::cuda::Address;
use w4pack_kernels::cuda::parameters::{
    Activations, Epilogue, GEMV_THREADS, Gemm, Gemv, Input, Kind, Matrix, NormRows, digit_bytes,
    row_shape,
};

const KINDS: [Kind; 4] = [Kind::PackedF16, Kind::PackedBf16, Kind::PackedF32, Kind::PlainBf16];

/// The product in f64, and the error it may have: 2^-21 of the largest activation of each group of
/// 32 times the sizes of its weights (rounding to 22 bits), and f32 sums of `columns / 32` terms.
fn product(weight: &Weight, x: &[f32]) -> (Vec<f64>, Vec<f64>) {
    let columns = weight.matrix.columns as usize;
    let row = |row: &[f64]| {
        let (mut sum, mut bound, mut size) = (0.0, 0.0, 0.0);
        for (w, x) in row.chunks(32).zip(x.chunks(32)) {
            let largest = x.iter().fold(0.0f64, |m, &x| m.max(f64::from(x).abs()));
            let weights: f64 = w.iter().map(|w| w.abs()).sum();
            bound += largest * weights * 2f64.powi(-21);
            for (w, &x) in w.iter().zip(x) {
                sum += w * f64::from(x);
                size += (w * f64::from(x)).abs();
            }
        }
        (sum, bound + size * 2f64.powi(-22) * (columns as f64).sqrt())
    };
    weight.values.chunks(columns).map(row).unzip()
}

fn check(found: &[f32], expected: &(Vec<f64>, Vec<f64>), what: &str) {
    for (row, &found) in found.iter().enumerate() {
        let (expected, bound) = (expected.0[row], expected.1[row]);
        let error = (f64::from(found) - expected).abs();
        assert!(error <= bound, "{what}, row {row}: {found} for {expected}, {error:e} > {bound:e}");
    }
}

pub(crate) fn gemv(matrix: Matrix, input: Input, out: Address) -> Gemv {
    let (lanes, slices) = row_shape(matrix.columns as usize);
    Gemv {
        part: [matrix, Matrix::NONE, Matrix::NONE],
        input,
        digits: 0,
        out,
        gate_with: 0,
        best: 0,
        digit_stride: 0,
        gate_stride: 0,
        cap: 0.0,
        parts: 1,
        rows: matrix.rows,
        columns: matrix.columns,
        lanes,
        slices,
        pairs_per_block: 5,
        epilogue: Epilogue::Store as i32,
    }
}

pub(crate) fn launch_gemv(bench: &Bench, gemv: &Gemv, tokens: usize) {
    let is_geglu = gemv.epilogue == Epilogue::Geglu as i32;
    let pairs = if is_geglu { gemv.rows } else { (gemv.rows + 1) / 2 };
    let blocks = (pairs + gemv.pairs_per_block - 1) / gemv.pairs_per_block;
    let digits = if tokens == 1 { digit_bytes(gemv.columns as usize) } else { 0 };
    let shared = digits + (gemv.pairs_per_block * gemv.slices * 8) as usize * tokens;
    let several = format!("gemv_m{tokens}");
    let kernel = if tokens == 1 { gemv.kernel() } else { &several };
    bench.launch(kernel, [blocks as u32, 1], GEMV_THREADS, shared, gemv);
}

/// Rows and columns; those of E2B with fewer rows, and odd ones.
const SHAPES: [(usize, usize); 11] = [
    (512, 1536),
    (100, 2048),
    (96, 4096),
    (64, 6144),
    (50, 12288),
    (256, 256),
    (7, 32),
    (33, 96),
    (1, 288),
    (65, 2560),
    (31, 5376),
];

#[test]
fn a_vector_product_is_that_of_f64() {
    let Some(mut bench) = Bench::new() else { return };
    let mut random = ChaCha8Rng::seed_from_u64(1);
    for (rows, columns) in SHAPES {
        for kind in KINDS {
            bench.next = bench.arena.address();
            let weight = weight(&mut bench, &mut random, rows, columns, kind);
            let x = activations(&mut random, columns);
            let (input, out) = (bench.put_floats(&x), bench.take(4 * rows));
            launch_gemv(&bench, &gemv(weight.matrix, Input::plain(input), out), 1);
            let what = format!("{rows} x {columns}, {kind:?}");
            check(&bench.floats(out, rows), &product(&weight, &x), &what);
        }
    }
}

/// What makes it safe to verify drafted tokens together: not a bit depends on how many there are.
#[test]
fn several_tokens_give_the_bits_of_one() {
    let Some(mut bench) = Bench::new() else { return };
    let mut random = ChaCha8Rng::seed_from_u64(2);
    for (rows, columns) in SHAPES {
        for kind in KINDS {
            bench.next = bench.arena.address();
            let weight = weight(&mut bench, &mut random, rows, columns, kind);
            let x = activations(&mut random, 8 * columns);
            let norm = activations(&mut random, columns);
            let (stream, norm) = (bench.put_floats(&x), bench.put_floats(&norm));
            let input = Input { norm, epsilon: 1e-6, ..Input::plain(stream) };
            let out = bench.take(4 * 8 * rows);
            let mut single = Vec::new();
            for token in 0..8 {
                let input = Input { stream: stream + (4 * token * columns) as u64, ..input };
                launch_gemv(&bench, &gemv(weight.matrix, input, out), 1);
                single.extend(bench.floats(out, rows));
            }
            let stride = digit_bytes(columns) as u64 + 16;
            let stride = stride.next_multiple_of(16);
            let digits = bench.take(8 * stride as usize);
            for tokens in 2..=8 {
                let columns = columns as i32;
                let arguments = [
                    std::ptr::from_ref(&input).cast::<c_void>(),
                    std::ptr::from_ref(&columns).cast(),
                    std::ptr::from_ref(&digits).cast(),
                    std::ptr::from_ref(&stride).cast(),
                ];
                // SAFETY: the parameters of `digits`, addresses taken here.
                unsafe {
                    bench.gpu.launch("digits", [tokens as u32, 1], GEMV_THREADS, 0, &arguments)
                }
                .expect("it launches");
                let several =
                    Gemv { digits, digit_stride: stride, ..gemv(weight.matrix, input, out) };
                launch_gemv(&bench, &several, tokens);
                let found = bench.floats(out, tokens * rows);
                let same = found.iter().zip(&single).all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(same, "{tokens} tokens, {rows} x {columns}, {kind:?}");
            }
        }
    }
}

/// What a norm in f32 may be off by, relative: its sum of squares some 16 roundings of 2^-24 (each
/// thread's few, then the tree's), half of that by the root, two units of `rsqrtf`, two products.
const NORM: f64 = 2.4e-6; // 20 · 2^-23

#[test]
fn norms_and_additions_ride_in_front_of_a_product() {
    let Some(mut bench) = Bench::new() else { return };
    let mut random = ChaCha8Rng::seed_from_u64(3);
    let (rows, columns, epsilon, scalar) = (64, 1536, 1e-6, 0.75);
    let weight = weight(&mut bench, &mut random, rows, columns, Kind::PackedF16);
    let [x, delta, delta_norm, norm] = [0; 4].map(|_| activations(&mut random, columns));
    let input = Input {
        stream: bench.put_floats(&x),
        delta: bench.put_floats(&delta),
        delta_norm: bench.put_floats(&delta_norm),
        norm: bench.put_floats(&norm),
        stream_out: bench.take(4 * columns),
        scalar,
        epsilon,
    };
    let out = bench.take(4 * rows);
    launch_gemv(&bench, &gemv(weight.matrix, input, out), 1);

    let rms = |v: &[f64]| {
        let mean = v.iter().map(|v| v * v).sum::<f64>() / v.len() as f64;
        (mean + f64::from(epsilon)).sqrt()
    };
    let wide = |v: &[f32]| v.iter().map(|&v| f64::from(v)).collect::<Vec<_>>();
    let (x, delta) = (wide(&x), wide(&delta));
    let size = rms(&delta);
    let added: Vec<f64> =
        (0..columns).map(|i| delta[i] / size * f64::from(delta_norm[i])).collect();
    let stream: Vec<f64> = (0..columns).map(|i| (x[i] + added[i]) * f64::from(scalar)).collect();
    for (i, found) in bench.floats(input.stream_out, columns).into_iter().enumerate() {
        let bound = NORM * added[i].abs() + 2f64.powi(-23) * stream[i].abs().max(x[i].abs());
        let error = (f64::from(found) - stream[i]).abs();
        assert!(error <= bound, "stream {i}: {error:e} > {bound:e}");
    }
    let size = rms(&stream);
    let normed: Vec<f32> =
        (0..columns).map(|i| (stream[i] / size * f64::from(norm[i])) as f32).collect();
    let (expected, bound) = product(&weight, &normed);
    // On top come the roundings of the norm and of the stream before it, of what was added up.
    let term = |(i, w): (usize, &f64)| -> f64 {
        (x[i].abs() + added[i].abs()) * f64::from(scalar) / size * (f64::from(norm[i]) * w).abs()
    };
    let sizes =
        weight.values.chunks(columns).map(|row| row.iter().enumerate().map(term).sum::<f64>());
    let bound = bound.iter().zip(sizes).map(|(bound, size)| bound + 2.0 * NORM * size).collect();
    check(&bench.floats(out, rows), &(expected, bound), "behind a norm");
}

#[test]
fn logits_are_capped_and_the_lowest_id_of_the_largest_wins() {
    let Some(mut bench) = Bench::new() else { return };
    let mut random = ChaCha8Rng::seed_from_u64(4);
    let (rows, columns, cap) = (1000, 1536, 30.0f32);
    let mut weight = weight(&mut bench, &mut random, rows, columns, Kind::PackedF16);
    let x = activations(&mut random, columns);
    let (input, out) = (bench.put_floats(&x), bench.take(4 * rows));
    let best = bench.put(&0u64.to_le_bytes());
    let logits = Gemv {
        best,
        cap,
        epilogue: Epilogue::Logits as i32,
        ..gemv(weight.matrix, Input::plain(input), out)
    };
    launch_gemv(&bench, &logits, 1);
    let found = bench.floats(out, rows);
    let expected = product(&weight, &x);
    for (row, &found) in found.iter().enumerate() {
        let capped = (expected.0[row] / f64::from(cap)).tanh() * f64::from(cap);
        // A division, a tanh of two units and a product: four roundings of at most the cap.
        let of_cap = f64::from(cap) * 2f64.powi(-21);
        assert!((f64::from(found) - capped).abs() <= expected.1[row] + of_cap, "row {row}");
    }
    let mut bytes = [0; 8];
    // SAFETY: `best` has 8 bytes.
    unsafe { bench.gpu.download(&mut bytes, best).expect("it is copied") };
    let chosen = !(u64::from_le_bytes(bytes) as u32) as usize;
    let largest = found.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    assert_eq!(chosen, found.iter().position(|&logit| logit == largest).expect("there is one"));
    weight.values.clear();
}

fn launch_gemm(bench: &Bench, gemm: &Gemm, multiprocessors: usize) {
    let launch = gemm.launch(bench.gpu.target(), multiprocessors);
    let grid = launch.grid.map(|size| size as u32);
    bench.launch(&launch.kernel, grid, launch.threads, launch.shared, gemm);
}

fn same_bits(one: &[f32], other: &[f32]) -> bool {
    one.len() == other.len() && one.iter().zip(other).all(|(a, b)| a.to_bits() == b.to_bits())
}

/// q, k and v are one launch: their rows lie side by side, each as from a launch of its own.
#[test]
fn matrices_of_every_kind_of_step_share_a_launch() {
    let Some(mut bench) = Bench::new() else { return };
    let mut random = ChaCha8Rng::seed_from_u64(6);
    let (tokens, columns) = (70, 288);
    for (kinds, format) in [(&KINDS[..3], 1), (&KINDS[1..], 0)] {
        bench.next = bench.arena.address();
        let part = [0, 1, 2]
            .map(|i| weight(&mut bench, &mut random, [300, 33, 64][i], columns, kinds[i]).matrix);
        let rows: usize = part.iter().map(|part| part.rows as usize).sum();
        let x = activations(&mut random, tokens * columns);
        let stream = bench.put_floats(&x);
        let (values, scales) = (bench.take(4 * tokens * columns), bench.take(4 * tokens));
        let plane = (tokens * columns) as u64;
        let x = Activations { values, scales, plane, format, padding: 0 };
        let norm = NormRows {
            stream,
            delta: 0,
            delta_norm: 0,
            norm: 0,
            out: x,
            scalar: 1.0,
            epsilon: 1e-6,
            columns: columns as i32,
            padding: 0,
        };
        bench.launch("norm_rows", [tokens as u32, 1], 256, 4 * columns, &norm);
        let (out, alone) = (bench.take(4 * tokens * rows), bench.take(4 * tokens * rows));
        let (out_stride, tokens) = (rows as u64, tokens as i32);
        let gemm = Gemm { part, x, out, out_stride, parts: 3, tokens };
        let mut first = 0;
        for weight in part {
            let part = [weight, Matrix::NONE, Matrix::NONE];
            let out = alone + 4 * first;
            launch_gemm(&bench, &Gemm { part, out, parts: 1, ..gemm }, 1000);
            first += weight.rows as u64;
        }
        let expected = bench.floats(alone, rows * tokens as usize);
        for multiprocessors in [1, 1000] {
            launch_gemm(&bench, &gemm, multiprocessors);
            assert!(same_bits(&bench.floats(out, rows * tokens as usize), &expected));
        }
    }
}

#[test]
fn a_matrix_product_is_that_of_f64_and_does_not_depend_on_its_neighbours() {
    let Some(mut bench) = Bench::new() else { return };
    let mut random = ChaCha8Rng::seed_from_u64(5);
    for (rows, columns) in [(200, 1536), (64, 2048), (33, 96), (7, 32), (129, 288), (100, 12288)] {
        for kind in KINDS {
            for tokens in [1, 33, 64, 130] {
                bench.next = bench.arena.address();
                let weight = weight(&mut bench, &mut random, rows, columns, kind);
                let x = activations(&mut random, tokens * columns);
                let stream = bench.put_floats(&x);
                let values = bench.take(4 * tokens * columns);
                let (scales, out) = (bench.take(4 * tokens), bench.take(4 * tokens * rows));
                for format in [0, 1] {
                    if format == 1 && kind == Kind::PlainBf16 {
                        continue;
                    }
                    let plane = (tokens * columns) as u64;
                    let x_on_card = Activations { values, scales, plane, format, padding: 0 };
                    let norm = NormRows {
                        stream,
                        delta: 0,
                        delta_norm: 0,
                        norm: 0,
                        out: x_on_card,
                        scalar: 1.0,
                        epsilon: 1e-6,
                        columns: columns as i32,
                        padding: 0,
                    };
                    bench.launch("norm_rows", [tokens as u32, 1], 256, 4 * columns, &norm);
                    let gemm = Gemm {
                        part: [weight.matrix, Matrix::NONE, Matrix::NONE],
                        x: x_on_card,
                        out,
                        out_stride: rows as u64,
                        parts: 1,
                        tokens: tokens as i32,
                    };
                    // Many multiprocessors ask for small blocks, one for large ones.
                    launch_gemm(&bench, &gemm, 1000);
                    let found = bench.floats(out, tokens * rows);
                    launch_gemm(&bench, &gemm, 1);
                    assert!(same_bits(&bench.floats(out, tokens * rows), &found));
                    for (token, x) in x.chunks(columns).enumerate() {
                        let (expected, bound) = product(&weight, x);
                        // 22 bits of the token's largest number, not of the group's.
                        let largest = x.iter().fold(0.0f64, |m, &x| m.max(f64::from(x).abs()));
                        let weights = weight.values.chunks(columns);
                        let bound = bound
                            .into_iter()
                            .zip(weights)
                            .map(|(b, w)| {
                                let size: f64 = w.iter().map(|w| w.abs()).sum();
                                2.0 * b + largest * size * 2f64.powi(-21)
                            })
                            .collect();
                        let what = format!(
                            "format {format}, {rows} x {columns}, {kind:?}, {token} of {tokens}"
                        );
                        check(&found[token * rows..][..rows], &(expected, bound), &what);
                    }
                    // The first token alone.
                    let one = Gemm { tokens: 1, ..gemm };
                    launch_gemm(&bench, &one, 1000);
                    assert!(same_bits(&bench.floats(out, rows), &found[..rows]));
                }
            }
        }
    }
}
