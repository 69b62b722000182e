//! Positions up to 131,071. Nobody reads so long a prompt in f64: the cache is given random contents
//! instead, the same to the card and to the exact pass, and some tokens follow, as a chunk of a
//! prompt and one by one.

use crate::shared_card;
use crate::support::random::{self, VOCABULARY};
use crate::support::rounding::{Roundings, tolerance};
use crate::support::*;
use half::{bf16, f16};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use w4pack_format::checkpoint::Checkpoint;
use w4pack_format::config::{LayerKind, TextConfig};
use w4pack_format::scale::ScaleDtype;
use w4pack_runtime::device::cuda::{CudaDevice, CudaOptions, KvType, Products};
use w4pack_runtime::device::{Contents, Rings};
use w4pack_runtime::{Cache, Device, Kept, Plain, Wanted, Work};

const LONGEST: usize = 131_072;

/// Sliding, full | sliding, full: the shared ones read the two before.
fn config(heads: [usize; 2], head_dim: usize, full_head_dim: usize, hidden: usize) -> Value {
    let mut config = random::config();
    let kinds = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"];
    for (name, value) in [
        ("num_hidden_layers", json!(4)),
        ("layer_types", json!(kinds)),
        ("num_kv_shared_layers", json!(2)),
        ("num_attention_heads", json!(heads[0])),
        ("num_key_value_heads", json!(heads[1])),
        ("head_dim", json!(head_dim)),
        ("global_head_dim", json!(full_head_dim)),
        ("hidden_size", json!(hidden)),
        ("intermediate_size", json!(hidden)),
        ("hidden_size_per_layer_input", json!(hidden)),
        ("sliding_window", json!(96)),
        ("max_position_embeddings", json!(LONGEST)),
    ] {
        config[name] = value;
    }
    config
}

/// Contents of a cache of `positions`, as the card takes them and in the numbers `S`.
fn history<S: Kept<f64>>(
    text: &TextConfig,
    positions: usize,
    kv: KvType,
    seed: u64,
) -> [Contents; 2] {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut rows = |kind: LayerKind, positions: usize| {
        let (mut card, mut exact) = (Vec::new(), Vec::new());
        let owned = text.layers.iter().filter(|l| l.kind == kind && l.kv_source.is_none());
        for layer in owned {
            let numbers = positions * layer.kv_heads * layer.head_dim;
            let mut all_steps = Vec::new();
            for _ in ["keys", "values"] {
                let steps: Vec<f16> = match kv {
                    KvType::Q8 => (0..numbers / 32).map(|_| step(&mut random)).collect(),
                    _ => Vec::new(),
                };
                for i in 0..numbers {
                    let drawn = (random.next_u32() >> 8) as f32 / (1 << 23) as f32 - 1.0;
                    let kept = match kv {
                        KvType::F16 => {
                            let kept = f16::from_f32(drawn);
                            card.extend(kept.to_le_bytes());
                            kept.to_f64()
                        }
                        KvType::Bf16 => {
                            let kept = bf16::from_f32(drawn);
                            card.extend(kept.to_le_bytes());
                            kept.to_f64()
                        }
                        KvType::Q8 => {
                            // One of a group is the largest, as where a card stores them.
                            let code = if i % 32 == 0 { 127 } else { (127.0 * drawn) as i8 };
                            card.push(code as u8);
                            f64::from(code) * steps[i / 32].to_f64()
                        }
                    };
                    exact.extend_from_slice(bytemuck::bytes_of(&S::keep(kept)));
                }
                all_steps.extend(steps.into_iter().flat_map(f16::to_le_bytes));
            }
            card.extend(all_steps);
        }
        [card, exact]
    };
    let [card_full, full] = rows(LayerKind::Full, positions);
    let [card_rings, rings] = rows(LayerKind::Sliding, positions.min(text.sliding_window));
    let contents = |full, bytes| Contents { full, rings: Rings { positions, bytes } };
    [contents(card_full, card_rings), contents(full, rings)]
}

/// A step of q8 numbers up to about 1.
fn step(random: &mut ChaCha8Rng) -> f16 {
    f16::from_f32((0.5 + (random.next_u32() % 1024) as f32 / 1024.0) / 127.0)
}

/// `read` tokens as a prompt, then `decoded` one by one, the last of them at position `last`.
fn check<S: Kept<f64>>(
    config: Value,
    kv: KvType,
    roundings: Roundings,
    last: usize,
    read: usize,
    decoded: usize,
) {
    let folder = tempfile::tempdir().expect("a folder");
    random::packed_with(config, 9, &[ScaleDtype::F16]).write(folder.path());
    let model = load(folder.path());
    let positions = last + 1 - read - decoded;
    let [for_card, for_pass] = history::<S>(&model.config.text, positions, kv, last as u64);
    let tokens = random::tokens(read + decoded, 3);
    let begun = || {
        let mut cache = Cache::<S>::new(&model.config.text, LONGEST);
        cache.fill(&for_pass).expect("it fits");
        cache
    };
    let expected = pass(&model, &Plain::<f64, S>::new(), &mut begun(), &tokens, Wanted::All);
    let allowed = tolerance::<S, _>(&expected, roundings, |rounded| {
        pass(&model, rounded, &mut begun(), &tokens, Wanted::All)
    });
    for products in [Products::Mma, Products::Ffma] {
        let mut device = device(folder.path(), kv, products);
        let slot = device.make_slot(last + 1).expect("a slot");
        device.memory().import(slot, &for_card).expect("it fits");
        let (prompt, answer) = tokens.split_at(read);
        let work = Work { slot, tokens: prompt, logits: Wanted::All };
        let mut found = device.step(&[work]).expect("it runs").swap_remove(0);
        for &token in answer {
            found.extend(device.decode(slot, token).expect("it runs"));
        }
        let what = format!("{kv:?}, {products:?}, to position {last}");
        let far = allowed.check(&found, &expected, &what);
        println!("{what}, {} rows: {far:e} of {allowed:?}", found.len() / VOCABULARY);
    }
}

fn device(folder: &Path, kv: KvType, products: Products) -> CudaDevice {
    let checkpoint = Arc::new(Checkpoint::open_folder(folder).expect("it opens"));
    let options = CudaOptions {
        kv,
        products: Some(products),
        memory: Some(1 << 30),
        context: Some(LONGEST),
        chunk: Some(48),
        ..CudaOptions::default()
    };
    CudaDevice::load(&checkpoint, options, &mut |_| {}).expect("it fits the card")
}

#[test]
fn the_last_position_of_the_longest_context_is_that_of_the_plain_pass() {
    let Some(_card) = shared_card() else { return };
    let last = LONGEST - 1;
    check::<f16>(config([8, 1], 64, 64, 128), KvType::F16, Roundings::PROMPT, last, 3, 2);
}

#[test]
fn the_last_position_is_right_with_other_caches_and_heads() {
    let Some(_card) = shared_card() else { return };
    let last = LONGEST - 1;
    check::<bf16>(config([4, 2], 32, 64, 64), KvType::Bf16, Roundings::PROMPT, last, 2, 1);
    check::<f64>(config([4, 2], 32, 64, 64), KvType::Q8, Roundings::PROMPT.with_q8(), last, 2, 1);
}

/// Prompts of more than a tile behind odd depths, with E2B's heads.
#[test]
fn e2b_heads_are_right_at_odd_depths() {
    let Some(_card) = shared_card() else { return };
    for (last, read) in [(777, 70), (4097, 17)] {
        let config = config([8, 1], 256, 512, 128);
        check::<f16>(config, KvType::F16, Roundings::PROMPT, last, read, 3);
    }
}
