//! The kernels that take one token on tensor cores: products against the ordinary cores' bits,
//! attention against f64.

use crate::kernels::{Bench, activations, launch_gemv, uniform, weight};
use half::f16;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use std::ffi::c_void;
use w4pack_kernels::cuda::Address;
use w4pack_kernels::cuda::parameters::{
    ATTENTION_HEADS, ATTENTION_THREADS, Epilogue, GEMV_THREADS, Gemv, Input, Kind, KvLayer, Matrix,
    PRODUCT_THREADS, Rows, SLIDING_PIECES, Span, TokenAttention, TokenProduct, TokenResult,
    digit_bytes, row_shape,
};

/// Rows and columns: those of E2B with fewer rows, and odd ones.
const SHAPES: [(usize, usize); 8] = [
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
fn ordinary(parts: &[Matrix], input: Input, out: Address, epilogue: Epilogue) -> Gemv {
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

fn bytes(bench: &Bench, address: Address, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    // SAFETY: the callers ask for what they have taken.
    unsafe { bench.gpu.download(&mut bytes, address).expect("it is copied") };
    bytes
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
        let of = |bench: &Bench, at: Address, count: usize| bytes(bench, at, 4 * count);

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
        let expected = bytes(&bench, expected, size);
        assert!(expected == bytes(&bench, found, size), "gate and up, {what}");

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
        let expected = bytes(&bench, expected, size);
        assert!(expected == bytes(&bench, found, size), "gated, {what}");

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
        assert_eq!(bytes(&bench, best[0], 8), bytes(&bench, best[1], 8), "best, {what}");
    }
}

/// Numbers from their digits.
fn numbers(bench: &Bench, digits: Address, columns: usize) -> Vec<f64> {
    let raw = bytes(bench, digits, digit_bytes(columns));
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

/// Where a test of attention stands.
struct Case {
    head_dim: usize,
    kv_heads: usize,
    /// 0: a full layer.
    window: usize,
    position: usize,
    owns: bool,
}

fn rms(head: &[f64]) -> Vec<f64> {
    let mean = head.iter().map(|x| x * x).sum::<f64>() / head.len() as f64;
    head.iter().map(|x| x / (mean + 1e-6).sqrt()).collect()
}

/// Norm and rotation in f64, of the pairs (j, j + head_dim / 2).
fn turned(head: &[f32], norm: &[f32], turns: &[f32]) -> Vec<f64> {
    let wide: Vec<f64> = head.iter().map(|&x| f64::from(x)).collect();
    let mut head: Vec<f64> = rms(&wide).iter().zip(norm).map(|(x, &w)| x * f64::from(w)).collect();
    let half = head.len() / 2;
    for (pair, turn) in turns.chunks(2).enumerate() {
        let (cosine, sine) = (f64::from(turn[0]), f64::from(turn[1]));
        let (low, high) = (head[pair], head[pair + half]);
        head[pair] = low * cosine - high * sine;
        head[pair + half] = high * cosine + low * sine;
    }
    head
}

fn check_attention(bench: &mut Bench, random: &mut ChaCha8Rng, case: &Case) {
    let Case { head_dim, kv_heads, window, position, owns } = *case;
    let heads = ATTENTION_HEADS * kv_heads;
    let what = format!("heads of {head_dim}, {kv_heads} kv, window {window}, at {position}");
    bench.next = bench.arena.address();
    let slots = if window == 0 { position + 1 } else { window };
    let row = kv_heads * head_dim;
    let mut halves = |count: usize| -> Vec<f16> {
        (0..count).map(|_| f16::from_f32(2.0 * uniform(random) - 1.0)).collect()
    };
    let (keys, values) = (halves(slots * row), halves(slots * row));
    let [key_rows, value_rows] = [&keys, &values].map(|rows| bench.put(bytemuck::cast_slice(rows)));
    let mut vector = |count: usize| activations(random, count);
    let (q, k, v) = (vector(heads * head_dim), vector(row), vector(row));
    let gentle = |numbers: Vec<f32>| -> Vec<f32> { numbers.iter().map(|x| 0.3 * x).collect() };
    let (q_norm, k_norm) = (gentle(vector(head_dim)), vector(head_dim));
    let pairs = head_dim / 4;
    let turns: Vec<f32> = (0..pairs)
        .flat_map(|pair| {
            let angle = position as f32 * 0.9f32.powi(pair as i32);
            [angle.cos(), angle.sin()]
        })
        .collect();
    let full_pieces = 264;
    let max_pieces = if window == 0 { full_pieces } else { SLIDING_PIECES };
    let step = [position as u32, 0, 0, 0];
    let digits_out = bench.take(digit_bytes(heads * head_dim) + 16);
    let attention = TokenAttention {
        cache: KvLayer {
            stored: Rows { keys: key_rows, values: value_rows, ..Rows::default() },
            staged: Rows::default(),
            kv_heads: kv_heads as i32,
            head_dim: head_dim as i32,
            window: window as i32,
            padding: 0,
        },
        q: bench.put_floats(&q),
        k: if owns { bench.put_floats(&k) } else { 0 },
        v: if owns { bench.put_floats(&v) } else { 0 },
        q_norm: bench.put_floats(&q_norm),
        k_norm: bench.put_floats(&k_norm),
        turns: bench.put_floats(&turns),
        digits_out,
        pieces: bench.take(4 * heads * max_pieces * head_dim),
        piece_state: bench.take(8 * heads * max_pieces),
        step: bench.put(bytemuck::cast_slice(&step)),
        ahead: [Span::default(); 2],
        epsilon: 1e-6,
        pairs: pairs as i32,
        heads: heads as i32,
        max_pieces: max_pieces as i32,
    };
    let kind = if window == 0 { "full" } else { "sliding" };
    let kernel = format!("token_attention_{kind}_{head_dim}");
    let grid = [max_pieces as u32, kv_heads as u32];
    bench.launch(&kernel, grid, ATTENTION_THREADS, 0, &attention);
    if window == 0 || !bench.gpu.has_clusters() {
        let grid = [head_dim as u32 / 32, heads as u32];
        bench.launch("token_join", grid, ATTENTION_THREADS, 0, &attention);
    }
    let found = numbers(bench, digits_out, heads * head_dim);

    // The cache as it is now: the token's own row was stored, rounded to f16 once.
    let stored = |address: Address| -> Vec<f16> {
        bytemuck::pod_collect_to_vec(&bytes(bench, address, 2 * slots * row))
    };
    let (keys_now, values_now) = (stored(key_rows), stored(value_rows));
    let own_slot = if window == 0 { position } else { position % window };
    for kv_head in 0..kv_heads {
        let part = kv_head * head_dim..(kv_head + 1) * head_dim;
        let own_key = turned(&k[part.clone()], &k_norm, &turns);
        let wide: Vec<f64> = v[part.clone()].iter().map(|&x| f64::from(x)).collect();
        for (own, now, before) in [(own_key, &keys_now, &keys), (rms(&wide), &values_now, &values)]
        {
            let at = own_slot * row + kv_head * head_dim;
            for (i, own) in own.iter().enumerate() {
                let (now, before) = (now[at + i], before[at + i]);
                if owns {
                    // Half a unit of f16, and what f32 leaves open beside a rounding boundary.
                    let bound = own.abs() * (2f64.powi(-11) + 1e-5) + 1e-5;
                    assert!((now.to_f64() - own).abs() <= bound, "stored, {what}");
                } else {
                    assert_eq!(now.to_bits(), before.to_bits(), "stored, {what}");
                }
            }
        }
    }

    let first = if window == 0 { 0 } else { (position + 1).saturating_sub(window) };
    for head in 0..heads {
        let q = turned(&q[head * head_dim..][..head_dim], &q_norm, &turns);
        let kv_head = head / ATTENTION_HEADS;
        let at = |p: usize| {
            let slot = if window == 0 { p } else { p % window };
            slot * row + kv_head * head_dim
        };
        let (mut scores, mut size) = (Vec::new(), 0.0f64);
        for p in first..=position {
            let key = &keys_now[at(p)..][..head_dim];
            scores.push(q.iter().zip(key).map(|(q, k)| q * k.to_f64()).sum::<f64>());
            let sizes = q.iter().zip(key).map(|(q, k)| (q * k.to_f64()).abs());
            size = size.max(sizes.sum::<f64>());
        }
        let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
        let total: f64 = weights.iter().sum();
        // A score is off by what q's norm and rotation are in f32 (a few 2^-23), its two f16 (2^-22)
        // and sums in f32 of head_dim/16 products: s; a weight by a factor of 1 +- s and 2^-25 of
        // the largest (two f16); the result by twice that of the largest value; the digits by
        // 2^-21 of the largest of a group.
        let s = size * (8.0 * 2f64.powi(-23) + (head_dim / 16) as f64 * 2f64.powi(-24));
        let mut largest_value = 0.0f64;
        let mut expected = vec![0.0; head_dim];
        for (p, weight) in (first..=position).zip(&weights) {
            for (e, v) in expected.iter_mut().zip(&values_now[at(p)..][..head_dim]) {
                *e += weight / total * v.to_f64();
                largest_value = largest_value.max(v.to_f64().abs());
            }
        }
        let count = weights.len() as f64;
        let of_weights = s + count * 2f64.powi(-25) / total + count.sqrt() * 2f64.powi(-23);
        let bound = largest_value * (2.0 * of_weights + 2f64.powi(-20));
        for (i, expected) in expected.iter().enumerate() {
            let error = (found[head * head_dim + i] - expected).abs();
            assert!(error <= bound, "{what}, head {head}, {i}: {error:e} > {bound:e}");
        }
    }
}

#[test]
fn attention_of_a_token_is_that_of_f64() {
    let Some(mut bench) = Bench::new() else { return };
    let mut random = ChaCha8Rng::seed_from_u64(12);
    for head_dim in [64, 256, 512] {
        for kv_heads in [1, 2] {
            for position in [0, 1, 62, 63, 64, 65, 127, 300, 511, 512, 700, 1337, 20_000, 131_071] {
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
                        let case = Case { head_dim, kv_heads, window, position, owns };
                        check_attention(&mut bench, &mut random, &case);
                    }
                }
            }
        }
    }
}
