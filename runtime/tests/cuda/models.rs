//! Whole models against the plain pass in f64, which keeps keys and values as the card does, and
//! against references of others.
//!
//! Tolerances are derived for each model and its tokens, see `support/rounding.rs`. Those against
//! references that keep keys and values in f32 hold the rounding of these to f16 too.

use crate::shared_card;
use crate::support::checkpoint::Draft;
use crate::support::random::{self, VOCABULARY};
use crate::support::rounding::{Roundings, Tolerance, tolerance};
use crate::support::*;
use half::{bf16, f16};
use serde_json::json;
use std::path::Path;
use std::sync::Arc;
use w4pack_format::checkpoint::Checkpoint;
use w4pack_format::scale::ScaleDtype;
use w4pack_runtime::cache::Cache;
use w4pack_runtime::device::cuda::{CudaDevice, CudaOptions, KvType, Products, TablePlace};
use w4pack_runtime::{Device, Kept, Model, Number, Plain, Wanted, Work};

fn device(folder: &Path, options: CudaOptions) -> CudaDevice {
    let checkpoint = Arc::new(Checkpoint::open_folder(folder).expect("it opens"));
    CudaDevice::load(&checkpoint, options, &mut |_| {}).expect("it fits the card")
}

/// Both ways of multiplying prompts, with chunks of a size that windows do not divide.
fn options(chunk: usize, products: Products) -> CudaOptions {
    let memory = Some(256 << 20);
    CudaOptions { chunk: Some(chunk), products: Some(products), memory, ..CudaOptions::default() }
}

/// Logits `[tokens, vocabulary]` with every token through every layer.
fn all_logits(device: &mut CudaDevice, tokens: &[u32]) -> Vec<f32> {
    let slot = device.make_slot(tokens.len()).expect("a slot");
    let work = Work { slot, tokens, logits: Wanted::All };
    let logits = device.step(&[work]).expect("it runs").swap_remove(0);
    device.free_slot(slot).expect("it is in use");
    logits
}

/// Logits of the prompt's last token, the prompt read in pieces; then a token after another.
fn prompt_then_decode(
    device: &mut CudaDevice,
    prompt: &[u32],
    piece: usize,
    answer: &[u32],
) -> Vec<Vec<f32>> {
    let slot = device.make_slot(prompt.len() + answer.len()).expect("a slot");
    let mut pieces = prompt.chunks(piece).peekable();
    let mut rows = Vec::new();
    while let Some(tokens) = pieces.next() {
        let logits = if pieces.peek().is_some() { Wanted::Nothing } else { Wanted::Last };
        let mut found = device.step(&[Work { slot, tokens, logits }]).expect("it runs");
        if logits == Wanted::Last {
            rows.push(found.swap_remove(0));
        }
    }
    for &token in answer {
        rows.push(device.decode(slot, token).expect("it runs"));
    }
    device.free_slot(slot).expect("it is in use");
    rows
}

/// The pass in f64 with keys and values kept as `S`, all positions.
fn exact<S: Kept<f64>>(model: &Model, tokens: &[u32]) -> Vec<f64> {
    let mut cache = Cache::new(&model.config.text, tokens.len());
    pass(model, &Plain::<f64, S>::new(), &mut cache, tokens, Wanted::All)
}

/// What a card's logits of the last positions may be off by from `expected`, those of `tokens`.
fn tolerance_of<S: Kept<f64>, N: Number>(
    model: &Model,
    tokens: &[u32],
    expected: &[N],
    roundings: Roundings,
) -> Tolerance {
    tolerance::<S, N>(expected, roundings, |rounded| {
        let mut cache = Cache::new(&model.config.text, tokens.len());
        let logits = pass(model, rounded, &mut cache, tokens, Wanted::All);
        logits[logits.len() - expected.len()..].to_vec()
    })
}

/// How prompts are rounded with these products.
fn roundings(products: Products) -> Roundings {
    match products {
        Products::Mma => Roundings::PROMPT,
        Products::Ffma => Roundings::SINGLE,
    }
}

fn each_products(mut check: impl FnMut(Products)) {
    for products in [Products::Mma, Products::Ffma] {
        check(products);
    }
}

/// The random model with eight query heads on one key head: the shape that reads keys once.
fn eight_heads(seed: u64) -> Draft {
    let mut config = random::config();
    config["num_attention_heads"] = json!(8);
    config["num_key_value_heads"] = json!(1);
    random::packed_as(config, seed)
}

#[test]
fn prompts_and_answers_are_those_of_the_plain_pass() {
    let Some(_card) = shared_card() else { return };
    for (name, draft) in [("two key heads", random::packed(1)), ("one key head", eight_heads(1))] {
        let folder = tempfile::tempdir().expect("a folder");
        draft.write(folder.path());
        let model = load(folder.path());
        let tokens = random::tokens(90, 7);
        let expected = exact::<f16>(&model, &tokens);
        let rows: Vec<&[f64]> = expected.chunks(VOCABULARY).collect();
        each_products(|products| {
            let roundings = roundings(products);
            let allowed = tolerance_of::<f16, _>(&model, &tokens, &expected, roundings);
            let mut device = device(folder.path(), options(13, products));
            let found = all_logits(&mut device, &tokens);
            let what = format!("{name}, {products:?}");
            let far = allowed.check(&found, &expected, &what);
            println!("{what}: {far:e} of {allowed:?}");
            // Around the window of 8, and beyond it.
            for prompt in [1, 2, 7, 8, 9, 15, 16, 17, 40] {
                let (prompt_tokens, answer) = (&tokens[..prompt], &tokens[prompt..prompt + 40]);
                let mut first: Option<Vec<Vec<f32>>> = None;
                for piece in [1, 4, 8, 16, 90] {
                    let found = prompt_then_decode(&mut device, prompt_tokens, piece, answer);
                    for (step, row) in found.iter().enumerate() {
                        let what = format!("{what}, {prompt}/{piece}+{step}");
                        allowed.check(row, rows[prompt - 1 + step], &what);
                    }
                    let same = first.get_or_insert_with(|| found.clone());
                    assert_eq!(*same, found, "{name}: pieces of {piece} change bits");
                }
            }
        });
    }
}

/// Models whose matrices all have f16 steps and whole tiles: their single tokens go through the
/// layers on tensor cores.
#[test]
fn tokens_on_tensor_cores_are_those_of_the_plain_pass() {
    let Some(_card) = shared_card() else { return };
    for (name, config, count) in random::tensor_core_shapes() {
        let folder = tempfile::tempdir().expect("a folder");
        random::packed_with(config, 6, &[ScaleDtype::F16]).write(folder.path());
        let model = load(folder.path());
        let tokens = random::tokens(count, 8);
        let expected = exact::<f16>(&model, &tokens);
        let allowed = tolerance_of::<f16, _>(&model, &tokens, &expected, Roundings::PROMPT);
        let rows: Vec<&[f64]> = expected.chunks(VOCABULARY).collect();
        let mut device = device(folder.path(), options(16, Products::Mma));
        assert!(device.takes_tokens_on_tensor_cores(), "{name}");
        let mut found_rows = Vec::new();
        for prompt in [1, 7, count / 2] {
            let mut first: Option<Vec<Vec<f32>>> = None;
            for piece in [1, 5, 16, 64] {
                let (prompt_tokens, answer) = tokens.split_at(prompt);
                let found = prompt_then_decode(&mut device, prompt_tokens, piece, answer);
                for (step, row) in found.iter().enumerate() {
                    let what = format!("{name}, {prompt}/{piece}+{step}");
                    allowed.check(row, rows[prompt - 1 + step], &what);
                }
                let same = first.get_or_insert_with(|| found.clone());
                assert_eq!(*same, found, "{name}: pieces of {piece} change bits");
            }
            found_rows = first.expect("there are pieces");
        }
        let expected = rows[count / 2 - 1..].concat();
        let far = allowed.check(&found_rows.concat(), &expected, name);
        println!("{name}: {far:e} of {allowed:?}");
    }
}

#[test]
fn every_kind_of_cache_and_every_place_of_the_table_runs() {
    let Some(_card) = shared_card() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    random::packed(2).write(folder.path());
    let model = load(folder.path());
    let tokens = random::tokens(60, 3);
    let mut by_place = Vec::new();
    for table in [TablePlace::Gpu, TablePlace::Host, TablePlace::Disk] {
        let options = CudaOptions { table: Some(table), ..options(16, Products::Mma) };
        let mut device = device(folder.path(), options);
        let rows = prompt_then_decode(&mut device, &tokens[..30], 30, &tokens[30..]);
        by_place.push(rows.last().expect("rows").clone());
    }
    assert_eq!(by_place[0], by_place[1]);
    assert_eq!(by_place[0], by_place[2]);
    check_kept::<f16>(folder.path(), &model, &tokens, KvType::F16, Roundings::PROMPT);
    check_kept::<bf16>(folder.path(), &model, &tokens, KvType::Bf16, Roundings::PROMPT);
    check_kept::<f64>(folder.path(), &model, &tokens, KvType::Q8, Roundings::PROMPT.with_q8());
}

/// A kind of cache against the pass that keeps keys and values unrounded.
fn check_kept<S: Kept<f64>>(
    folder: &Path,
    model: &Model,
    tokens: &[u32],
    kv: KvType,
    roundings: Roundings,
) {
    let expected = &exact::<f64>(model, tokens)[29 * VOCABULARY..];
    let allowed = tolerance_of::<S, _>(model, tokens, expected, roundings);
    each_products(|products| {
        let options = CudaOptions { kv, ..options(16, products) };
        let mut device = device(folder, options);
        let rows = prompt_then_decode(&mut device, &tokens[..30], 30, &tokens[30..]).concat();
        let far = allowed.check(&rows, expected, &format!("{kv:?}, {products:?}"));
        println!("{kv:?}, {products:?}: {far:e} of {allowed:?}");
    });
}

#[test]
fn the_greedy_token_is_the_largest_logit() {
    let Some(_card) = shared_card() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    random::packed(4).write(folder.path());
    let mut device = device(folder.path(), options(16, Products::Mma));
    let prompt = random::tokens(12, 1);
    let mut answers = Vec::new();
    for greedy_on_card in [true, false] {
        let slot = device.make_slot(60).expect("a slot");
        let work = Work { slot, tokens: &prompt, logits: Wanted::Last };
        let mut id = argmax(&device.step(&[work]).expect("it runs")[0]);
        let mut ids = vec![id];
        for _ in 0..40 {
            id = match greedy_on_card {
                true => device.decode_greedy(slot, id).expect("it runs"),
                false => argmax(&device.decode(slot, id).expect("it runs")),
            };
            ids.push(id);
        }
        device.free_slot(slot).expect("it is in use");
        answers.push(ids);
    }
    assert_eq!(answers[0], answers[1]);
}

#[test]
fn the_reference_models_give_transformers_logits() {
    let Some(_card) = shared_card() else { return };
    let Some(conformance) = conformance() else { return };
    for set in ["tiny-a", "tiny-c"] {
        for layout in ["google", "text"] {
            let set = conformance.join(set);
            let reference = Tensors::read(&set.join("reference/logits.safetensors"));
            let model = load(&set.join(layout));
            for prompt in prompts(&set) {
                let name = format!("{} {layout} {}", set.display(), prompt.name);
                let all = reference.f32(&format!("f32|{}|prompt_logits", prompt.name));
                let of_all = tolerance_of::<f16, _>(&model, &prompt.ids, &all, Roundings::PROMPT);
                let steps = reference.f32(&format!("f32|{}|decode_logits_cached", prompt.name));
                let (_, answer) = prompt.greedy_cached.split_last().expect("an answer");
                let tokens = [&prompt.ids, answer].concat();
                let of_steps = tolerance_of::<f16, _>(&model, &tokens, &steps, Roundings::PROMPT);
                each_products(|products| {
                    let name = format!("{name} {products:?}");
                    let mut device = device(&set.join(layout), options(33, products));
                    let far = of_all.check(&all_logits(&mut device, &prompt.ids), &all, &name);
                    println!("{name}: {far:e} of {of_all:?}");
                    let rows = prompt_then_decode(&mut device, &prompt.ids, 512, answer).concat();
                    let far = of_steps.check(&rows, &steps, &format!("{name}, decode"));
                    println!("{name}, decode: {far:e} of {of_steps:?}");
                    check_greedy(&rows, &steps, &prompt.greedy_cached, of_steps, &name);
                });
            }
        }
    }
}

#[test]
fn official_checkpoints_give_the_plain_logits() {
    let Some(_card) = shared_card() else { return };
    let Some(conformance) = conformance() else { return };
    for layout in ["dense", "emb4-tied", "emb4-untied", "linear", "linear-ple4"] {
        let folder = conformance.join("ct-official").join(layout);
        let model = load(&folder);
        let tokens: Vec<u32> = (0..100).map(|i| 3 + i * 37 % 250).collect();
        let expected = exact::<f16>(&model, &tokens);
        each_products(|products| {
            let roundings = roundings(products);
            let allowed = tolerance_of::<f16, _>(&model, &tokens, &expected, roundings);
            let mut device = device(&folder, options(33, products));
            let what = format!("{layout} {products:?}");
            let far = allowed.check(&all_logits(&mut device, &tokens), &expected, &what);
            println!("{what}: {far:e} of {allowed:?}");
        });
    }
}

/// Greedy ids are equal wherever the margin exceeds twice the tolerance.
fn check_greedy(rows: &[f32], expected: &[f32], ids: &[u32], allowed: Tolerance, name: &str) {
    let vocabulary = expected.len() / ids.len();
    let pairs = rows.chunks(vocabulary).zip(expected.chunks(vocabulary));
    for (step, (found, expected)) in pairs.enumerate() {
        let best = argmax(expected) as usize;
        let second = expected
            .iter()
            .enumerate()
            .filter(|(id, _)| *id != best)
            .fold(f32::NEG_INFINITY, |most, (_, &logit)| most.max(logit));
        if f64::from(expected[best] - second) > 2.0 * allowed.worst {
            assert_eq!(argmax(found), ids[step], "{name}, step {step}");
        }
    }
}

/// Prompt lengths on both sides of every tile, and chunks that windows and tiles do not divide.
#[test]
fn field_cases_14_and_15_lengths_and_chunks_change_nothing() {
    let Some(_card) = shared_card() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let mut config = random::config();
    config["sliding_window"] = json!(96);
    config["max_position_embeddings"] = json!(2048);
    random::packed_as(config, 5).write(folder.path());
    let model = load(folder.path());
    let tokens = random::tokens(1025, 9);
    let expected = exact::<f16>(&model, &tokens);
    each_products(|products| {
        let allowed = tolerance_of::<f16, _>(&model, &tokens, &expected, roundings(products));
        let mut first: Option<Vec<Vec<f32>>> = None;
        for chunk in [33, 64, 256, 511, 512, 513] {
            let mut device = device(folder.path(), options(chunk, products));
            let mut rows = Vec::new();
            let lengths = [1..=1, 31..=35, 63..=67, 95..=99, 255..=258, 511..=514, 1025..=1025];
            for length in lengths.into_iter().flatten() {
                let row = prompt_then_decode(&mut device, &tokens[..length], chunk, &[]).concat();
                let what = format!("{products:?}, {length} in {chunk}s");
                allowed.check(&row, &expected[(length - 1) * VOCABULARY..][..VOCABULARY], &what);
                rows.push(row);
            }
            let same = first.get_or_insert_with(|| rows.clone());
            assert_eq!(*same, rows, "{products:?}: chunks of {chunk} change bits");
        }
    });
}

/// The small trained model gives transformers' answers to all reference prompts: their closest two
/// logits are 0.05 apart, and a card's are off by less than half of that.
#[test]
fn the_trained_model_answers_as_in_transformers() {
    let Some(_card) = shared_card() else { return };
    let Some(folder) = std::env::var_os("W4PACK_TRAINED") else {
        eprintln!("skipped: W4PACK_TRAINED is not set, the trained model is not at hand");
        return;
    };
    #[derive(serde::Deserialize)]
    struct Answer {
        name: String,
        prompt_ids: Vec<u32>,
        ids: Vec<u32>,
        smallest_margin: f64,
    }
    let folder = Path::new(&folder);
    let answers = std::fs::read(folder.join("reference_answers.json")).expect("it is there");
    let answers: Vec<Answer> = serde_json::from_slice(&answers).expect("it is a list of answers");
    assert!(answers.len() > 50 && answers.iter().all(|answer| answer.smallest_margin > 0.05));
    let model = load(folder);
    // The pass in f64 takes its time: some short ones.
    for answer in answers.iter().filter(|answer| answer.prompt_ids.len() < 60).take(4) {
        let tokens = [&answer.prompt_ids[..], &answer.ids].concat();
        let expected = exact::<f64>(&model, &tokens);
        let expected = &expected[expected.len() / tokens.len() * answer.prompt_ids.len()..];
        let allowed = tolerance_of::<f16, _>(&model, &tokens, expected, Roundings::PROMPT);
        assert!(2.0 * allowed.worst < answer.smallest_margin, "{}: {allowed:?}", answer.name);
    }
    each_products(|products| {
        let mut device = device(folder, options(64, products));
        for Answer { name, prompt_ids, ids, .. } in &answers {
            let slot = device.make_slot(prompt_ids.len() + ids.len()).expect("a slot");
            let work = Work { slot, tokens: prompt_ids, logits: Wanted::Last };
            let mut found = vec![argmax(&device.step(&[work]).expect("it runs")[0])];
            while found.len() < ids.len() {
                let id = found[found.len() - 1];
                found.push(device.decode_greedy(slot, id).expect("it runs"));
            }
            device.free_slot(slot).expect("it is in use");
            assert_eq!(found, *ids, "{name}, {products:?}");
        }
    });
}
