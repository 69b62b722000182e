//! Attention of a prompt's chunk on tensor cores against f64, and against itself in other pieces.

use crate::bench::{Bench, uniform};
use half::f16;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use w4pack_kernels::cuda::parameters::{Attend, KvLayer, Rows};
use w4pack_runtime::device::MOST_TRIED;

/// Where a test stands.
#[derive(Debug, Clone, Copy)]
struct Case {
    head_dim: usize,
    heads: usize,
    kv_heads: usize,
    /// 0: a full layer.
    window: usize,
    /// Position of the first token.
    first: usize,
    tokens: usize,
}

/// Keys or values: of a full layer all, of a sliding one the ring and the chunk's own.
struct Numbers {
    stored: Vec<f16>,
    staged: Vec<f16>,
}

impl Numbers {
    fn draw(random: &mut ChaCha8Rng, case: &Case) -> Self {
        let row = case.kv_heads * case.head_dim;
        let mut draw = |rows: usize| -> Vec<f16> {
            (0..rows * row).map(|_| f16::from_f32(2.0 * uniform(random) - 1.0)).collect()
        };
        match case.window {
            0 => Self { stored: draw(case.first + case.tokens), staged: Vec::new() },
            window => Self { stored: draw(window + MOST_TRIED), staged: draw(case.tokens) },
        }
    }

    /// A head's numbers at a position.
    fn at(&self, case: &Case, position: usize, kv_head: usize) -> &[f16] {
        let (numbers, row) = match case.window {
            0 => (&self.stored, position),
            _ if position >= case.first => (&self.staged, position - case.first),
            window => (&self.stored, position % (window + MOST_TRIED)),
        };
        &numbers[(row * case.kv_heads + kv_head) * case.head_dim..][..case.head_dim]
    }
}

/// Attention of tokens `from` on, into their rows of `attend.out`.
fn launch(bench: &Bench, attend: &Attend, from: usize, tokens: usize) {
    let width = (attend.heads * attend.cache.head_dim) as u64;
    let part = Attend {
        q: attend.q + 4 * from as u64 * attend.stride,
        out: attend.out + 4 * from as u64 * width,
        first: attend.first + from as i32,
        tokens: tokens as i32,
        ..*attend
    };
    let launch = part.launch_mma(bench.gpu.target()).expect("there is a kernel");
    let grid = launch.grid.map(|size| size as u32);
    bench.launch(&launch.kernel, grid, launch.threads, launch.shared, &part);
}

/// `apart`: rows from the first of the ring's keys to the first of the staged ones.
fn check(bench: &mut Bench, random: &mut ChaCha8Rng, case: &Case, apart: Option<usize>) {
    let &Case { head_dim, heads, kv_heads, window, first, tokens } = case;
    bench.next = bench.arena.address();
    let (keys, values) = (Numbers::draw(random, case), Numbers::draw(random, case));
    let rows = |bench: &mut Bench, keys: &[f16], values: &[f16]| {
        let [keys, values] = [keys, values].map(|rows| bench.put(bytemuck::cast_slice(rows)));
        Rows { keys, values, ..Rows::default() }
    };
    let stored = rows(bench, &keys.stored, &values.stored);
    if let Some(distance) = apart {
        bench.next = stored.keys + (2 * distance * kv_heads * head_dim) as u64;
    }
    let staged = rows(bench, &keys.staged, &values.staged);
    let cache = KvLayer {
        stored,
        staged,
        kv_heads: kv_heads as i32,
        head_dim: head_dim as i32,
        window: window as i32,
        ring: if window == 0 { 0 } else { (window + MOST_TRIED) as i32 },
    };
    let (width, stride) = (heads * head_dim, heads * head_dim + 2 * kv_heads * head_dim);
    let size = 4.0 / (head_dim as f32).sqrt();
    let q: Vec<f32> = (0..tokens * stride).map(|_| size * (2.0 * uniform(random) - 1.0)).collect();
    let attend = Attend {
        cache,
        q: bench.put_floats(&q),
        out: bench.take(4 * tokens * width),
        stride: stride as u64,
        first: first as i32,
        staged_first: first as i32,
        tokens: tokens as i32,
        heads: heads as i32,
    };
    launch(bench, &attend, 0, tokens);
    let found = bench.floats(attend.out, tokens * width);
    let (mut squares, mut allowed) = (0.0, 0.0);
    for token in 0..tokens {
        let position = first + token;
        let seen = if window == 0 { 0 } else { (position + 1).saturating_sub(window) }..=position;
        for head in 0..heads {
            let kv_head = head / (heads / kv_heads);
            let q = &q[token * stride + head * head_dim..][..head_dim];
            let (mut scores, mut size, mut size_squared) = (Vec::new(), 0.0f64, 0.0f64);
            for p in seen.clone() {
                let key = keys.at(case, p, kv_head);
                let terms = q.iter().zip(key).map(|(&q, k)| f64::from(q) * k.to_f64());
                scores.push(terms.clone().sum::<f64>());
                size = size.max(terms.clone().map(f64::abs).sum());
                size_squared = size_squared.max(terms.map(|term| term * term).sum());
            }
            let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
            let total: f64 = weights.iter().sum();
            let mut expected = vec![0.0; head_dim];
            for (p, weight) in seen.clone().zip(&weights) {
                for (e, v) in expected.iter_mut().zip(values.at(case, p, kv_head)) {
                    *e += weight / total * v.to_f64();
                }
            }
            // Values are at most 1. A score is off by q's rounding to f16, 2^-11 of each product, and by
            // f32 sums; a weight by that factor, by its own rounding, 2^-11 of it and 2^-25 of the largest,
            // and by 2^-20 for the power and sums in f32; the result by that of numerator and total.
            let score = size * (2f64.powi(-11) + head_dim as f64 * 2f64.powi(-24));
            let few = weights.len() as f64 * 2f64.powi(-25) / total + 2f64.powi(-20);
            let bound = 2.0 * (score.exp_m1() + 2f64.powi(-11) + few);
            for (i, expected) in expected.iter().enumerate() {
                let found = found[token * width + head * head_dim + i];
                let error = (f64::from(found) - expected).abs();
                assert!(error <= bound, "{case:?}, {token}, {head}, {i}: {error:e} > {bound:e}");
                squares += error * error;
                // Roundings that do not conspire add as squares.
                let usual = 2f64.powi(-11) * (1.0 + size_squared.sqrt()) + few;
                allowed += usual * usual;
            }
        }
    }
    assert!(
        squares <= allowed,
        "{case:?}: usually {:e} of what may be",
        (squares / allowed).sqrt()
    );

    // The same in two pieces, cut where no tile begins.
    for cut in [1, tokens / 2, tokens - 1] {
        // SAFETY: the rows of all tokens.
        unsafe { bench.gpu.fill(attend.out, 0xff, 4 * tokens * width).expect("it is filled") };
        launch(bench, &attend, 0, cut);
        launch(bench, &attend, cut, tokens - cut);
        let pieces = bench.floats(attend.out, tokens * width);
        let same = pieces.iter().zip(&found).all(|(a, b)| a.to_bits() == b.to_bits());
        assert!(same, "{case:?}: cut at {cut}");
    }
}

#[test]
fn attention_of_a_chunk_is_that_of_f64_however_it_is_cut() {
    let Some(mut bench) = Bench::new() else { return };
    let mut random = ChaCha8Rng::seed_from_u64(21);
    for head_dim in [64, 256, 512] {
        for (heads, kv_heads) in [(8, 1), (8, 2), (4, 4)] {
            for (window, first, tokens) in
                [(0, 0, 70), (0, 300, 19), (8, 50, 33), (96, 3, 120), (96, 500, 40), (512, 490, 50)]
            {
                let case = Case { head_dim, heads, kv_heads, window, first, tokens };
                check(&mut bench, &mut random, &case, None);
            }
        }
    }
}

/// A ring whose staged rows begin as many rows further as a tile has positions, or nearly: the row of
/// a tile's first position and that of its last are then as far apart as if all lay between them.
#[test]
fn a_ring_beside_its_staged_rows_is_not_taken_for_one_run() {
    let Some(mut bench) = Bench::new() else { return };
    let mut random = ChaCha8Rng::seed_from_u64(22);
    for distance in (48..=80).step_by(2) {
        for (first, tokens) in [(50, 5), (61, 16), (0, 16)] {
            let (head_dim, heads, kv_heads, window) = (64, 8, 1, 8);
            let case = Case { head_dim, heads, kv_heads, window, first, tokens };
            check(&mut bench, &mut random, &case, Some(distance));
        }
    }
}
