//! What clusters of blocks take of one token, against the kernels that take it step by step: the same bits.

use crate::bench::{Bench, activations, weight};
use crate::support::random;
use crate::{open, shared_card};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use serde_json::json;
use std::path::Path;
use std::sync::Arc;
use w4pack_format::checkpoint::Checkpoint;
use w4pack_format::scale::ScaleDtype;
use w4pack_kernels::cuda::parameters::{
    Input, Kind, Matrix, PRODUCT_THREADS, Span, TokenBlock, TokenLaunch, TokenLong, TokenProduct,
    TokenResult, digit_bytes,
};
use w4pack_kernels::cuda::{Address, Gpu};
use w4pack_runtime::Device;
use w4pack_runtime::device::cuda::{CudaDevice, CudaOptions, Products};

/// Whether the loaded kernels have these clusters; says so if not.
fn has_clusters(gpu: &Gpu) -> bool {
    let has_them = gpu.has_token_clusters();
    if !has_them {
        let test = std::thread::current().name().unwrap_or("a test").to_string();
        eprintln!("skipped: {test}: the kernels for {} have no such clusters", gpu.kernels());
    }
    has_them
}

/// A product by the kernel that takes one alone.
fn product(bench: &Bench, result: TokenResult, matrix: Matrix, fill: impl Fn(&mut TokenProduct)) {
    let (mut product, launch) =
        TokenProduct::new(result, &[matrix], 132, bench.gpu.card().shared_memory);
    fill(&mut product);
    let kernel = result.kernel(matrix.columns as usize);
    bench.launch(kernel, [launch.blocks as u32, 1], PRODUCT_THREADS, launch.shared, &product);
}

fn whole<T>(bench: &Bench, kernel: &str, launch: TokenLaunch, parameters: &T) {
    let grid = [launch.blocks as u32, 1];
    bench.launch(kernel, grid, PRODUCT_THREADS, launch.shared, parameters);
}

#[test]
fn a_per_layer_block_in_one_cluster_is_that_of_two_kernels() {
    let Some(mut bench) = Bench::new() else { return };
    if !has_clusters(&bench.gpu) {
        return;
    }
    let mut random = ChaCha8Rng::seed_from_u64(3);
    let [gate, projection] = [(256, 1536), (1536, 256)].map(|(rows, columns)| {
        weight(&mut bench, &mut random, rows, columns, Kind::PackedF16).matrix
    });
    assert!(TokenBlock::takes(&gate, &projection));
    for scalar in [1.0, 0.75] {
        let mut vector = |count: usize| {
            let numbers = activations(&mut random, count);
            bench.put_floats(&numbers)
        };
        let [stream, delta, delta_norm] = [0; 3].map(|_| vector(1536));
        let gate_with = vector(256);
        let [one_stream, other_stream, one, other] = [0; 4].map(|_| bench.take(4 * 1536));
        let input =
            Input { stream, delta, delta_norm, norm: 0, stream_out: 0, scalar, epsilon: 1e-6 };
        let digits = bench.take(digit_bytes(256) + 16);
        product(&bench, TokenResult::Gated, gate, |product| {
            product.input = Input { stream_out: one_stream, ..input };
            (product.digits_out, product.gate_with) = (digits, gate_with);
        });
        product(&bench, TokenResult::Plain, projection, |product| {
            (product.digits, product.out) = (digits, one);
        });
        let input = Input { stream_out: other_stream, ..input };
        let block = TokenBlock { input, gate, projection, gate_with, out: other };
        whole(&bench, TokenBlock::KERNEL, TokenBlock::LAUNCH, &block);
        let of = |at: Address| bench.bytes(at, 4 * 1536);
        assert!(of(one) == of(other), "the block's output, scalar {scalar}");
        assert!(of(one_stream) == of(other_stream), "the stream, scalar {scalar}");
        assert!(bench.floats(other, 1536).iter().all(|number| number.is_finite()));
    }
}

#[test]
fn long_rows_in_clusters_are_those_of_one_kernel() {
    let Some(mut bench) = Bench::new() else { return };
    if !has_clusters(&bench.gpu) {
        return;
    }
    let mut random = ChaCha8Rng::seed_from_u64(4);
    for (rows, columns) in [(1536, 6144), (32, 6144), (1536, 12288), (64, 12288)] {
        bench.next = bench.arena.address();
        let matrix = weight(&mut bench, &mut random, rows, columns, Kind::PackedF16).matrix;
        let (kernel, launch) = TokenLong::launch(&matrix).expect("it is taken");
        let numbers = activations(&mut random, columns);
        let stream = bench.put_floats(&numbers);
        let [digits, one, other] =
            [digit_bytes(columns) + 16, 4 * rows, 4 * rows].map(|bytes| bench.take(bytes));
        let (input, count, stride) = (Input::plain(stream), columns as i32, 0u64);
        let arguments = [
            std::ptr::from_ref(&input).cast::<std::ffi::c_void>(),
            std::ptr::from_ref(&count).cast(),
            std::ptr::from_ref(&digits).cast(),
            std::ptr::from_ref(&stride).cast(),
        ];
        // SAFETY: the parameters of `digits`, addresses taken here.
        unsafe { bench.gpu.launch("digits", [1, 1], PRODUCT_THREADS, 0, &arguments) }
            .expect("it launches");
        product(&bench, TokenResult::Plain, matrix, |product| {
            (product.digits, product.out) = (digits, one);
        });
        // What is asked for changes nothing.
        let address = matrix.values;
        let ahead = [16, 4096, 5008, 0].map(|bytes| Span { address, bytes });
        whole(&bench, kernel, launch, &TokenLong { matrix, digits, out: other, ahead });
        let of = |at: Address| bench.bytes(at, 4 * rows);
        assert!(of(one) == of(other), "{rows} x {columns}");
        assert!(bench.floats(other, rows).iter().all(|number| number.is_finite()));
    }
}

/// E2B's widths in four layers, of which two own keys and values.
pub(crate) fn of_e2bs_widths() -> serde_json::Value {
    let mut config = random::config();
    let kinds = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"];
    for (name, value) in [
        ("num_hidden_layers", json!(4)),
        ("layer_types", json!(kinds)),
        ("num_kv_shared_layers", json!(2)),
        ("num_attention_heads", json!(8)),
        ("num_key_value_heads", json!(1)),
        ("head_dim", json!(256)),
        ("global_head_dim", json!(512)),
        ("hidden_size", json!(1536)),
        ("intermediate_size", json!(6144)),
        ("hidden_size_per_layer_input", json!(256)),
    ] {
        config[name] = value;
    }
    config
}

fn device(folder: &Path, clusters: bool) -> CudaDevice {
    let checkpoint = Arc::new(Checkpoint::open_folder(folder).expect("it opens"));
    let (memory, products) = (Some(1 << 30), Some(Products::Mma));
    let options =
        CudaOptions { memory, products, context: Some(64), clusters, ..CudaOptions::default() };
    CudaDevice::load(&checkpoint, options, &mut |_| {}).expect("it fits the card")
}

/// E2B's widths in four layers, decoded over the window's edge.
#[test]
fn answers_with_and_without_clusters_are_the_same_to_the_bit() {
    let Some(_card) = shared_card() else { return };
    if !has_clusters(&open()) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    random::packed_with(of_e2bs_widths(), 12, &[ScaleDtype::F16]).write(folder.path());
    let answer = |clusters: bool| {
        let mut device = device(folder.path(), clusters);
        assert!(device.takes_tokens_on_tensor_cores());
        assert_eq!(device.takes_tokens_in_clusters(), clusters);
        let slot = device.make_slot(64).expect("a slot");
        let tokens = random::tokens(2 * random::WINDOW + 3, 5);
        let rows = tokens.iter().map(|&token| device.decode(slot, token).expect("it runs"));
        rows.flatten().map(f32::to_bits).collect::<Vec<u32>>()
    };
    assert!(answer(true) == answer(false));
}
