//! Products of one token on tensor cores, against the ordinary cores' bits.

use crate::bench::{Bench, activations, weight};
use crate::kernels::launch_gemv;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use std::ffi::c_void;
use w4pack_kernels::cuda::Address;
use w4pack_kernels::cuda::parameters::{
    Epilogue, GEMV_THREADS, Gemv, Input, Kind, Matrix, PRODUCT_THREADS, TokenProduct, TokenResult,
    digit_bytes, row_shape,
};

/// Rows and columns: those of E2B with fewer rows, and odd ones.
pub const SHAPES: [(usize, usize); 8] = [
    (544, 1536),
    (96, 2048),
    (96, 4096),
    (64, 6144),
    (32, 12288),
    (256, 256),
    (64, 384),
    (32, 2560),
];

/// The product on ordinary cores.
pub(crate) fn ordinary(parts: &[Matrix], input: Input, out: Address, epilogue: Epilogue) -> Gemv {
    let columns = parts[0].columns;
    let (lanes, slices) = row_shape(columns as usize);
    let mut part = [Matrix::NONE; 3];
    part[..parts.len()].copy_from_slice(parts);
    let rows = match epilogue {
        Epilogue::Geglu => part[0].rows,
        _ => parts.iter().map(|part| part.rows).sum(),
    };
    Gemv {
        part,
        input,
        digits: 0,
        out,
        gate_with: 0,
        best: 0,
        digit_stride: 0,
        gate_stride: 0,
        cap: 0.0,
        parts: parts.len() as i32,
        rows,
        columns,
        lanes,
        slices,
        pairs_per_block: 16,
        epilogue: epilogue as i32,
    }
}

/// The digits of a vector, made by the kernel that only does that.
fn digits(bench: &mut Bench, input: Input, columns: usize) -> Address {
    let out = bench.take(digit_bytes(columns) + 16);
    let (columns, stride) = (columns as i32, 0u64);
    let arguments = [
        std::ptr::from_ref(&input).cast::<c_void>(),
        std::ptr::from_ref(&columns).cast(),
        std::ptr::from_ref(&out).cast(),
        std::ptr::from_ref(&stride).cast(),
    ];
    // SAFETY: the parameters of `digits`, addresses taken here.
    unsafe { bench.gpu.launch("digits", [1, 1], GEMV_THREADS, 0, &arguments) }
        .expect("it launches");
    out
}

/// Launches the product on tensor cores; on a few multiprocessors, so that blocks have much to do.
fn launch(bench: &Bench, result: TokenResult, parts: &[Matrix], fill: impl Fn(&mut TokenProduct)) {
    for multiprocessors in [3, 132] {
        let (mut product, launch) =
            TokenProduct::new(result, parts, multiprocessors, bench.gpu.card().shared_memory);
        fill(&mut product);
        let grid = [launch.blocks as u32, 1];
        bench.launch(
            result.kernel(product.columns as usize),
            grid,
            PRODUCT_THREADS,
            launch.shared,
            &product,
        );
    }
}

#[test]
fn tensor_cores_give_the_bits_of_ordinary_ones() {
    let Some(mut bench) = Bench::new() else { return };
    let mut random = ChaCha8Rng::seed_from_u64(11);
    for (rows, columns) in SHAPES {
        bench.next = bench.arena.address();
        let what = format!("{rows} x {columns}");
        let mut matrix = |bench: &mut Bench, rows: usize| {
            weight(bench, &mut random, rows, columns, Kind::PackedF16).matrix
        };
        let parts = [matrix(&mut bench, rows), matrix(&mut bench, rows), matrix(&mut bench, 16)];
        let mut vector = |count: usize| {
            let numbers = activations(&mut random, count);
            bench.put_floats(&numbers)
        };
        let [stream, delta, delta_norm, norm] = [0; 4].map(|_| vector(columns));
        let gate_with = vector(rows);
        let normed =
            Input { stream, delta, delta_norm, norm, stream_out: 0, scalar: 0.75, epsilon: 1e-6 };
        let ungated = Input { norm: 0, ..normed };
        let all = 2 * rows + 16;
        let (one, other) = (bench.take(4 * all), bench.take(4 * all));
        let of = |bench: &Bench, at: Address, count: usize| bench.bytes(at, 4 * count);

        launch_gemv(&bench, &ordinary(&parts, normed, one, Epilogue::Store), 1);
        launch(&bench, TokenResult::Normed, &parts, |product| {
            (product.input, product.out) = (normed, other);
        });
        assert!(of(&bench, one, all) == of(&bench, other, all), "three parts, {what}");

        launch_gemv(&bench, &ordinary(&parts[..1], Input::plain(stream), one, Epilogue::Store), 1);
        let made = digits(&mut bench, Input::plain(stream), columns);
        launch(&bench, TokenResult::Plain, &parts[..1], |product| {
            (product.digits, product.out) = (made, other);
        });
        assert!(of(&bench, one, rows) == of(&bench, other, rows), "from digits, {what}");

        let size = digit_bytes(rows);
        let found = bench.take(size + 16);
        launch_gemv(&bench, &ordinary(&parts[..2], normed, one, Epilogue::Geglu), 1);
        let expected = digits(&mut bench, Input::plain(one), rows);
        launch(&bench, TokenResult::Geglu, &parts[..2], |product| {
            (product.input, product.digits_out) = (normed, found);
        });
        let expected = bench.bytes(expected, size);
        assert!(expected == bench.bytes(found, size), "gate and up, {what}");

        let gated = Gemv {
            gate_with,
            gate_stride: rows as i32,
            ..ordinary(&parts[..1], ungated, one, Epilogue::Gated)
        };
        launch_gemv(&bench, &gated, 1);
        let expected = digits(&mut bench, Input::plain(one), rows);
        launch(&bench, TokenResult::Gated, &parts[..1], |product| {
            (product.input, product.digits_out) = (ungated, found);
            product.gate_with = gate_with;
        });
        let expected = bench.bytes(expected, size);
        assert!(expected == bench.bytes(found, size), "gated, {what}");

        let best = [bench.put(&[0; 8]), bench.put(&[0; 8])];
        let logits = Gemv {
            best: best[0],
            cap: 30.0,
            ..ordinary(&parts[..1], normed, one, Epilogue::Logits)
        };
        launch_gemv(&bench, &logits, 1);
        launch(&bench, TokenResult::Logits, &parts[..1], |product| {
            (product.input, product.out) = (normed, other);
            (product.best, product.cap) = (best[1], 30.0);
        });
        assert!(of(&bench, one, rows) == of(&bench, other, rows), "logits, {what}");
        assert_eq!(bench.bytes(best[0], 8), bench.bytes(best[1], 8), "best, {what}");
    }
}
