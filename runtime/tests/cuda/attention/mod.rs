//! Attention of one token against f64: on tensor cores and on ordinary ones, full and sliding
//! layers, every kind of cache, at odd depths up to the longest context.

mod expected;

use crate::bench::{Bench, activations, uniform};
use expected::{check_result, check_stored};
use half::{bf16, f16};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use w4pack_kernels::cuda::Address;
use w4pack_kernels::cuda::parameters::{
    ATTENTION_HEADS, ATTENTION_THREADS, Attention, KvLayer, Rows, SLIDING_PIECES, Span,
    TokenAttention, digit_bytes,
};
use w4pack_runtime::device::MOST_TRIED;
use w4pack_runtime::device::cuda::KvType;

/// Threads of a block of the kernels on ordinary cores.
const ORDINARY_THREADS: u32 = 128;

/// Where a test stands.
#[derive(Debug, Clone, Copy)]
struct Case {
    kv: KvType,
    /// Query heads.
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    /// 0: a full layer.
    window: usize,
    position: usize,
    /// Whether the layer stores a key and a value of its own.
    owns: bool,
}

impl Case {
    fn row(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Rows of the ring: more than the window, as in a model.
    fn ring(&self) -> usize {
        if self.window == 0 { 0 } else { self.window + MOST_TRIED }
    }

    fn slots(&self) -> usize {
        if self.window == 0 { self.position + 1 } else { self.ring() }
    }

    fn slot(&self, position: usize) -> usize {
        if self.window == 0 { position } else { position % self.ring() }
    }

    fn first(&self) -> usize {
        if self.window == 0 { 0 } else { (self.position + 1).saturating_sub(self.window) }
    }
}

/// What lies on the card for a case, and its host copies.
struct Inputs {
    cache: KvLayer,
    /// Rows before the launch, as bytes: keys, values.
    before: [Vec<u8>; 2],
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    q_norm: Vec<f32>,
    k_norm: Vec<f32>,
    turns: Vec<f32>,
    pairs: usize,
}

fn inputs(bench: &mut Bench, random: &mut ChaCha8Rng, case: &Case) -> Inputs {
    bench.next = bench.arena.address();
    let numbers = case.slots() * case.row();
    let mut rows = || -> Vec<u8> {
        match case.kv {
            KvType::F16 => {
                let numbers = (0..numbers).map(|_| f16::from_f32(2.0 * uniform(random) - 1.0));
                numbers.flat_map(f16::to_le_bytes).collect()
            }
            KvType::Bf16 => {
                let numbers = (0..numbers).map(|_| bf16::from_f32(2.0 * uniform(random) - 1.0));
                numbers.flat_map(bf16::to_le_bytes).collect()
            }
            // Codes -127..127.
            KvType::Q8 => {
                (0..numbers).map(|_| (random.next_u32() % 255).wrapping_sub(127) as u8).collect()
            }
        }
    };
    let before = [rows(), rows()];
    let [keys, values] = [&before[0], &before[1]].map(|rows| bench.put(rows));
    let mut steps = || match case.kv {
        KvType::Q8 => {
            let steps = (0..numbers / 32).map(|_| f16::from_f32((0.5 + uniform(random)) / 127.0));
            bench.put(&steps.flat_map(f16::to_le_bytes).collect::<Vec<u8>>())
        }
        _ => 0,
    };
    let stored = Rows { keys, values, key_steps: steps(), value_steps: steps() };
    let cache = KvLayer {
        stored,
        staged: Rows::default(),
        kv_heads: case.kv_heads as i32,
        head_dim: case.head_dim as i32,
        window: case.window as i32,
        ring: case.ring() as i32,
    };
    let mut vector = |count: usize, size: f32| -> Vec<f32> {
        activations(random, count).into_iter().map(|x| size * x).collect()
    };
    let pairs = case.head_dim / 4;
    let angle = |pair: usize| case.position as f32 * 0.9f32.powi(pair as i32);
    Inputs {
        cache,
        before,
        q: vector(case.heads * case.head_dim, 1.0),
        k: vector(case.row(), 1.0),
        v: vector(case.row(), 1.0),
        q_norm: vector(case.head_dim, 0.3),
        k_norm: vector(case.head_dim, 1.0),
        turns: (0..pairs).flat_map(|pair| [angle(pair).cos(), angle(pair).sin()]).collect(),
        pairs,
    }
}

/// The cache's keys or values as numbers, `[slots, row]`.
fn rows(bench: &Bench, case: &Case, at: Address, steps: Address) -> Vec<f64> {
    let numbers = case.slots() * case.row();
    let halves = || bytemuck::pod_collect_to_vec::<u8, u16>(&bench.bytes(at, 2 * numbers));
    match case.kv {
        KvType::F16 => halves().into_iter().map(|bits| f16::from_bits(bits).to_f64()).collect(),
        KvType::Bf16 => halves().into_iter().map(|bits| bf16::from_bits(bits).to_f64()).collect(),
        KvType::Q8 => {
            let steps: Vec<u16> = bytemuck::pod_collect_to_vec(&bench.bytes(steps, numbers / 16));
            let codes = bench.bytes(at, numbers);
            let value = |(i, &code): (usize, &u8)| {
                f64::from(code as i8) * f16::from_bits(steps[i / 32]).to_f64()
            };
            codes.iter().enumerate().map(value).collect()
        }
    }
}

/// Numbers from their digits.
fn numbers(bench: &Bench, digits: Address, columns: usize) -> Vec<f64> {
    let raw = bench.bytes(digits, digit_bytes(columns));
    let groups = columns / 32;
    let scale = |group: usize| {
        let at = 96 * groups + 8 * group;
        f64::from(f32::from_le_bytes(raw[at..at + 4].try_into().expect("four bytes")))
    };
    let number = |i: usize| {
        let (group, k) = (i / 32, i % 32);
        let (word, odd, byte) = (k / 8, k % 2, k % 8 / 2);
        let digit = |d: usize| {
            let plane = (2 * d + word / 2) * groups + group;
            f64::from(raw[16 * plane + 8 * (word % 2) + 4 * odd + byte] as i8)
        };
        (digit(0) + 256.0 * digit(1) + 65536.0 * digit(2)) * scale(group)
    };
    (0..columns).map(number).collect()
}

fn check_on_tensor_cores(bench: &mut Bench, random: &mut ChaCha8Rng, case: &Case) {
    let inputs = inputs(bench, random, case);
    let is_full = case.window == 0;
    let max_pieces = if is_full { 264 } else { SLIDING_PIECES };
    let digits_out = bench.take(digit_bytes(case.heads * case.head_dim) + 16);
    let step = [case.position as u32, 0, 0, 0];
    let attention = TokenAttention {
        cache: inputs.cache,
        q: bench.put_floats(&inputs.q),
        k: if case.owns { bench.put_floats(&inputs.k) } else { 0 },
        v: if case.owns { bench.put_floats(&inputs.v) } else { 0 },
        q_norm: bench.put_floats(&inputs.q_norm),
        k_norm: bench.put_floats(&inputs.k_norm),
        turns: bench.put_floats(&inputs.turns),
        digits_out,
        pieces: bench.take(4 * case.heads * max_pieces * case.head_dim),
        piece_state: bench.take(8 * case.heads * max_pieces),
        step: bench.put(bytemuck::cast_slice(&step)),
        ahead: [Span::default(); 2],
        epsilon: 1e-6,
        pairs: inputs.pairs as i32,
        heads: case.heads as i32,
        max_pieces: max_pieces as i32,
        slots: 0,
        slot_bytes: 0,
        qkv_stride: 0,
        turns_stride: 0,
        is_draft: 0,
        padding: 0,
    };
    let kind = if is_full { "full" } else { "sliding" };
    let kernel = format!("token_attention_{kind}_{}", case.head_dim);
    let grid = [max_pieces as u32, case.kv_heads as u32];
    bench.launch(&kernel, grid, ATTENTION_THREADS, 0, &attention);
    if is_full || !bench.gpu.has_clusters() {
        let grid = [case.head_dim as u32 / 32, case.heads as u32];
        bench.launch("token_join", grid, ATTENTION_THREADS, 0, &attention);
    }
    let found = numbers(bench, digits_out, case.heads * case.head_dim);
    let stored = inputs.cache.stored;
    let keys = rows(bench, case, stored.keys, stored.key_steps);
    let values = rows(bench, case, stored.values, stored.value_steps);
    check_stored(bench, &inputs, case, [&keys, &values]);
    check_result(case, &inputs, [&keys, &values], &found, true);
}

/// `rows_at_once` query heads in a block; the last block or another kernel joins the pieces.
fn check_on_ordinary_cores(
    bench: &mut Bench,
    random: &mut ChaCha8Rng,
    case: &Case,
    rows_at_once: usize,
    max_pieces: usize,
    join_here: bool,
) {
    let inputs = inputs(bench, random, case);
    let out = bench.take(4 * case.heads * case.head_dim);
    let step = [case.position as u32, 0, 0, 0];
    let attention = Attention {
        cache: inputs.cache,
        q: bench.put_floats(&inputs.q),
        k: if case.owns { bench.put_floats(&inputs.k) } else { 0 },
        v: if case.owns { bench.put_floats(&inputs.v) } else { 0 },
        q_norm: bench.put_floats(&inputs.q_norm),
        k_norm: bench.put_floats(&inputs.k_norm),
        turns: bench.put_floats(&inputs.turns),
        out,
        digits_out: 0,
        pieces: bench.take(4 * case.heads * max_pieces * case.head_dim),
        piece_state: bench.take(8 * case.heads * max_pieces),
        finished: bench.put(&vec![0; 4 * case.heads]),
        step: bench.put(bytemuck::cast_slice(&step)),
        ahead: [Span::default(); 2],
        epsilon: 1e-6,
        pairs: inputs.pairs as i32,
        heads: case.heads as i32,
        max_pieces: max_pieces as i32,
        join_here: i32::from(join_here),
        rows: rows_at_once as i32,
    };
    let kernel = format!("attention_{}_{}_{rows_at_once}", case.kv.name(), case.head_dim);
    let grid = [max_pieces as u32, (case.heads / rows_at_once) as u32];
    bench.launch(&kernel, grid, ORDINARY_THREADS, 0, &attention);
    if !join_here {
        let grid = [case.head_dim.div_ceil(64) as u32, case.heads as u32];
        bench.launch("attention_join", grid, 64, 0, &attention);
    }
    let found: Vec<f64> =
        bench.floats(out, case.heads * case.head_dim).into_iter().map(f64::from).collect();
    let stored = inputs.cache.stored;
    let keys = rows(bench, case, stored.keys, stored.key_steps);
    let values = rows(bench, case, stored.values, stored.value_steps);
    check_stored(bench, &inputs, case, [&keys, &values]);
    check_result(case, &inputs, [&keys, &values], &found, false);
}

#[test]
fn attention_of_a_token_on_tensor_cores_is_that_of_f64() {
    let Some(mut bench) = Bench::new() else { return };
    let mut random = ChaCha8Rng::seed_from_u64(12);
    for head_dim in [64, 256, 512] {
        for kv_heads in [1, 2] {
            for position in [0, 1, 62, 63, 64, 65, 127, 300, 511, 512, 700, 1337, 20_001, 131_071] {
                // The long one is a matter of pieces, not of heads.
                if position > 2000 && kv_heads > 1 {
                    continue;
                }
                // The last one of the longest context, where E2B has full layers.
                if position > 100_000 && head_dim != 512 {
                    continue;
                }
                for owns in [true, false] {
                    let windows: &[usize] = if position > 2000 { &[0] } else { &[0, 100, 512] };
                    for &window in windows {
                        let heads = ATTENTION_HEADS * kv_heads;
                        let kv = KvType::F16;
                        let case = Case { kv, heads, kv_heads, head_dim, window, position, owns };
                        check_on_tensor_cores(&mut bench, &mut random, &case);
                    }
                }
            }
        }
    }
}

#[test]
fn attention_of_a_token_on_ordinary_cores_is_that_of_f64() {
    let Some(mut bench) = Bench::new() else { return };
    let mut random = ChaCha8Rng::seed_from_u64(13);
    for kv in [KvType::F16, KvType::Bf16, KvType::Q8] {
        for head_dim in [32, 64, 256, 512] {
            for position in [0, 1, 63, 64, 65, 301, 511, 512, 1337, 9001, 131_071] {
                // The last one of the longest context, where E2B has full layers.
                if position > 100_000 && head_dim != 512 {
                    continue;
                }
                for owns in [true, false] {
                    let case = |heads, kv_heads, window| Case {
                        kv,
                        heads,
                        kv_heads,
                        head_dim,
                        window,
                        position,
                        owns,
                    };
                    let mut check = |case: Case, rows_at_once, max_pieces, join_here| {
                        let random = &mut random;
                        let bench = &mut bench;
                        check_on_ordinary_cores(
                            bench,
                            random,
                            &case,
                            rows_at_once,
                            max_pieces,
                            join_here,
                        );
                    };
                    if position < 20_000 {
                        check(case(4, 2, 0), 1, 8, true);
                        check(case(4, 2, 100), 1, 2, true);
                        check(case(8, 1, 512), 1, 8, true);
                    }
                    if [64, 512].contains(&head_dim) {
                        check(case(8, 1, 0), 8, 264, false);
                    }
                }
            }
        }
    }
}
