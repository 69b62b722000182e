//! Products of one token chained in one launch, against one launch each on ordinary cores: the same bits.

use crate::bench::{Bench, activations, weight};
use crate::clusters::of_e2bs_widths;
use crate::kernels::launch_gemv;
use crate::support::random;
use crate::token::ordinary;
use crate::{open, shared_card};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use std::path::Path;
use std::sync::Arc;
use w4pack_format::checkpoint::Checkpoint;
use w4pack_format::scale::ScaleDtype;
use w4pack_kernels::cuda::parameters::{
    ChainProduct, Epilogue, Gemv, Input, Kind, MOST_CHAINED, Matrix, PRODUCT_THREADS, TokenChain,
    TokenResult, digit_bytes,
};
use w4pack_kernels::cuda::{Address, Gpu};
use w4pack_runtime::Device;
use w4pack_runtime::device::cuda::{CudaDevice, CudaOptions, Products};

const HIDDEN: usize = 1536;
const WIDTH: usize = 256;

/// Whether the loaded kernels have chains; says so if not.
fn has_chain(gpu: &Gpu) -> bool {
    let has_it = gpu.has_token_chain();
    if !has_it {
        let test = std::thread::current().name().unwrap_or("a test").to_string();
        eprintln!("skipped: {test}: the kernels for {} have no chains", gpu.kernels());
    }
    has_it
}

/// Matrices of an MLP, a per-layer block, q, k and v, and a head.
struct Layer {
    gate_and_up: [Matrix; 2],
    down: Matrix,
    input_gate: Matrix,
    projection: Matrix,
    qkv: [Matrix; 3],
    head: Matrix,
}

/// What the products leave: outputs of MLP and block, q, k and v, logits, the best id; and the streams.
struct Left {
    outputs: [Address; 5],
    streams: [Address; 3],
}

const QKV_ROWS: [usize; 3] = [544, 16, 32];
const HEAD_ROWS: usize = 3200;

impl Left {
    fn new(bench: &mut Bench) -> Self {
        let qkv = QKV_ROWS.iter().sum::<usize>();
        let outputs = [HIDDEN, HIDDEN, qkv, HEAD_ROWS].map(|count| bench.take(4 * count));
        let [mlp, block, qkv, logits] = outputs;
        let outputs = [mlp, block, qkv, logits, bench.put(&[0; 8])];
        Self { outputs, streams: [0; 3].map(|_| bench.take(4 * HIDDEN)) }
    }

    fn bytes(&self, bench: &Bench) -> Vec<Vec<u8>> {
        let qkv = QKV_ROWS.iter().sum::<usize>();
        let counts = [4 * HIDDEN, 4 * HIDDEN, 4 * qkv, 4 * HEAD_ROWS, 8];
        let outputs = self.outputs.iter().zip(counts);
        let streams = self.streams.iter().map(|&at| bench.bytes(at, 4 * HIDDEN));
        outputs.map(|(&at, count)| bench.bytes(at, count)).chain(streams).collect()
    }
}

/// Vectors that the products read.
#[derive(Clone, Copy)]
struct Vectors {
    stream: Address,
    delta: Address,
    norms: [Address; 6],
    gate_with: Address,
}

/// Where each product's input comes from.
fn inputs(vectors: &Vectors, left: &Left) -> [Input; 4] {
    let [mlp, block, ..] = left.outputs;
    let [one, two, three] = left.streams;
    let norms = vectors.norms;
    let input = |stream, delta, delta_norm, norm, stream_out, scalar| Input {
        stream,
        delta,
        delta_norm,
        norm,
        stream_out,
        scalar,
        epsilon: 1e-6,
    };
    [
        input(vectors.stream, vectors.delta, norms[0], norms[1], one, 1.0),
        input(one, mlp, norms[2], 0, two, 1.0),
        input(two, block, norms[3], norms[4], three, 0.75),
        input(three, 0, 0, norms[5], 0, 1.0),
    ]
}

fn one_by_one(bench: &mut Bench, layer: &Layer, vectors: &Vectors, left: &Left) {
    let [mlp, block, qkv, logits, best] = left.outputs;
    let [of_mlp, of_gate, of_qkv, of_head] = inputs(vectors, left);
    let width = layer.down.columns as usize;
    let (activated, gated) = (bench.take(4 * width), bench.take(4 * WIDTH));
    let bench = &*bench;
    let run = |gemv: Gemv| launch_gemv(bench, &gemv, 1);
    run(ordinary(&layer.gate_and_up, of_mlp, activated, Epilogue::Geglu));
    run(ordinary(&[layer.down], Input::plain(activated), mlp, Epilogue::Store));
    run(Gemv {
        gate_with: vectors.gate_with,
        ..ordinary(&[layer.input_gate], of_gate, gated, Epilogue::Gated)
    });
    run(ordinary(&[layer.projection], Input::plain(gated), block, Epilogue::Store));
    run(ordinary(&layer.qkv, of_qkv, qkv, Epilogue::Store));
    run(Gemv { best, cap: 30.0, ..ordinary(&[layer.head], of_head, logits, Epilogue::Logits) });
}

/// As the launch is on a card with this many multiprocessors.
fn chained(
    bench: &mut Bench,
    layer: &Layer,
    vectors: &Vectors,
    left: &Left,
    multiprocessors: usize,
    prefetch: bool,
) {
    let [mlp, block, qkv, logits, best] = left.outputs;
    let [of_mlp, of_gate, of_qkv, of_head] = inputs(vectors, left);
    let width = layer.down.columns as usize;
    let activated = bench.take(digit_bytes(width) + 16);
    let gated = bench.take(digit_bytes(WIDTH) + 16);
    let done = bench.put(&[0; 4 * MOST_CHAINED]);
    let product = |result, parts: &[Matrix]| {
        ChainProduct::new(result, parts, multiprocessors).expect("it is taken")
    };
    let mut chain = [
        product(TokenResult::Geglu, &layer.gate_and_up),
        product(TokenResult::Plain, &[layer.down]),
        product(TokenResult::Gated, &[layer.input_gate]),
        product(TokenResult::Plain, &[layer.projection]),
        product(TokenResult::Normed, &layer.qkv),
        product(TokenResult::Logits, &[layer.head]),
    ];
    let [mlp_product, down, gate, projection, of_three, head] = &mut chain;
    (mlp_product.product.input, mlp_product.product.digits_out) = (of_mlp, activated);
    (down.product.digits, down.product.out) = (activated, mlp);
    (gate.product.input, gate.product.digits_out) = (of_gate, gated);
    gate.product.gate_with = vectors.gate_with;
    (projection.product.digits, projection.product.out) = (gated, block);
    (of_three.product.input, of_three.product.out) = (of_qkv, qkv);
    (head.product.input, head.product.out) = (of_head, logits);
    (head.product.best, head.product.cap) = (best, 30.0);
    let (chain, launch) = TokenChain::new(&chain, done, prefetch);
    // Twice: counts are 0 again behind a launch.
    for _ in 0..2 {
        let grid = [launch.blocks as u32, 1];
        bench.launch(TokenChain::KERNEL, grid, PRODUCT_THREADS, launch.shared, &chain);
    }
    assert!(bench.bytes(done, 4 * MOST_CHAINED).iter().all(|&byte| byte == 0), "counts");
}

#[test]
fn chained_products_are_those_of_a_launch_each() {
    let Some(mut bench) = Bench::new() else { return };
    if !has_chain(&bench.gpu) {
        return;
    }
    let mut random = ChaCha8Rng::seed_from_u64(21);
    for width in [2048, 3072, 4096, 6144, 9216, 12_288] {
        bench.next = bench.arena.address();
        let mut matrix =
            |rows, columns| weight(&mut bench, &mut random, rows, columns, Kind::PackedF16).matrix;
        let layer = Layer {
            gate_and_up: [matrix(width, HIDDEN), matrix(width, HIDDEN)],
            down: matrix(HIDDEN, width),
            input_gate: matrix(WIDTH, HIDDEN),
            projection: matrix(HIDDEN, WIDTH),
            qkv: QKV_ROWS.map(|rows| matrix(rows, HIDDEN)),
            head: matrix(HEAD_ROWS, HIDDEN),
        };
        let mut vector = |count: usize| {
            let numbers = activations(&mut random, count);
            bench.put_floats(&numbers)
        };
        let vectors = Vectors {
            stream: vector(HIDDEN),
            delta: vector(HIDDEN),
            norms: [0; 6].map(|_| vector(HIDDEN)),
            gate_with: vector(WIDTH),
        };
        let left = Left::new(&mut bench);
        one_by_one(&mut bench, &layer, &vectors, &left);
        let expected = left.bytes(&bench);
        let finite = |bytes: &Vec<u8>| bytes.chunks(4).all(|b| b != [0xff; 4]);
        assert!(expected.iter().all(finite), "{width}: something was not written");
        for multiprocessors in [1, 3, 132] {
            for prefetch in [false, true] {
                let left = Left::new(&mut bench);
                chained(&mut bench, &layer, &vectors, &left, multiprocessors, prefetch);
                for (number, (one, other)) in expected.iter().zip(left.bytes(&bench)).enumerate() {
                    let what = format!("{width}, {multiprocessors}, {prefetch}: {number}");
                    assert!(*one == other, "{what}");
                }
            }
        }
    }
}

fn device(folder: &Path, products: Products, chains: bool) -> CudaDevice {
    let checkpoint = Arc::new(Checkpoint::open_folder(folder).expect("it opens"));
    let options = CudaOptions {
        memory: Some(1 << 30),
        products: Some(products),
        context: Some(700),
        clusters: chains,
        ..CudaOptions::default()
    };
    CudaDevice::load(&checkpoint, options, &mut |_| {}).expect("it fits the card")
}

/// E2B's widths in four layers, decoded over the window's edge, over every way to share a full layer's positions.
#[test]
fn answers_with_and_without_chains_are_the_same_to_the_bit() {
    let Some(_card) = shared_card() else { return };
    if !has_chain(&open()) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    random::packed_with(of_e2bs_widths(), 12, &[ScaleDtype::F16]).write(folder.path());
    for products in [Products::Mma, Products::Ffma] {
        let answer = |chains: bool| {
            let mut device = device(folder.path(), products, chains);
            assert_eq!(device.takes_tokens_in_chains(), chains);
            let slot = device.make_slot(700).expect("a slot");
            let tokens = random::tokens(600, 5);
            let rows = tokens.iter().map(|&token| device.decode(slot, token).expect("it runs"));
            rows.flatten().map(f32::to_bits).collect::<Vec<u32>>()
        };
        assert!(answer(true) == answer(false), "{products:?}");
    }
}
