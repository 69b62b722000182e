//! Tokens of several sequences in one step: to the bit what each of them has alone.

use crate::bench::{Bench, activations, weight};
use crate::shared_card;
use crate::support::random;
use crate::token::SHAPES;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use std::ffi::c_void;
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;
use w4pack_format::checkpoint::Checkpoint;
use w4pack_format::scale::ScaleDtype;
use w4pack_kernels::cuda::parameters::{
    BatchProduct, Input, Kind, Matrix, PRODUCT_THREADS, TokenProduct, TokenResult,
    batch_digit_bytes, digit_bytes,
};
use w4pack_runtime::device::cuda::{CudaDevice, CudaOptions, Products, When};
use w4pack_runtime::device::{DecodeStep, Decoded, Slot, Wanted, Work};
use w4pack_runtime::{Device, RuntimeError};

const MOST: usize = 16;

/// The three digits of every number and the ends of every group of a vector of `rows` numbers.
fn alone(raw: &[u8], rows: usize) -> Vec<u8> {
    let groups = rows / 32;
    let mut found = Vec::new();
    for group in 0..groups {
        for digit in 0..3 {
            for half in 0..2 {
                found.extend(&raw[16 * ((2 * digit + half) * groups + group)..][..16]);
            }
        }
        found.extend(&raw[96 * groups + 8 * group..][..8]);
    }
    found
}

/// The same of a token among others.
fn among_others(raw: &[u8], rows: usize, token: usize) -> Vec<u8> {
    let (eight, place) = (token / 8, token % 8);
    let mut found = Vec::new();
    for group in 0..rows / 32 {
        let of_group = &raw[832 * (eight * (rows / 32) + group)..][..832];
        for digit in 0..3 {
            found.extend(&of_group[256 * digit + 32 * place..][..32]);
        }
        found.extend(&of_group[768 + 8 * place..][..8]);
    }
    found
}

/// A product of one token, on many multiprocessors.
fn launch_alone(bench: &Bench, result: TokenResult, parts: &[Matrix], fill: TokenProduct) {
    let shared = bench.gpu.card().shared_memory;
    let (product, launch) = TokenProduct::new(result, parts, 132, shared);
    let TokenProduct { input, digits, out, digits_out, gate_with, best, cap, .. } = fill;
    let product = TokenProduct { input, digits, out, digits_out, gate_with, best, cap, ..product };
    let kernel = result.kernel(product.columns as usize);
    bench.launch(kernel, [launch.blocks as u32, 1], PRODUCT_THREADS, launch.shared, &product);
}

#[test]
fn products_of_several_tokens_have_the_bits_of_each_alone() {
    let Some(mut bench) = Bench::new() else { return };
    let mut random = ChaCha8Rng::seed_from_u64(31);
    for (rows, columns) in SHAPES {
        bench.next = bench.arena.address();
        let mut matrix = |bench: &mut Bench, rows: usize| {
            weight(bench, &mut random, rows, columns, Kind::PackedF16).matrix
        };
        let parts = [matrix(&mut bench, rows), matrix(&mut bench, rows), matrix(&mut bench, 16)];
        let mut vectors = |count: usize| {
            let numbers = activations(&mut random, count);
            bench.put_floats(&numbers)
        };
        let [stream, delta, gate_with] =
            [columns, columns, rows].map(|count| vectors(MOST * count));
        let [delta_norm, norm] = [0; 2].map(|_| vectors(columns));
        let normed =
            Input { stream, delta, delta_norm, norm, stream_out: 0, scalar: 0.75, epsilon: 1e-6 };
        let shared = bench.gpu.card().shared_memory;
        let (nothing, _) = TokenProduct::new(TokenResult::Normed, &parts[..1], 132, shared);
        let size = digit_bytes(rows).next_multiple_of(256);
        let (digits, factors) = (bench.take(batch_digit_bytes(columns)), bench.take(4 * MOST));
        let all = 2 * rows + 16;
        let (one, together) = (bench.take(4 * all), bench.take(4 * MOST * all));
        let (one_digits, digits_out) = (bench.take(size), bench.take(batch_digit_bytes(rows)));
        let steps = bench.put(&[0; 16 * MOST]);
        let best = bench.put(&[0; 8 * MOST]);

        for result in
            [TokenResult::Normed, TokenResult::Geglu, TokenResult::Gated, TokenResult::Logits]
        {
            let (parts, cap) = match result {
                TokenResult::Normed => (&parts[..], 0.0),
                TokenResult::Geglu => (&parts[..2], 0.0),
                _ => (&parts[..1], 30.0),
            };
            let input =
                if result == TokenResult::Gated { Input { norm: 0, ..normed } } else { normed };
            let of_token = |token: usize| Input {
                stream: stream + (4 * token * columns) as u64,
                delta: delta + (4 * token * columns) as u64,
                ..input
            };
            let width = match result {
                TokenResult::Normed => all,
                _ => rows,
            };
            let makes_digits = matches!(result, TokenResult::Geglu | TokenResult::Gated);
            let expected: Vec<Vec<u8>> = (0..MOST)
                .map(|token| {
                    let fill = TokenProduct {
                        input: of_token(token),
                        out: one,
                        digits_out: one_digits,
                        gate_with: gate_with + (4 * token * rows) as u64,
                        best: best + 8 * token as u64,
                        cap,
                        ..nothing
                    };
                    launch_alone(&bench, result, parts, fill);
                    match makes_digits {
                        true => alone(&bench.bytes(one_digits, digit_bytes(rows)), rows),
                        false => bench.bytes(one, 4 * width),
                    }
                })
                .collect();
            for tokens in [2, 7, 8, 9, 16] {
                let count = columns as i32;
                let arguments = [
                    std::ptr::from_ref(&input).cast::<c_void>(),
                    std::ptr::from_ref(&count).cast(),
                    std::ptr::from_ref(&digits).cast(),
                    std::ptr::from_ref(&factors).cast(),
                ];
                let grid = [tokens as u32, 1];
                // SAFETY: the parameters of `batch_digits`, addresses taken here.
                unsafe { bench.gpu.launch("batch_digits", grid, PRODUCT_THREADS, 0, &arguments) }
                    .expect("it launches");
                // On a few multiprocessors blocks have much to do.
                for multiprocessors in [3, 132] {
                    let product = BatchProduct {
                        digits,
                        factors,
                        out: together,
                        digits_out,
                        gate_with,
                        steps,
                        gate_stride: rows as u64,
                        cap,
                        ..BatchProduct::new(result, parts, tokens, multiprocessors, shared)
                    };
                    let launch = product.launch(result);
                    let grid = [launch.blocks as u32, 1];
                    let kernel = product.kernel(result);
                    bench.launch(&kernel, grid, PRODUCT_THREADS, launch.shared, &product);
                    let raw = match makes_digits {
                        true => bench.bytes(digits_out, batch_digit_bytes(rows)),
                        false => bench.bytes(together, 4 * tokens * width),
                    };
                    for (token, expected) in expected[..tokens].iter().enumerate() {
                        let found = match makes_digits {
                            true => among_others(&raw, rows, token),
                            false => raw[4 * token * width..][..4 * width].to_vec(),
                        };
                        let what = format!("{kernel}, {rows} x {columns}, {token} of {tokens}");
                        assert!(found == *expected, "{what}");
                        if result == TokenResult::Logits {
                            let found = bench.bytes(steps + 16 * token as u64 + 8, 8);
                            assert_eq!(found, bench.bytes(best + 8 * token as u64, 8), "{what}");
                        }
                    }
                }
            }
        }
    }
}

/// A shape for ordinary cores alone: an odd number of groups in rows of every kind.
pub fn odd_shape() -> random::Shape {
    ("odd", random::shaped(3, [160, 352, 32], [32, 32]), 90)
}

/// A model, and what multiplies.
pub struct Way {
    pub name: String,
    pub products: Products,
    pub config: serde_json::Value,
    /// Positions to try it at.
    pub count: usize,
    dtypes: &'static [ScaleDtype],
}

impl Way {
    /// Tensor cores take f16 steps only, ordinary ones all.
    pub fn all() -> Vec<Self> {
        const F16: &[ScaleDtype] = &[ScaleDtype::F16];
        let on = |products: Products, dtypes: &'static [ScaleDtype], shapes: &[random::Shape]| {
            let way = |(name, config, count): &random::Shape| Self {
                name: format!("{name}, {products:?}"),
                products,
                config: config.clone(),
                count: *count,
                dtypes,
            };
            shapes.iter().map(way).collect::<Vec<_>>()
        };
        let shapes = random::tensor_core_shapes();
        let mut all = on(Products::Mma, F16, &shapes);
        all.extend(on(Products::Ffma, &ScaleDtype::ALL, &shapes));
        all.extend(on(Products::Ffma, &ScaleDtype::ALL, &[odd_shape()]));
        all
    }

    /// Whether several tokens can go together: heads of 32 have no kernel on tensor cores, which those of 64 beside
    /// them have.
    pub fn takes_several(&self) -> bool {
        self.name != "mixed, Mma"
    }

    pub fn write(&self) -> TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        random::packed_with(self.config.clone(), 6, self.dtypes).write(folder.path());
        folder
    }
}

fn device(folder: &Path, slots: usize, products: Products) -> CudaDevice {
    let checkpoint = Arc::new(Checkpoint::open_folder(folder).expect("it opens"));
    let (products, memory) = (Some(products), Some(1 << 30));
    let together = When::Always;
    let options = CudaOptions { slots, products, memory, together, ..CudaOptions::default() };
    CudaDevice::load(&checkpoint, options, &mut |_| {}).expect("it fits the card")
}

fn read(device: &mut CudaDevice, prompt: &[u32], context: usize) -> Slot {
    let slot = device.make_slot(context).expect("a slot");
    let work = Work { slot, tokens: prompt, logits: Wanted::Nothing };
    device.step(&[work]).expect("it runs");
    slot
}

/// Answers of different lengths that come and go: whoever is there decodes together.
#[test]
fn answers_together_have_the_bits_of_each_alone() {
    let Some(_card) = shared_card() else { return };
    const SLOTS: usize = 11;
    for way in Way::all() {
        let folder = way.write();
        let (name, count) = (&way.name, way.count);
        let [mut together, mut one] =
            [SLOTS, 1].map(|slots| device(folder.path(), slots, way.products));
        let expected = if way.takes_several() { SLOTS } else { 1 };
        assert_eq!(together.tokens_together(), expected, "{name}");
        assert_eq!(one.tokens_together(), 1);
        let answers: Vec<Vec<u32>> =
            (0..SLOTS).map(|seed| random::tokens(count, 40 + seed as u64)).collect();
        let prompt_of = |answer: usize| 1 + 3 * answer % (count / 2);
        let slots: Vec<Slot> = (0..SLOTS)
            .map(|answer| read(&mut together, &answers[answer][..prompt_of(answer)], count))
            .collect();
        let mut found: Vec<Vec<Decoded>> = vec![Vec::new(); SLOTS];
        for round in 0..count / 2 {
            let present: Vec<usize> =
                (0..SLOTS).filter(|answer| (answer + round) % 4 != 0 || round % 5 == 0).collect();
            let steps: Vec<DecodeStep> = present
                .iter()
                .map(|&answer| DecodeStep {
                    slot: slots[answer],
                    token: answers[answer][prompt_of(answer) + found[answer].len()],
                    logits: !(answer + found[answer].len()).is_multiple_of(3),
                })
                .collect();
            for (&answer, decoded) in present.iter().zip(together.decode_together(&steps)) {
                found[answer].push(decoded.expect("it runs"));
            }
        }
        for (answer, found) in found.iter().enumerate() {
            let slot = read(&mut one, &answers[answer][..prompt_of(answer)], count);
            for (step, found) in found.iter().enumerate() {
                let token = answers[answer][prompt_of(answer) + step];
                let logits = (answer + step) % 3 != 0;
                let alone = one.decode_as(&DecodeStep { slot, token, logits }).expect("it runs");
                assert!(alone == *found, "{name}, answer {answer}, step {step}");
            }
            one.free_slot(slot).expect("it is in use");
        }
    }
}

#[test]
fn a_step_that_fails_fails_alone() {
    let Some(_card) = shared_card() else { return };
    let (_, config, _) = random::tensor_core_shapes()[0].clone();
    let folder = tempfile::tempdir().expect("a folder");
    random::packed_with(config, 6, &[ScaleDtype::F16]).write(folder.path());
    let mut device = device(folder.path(), 4, Products::Mma);
    let slots = [9, 5, 9].map(|context| read(&mut device, &random::tokens(5, 1), context));
    let step = |slot: Slot, token: u32| DecodeStep { slot, token, logits: true };
    let steps = [
        step(slots[0], 3),
        step(slots[1], 3),
        step(slots[2], 3),
        step(Slot::numbered(3), 3),
        step(slots[0], u32::MAX),
    ];
    let found = device.decode_together(&steps);
    assert!(matches!(found[1], Err(RuntimeError::ContextExceeded { .. })), "{:?}", found[1]);
    assert!(matches!(found[3], Err(RuntimeError::NoSlot { slot: 3 })), "{:?}", found[3]);
    assert!(found[4].is_err());
    let (Ok(Decoded::Logits(one)), Ok(Decoded::Logits(other))) = (&found[0], &found[2]) else {
        panic!("{found:?}");
    };
    assert!(one == other, "the same answer twice");
}
