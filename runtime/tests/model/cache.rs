//! The same logits, bit for bit, however a sequence is cut up: chunks, cache or none, threads,
//! skipped layers.

use crate::support::random::{self, WINDOW};
use crate::support::rounding::{Roundings, tolerance};
use crate::support::*;
use half::{bf16, f16};
use w4pack_format::scale::ScaleDtype;
use w4pack_kernels::cpu::Kernels;
use w4pack_runtime::device::{Cpu, CpuDevice, Pool};
use w4pack_runtime::forward::{NoObserver, forward};
use w4pack_runtime::{Cache, Device, Model, Plain, Slot, Wanted, WeightValues, Work};

fn random_model() -> Model {
    let folder = tempfile::tempdir().expect("a folder");
    random::packed(1).write(folder.path());
    load(folder.path())
}

/// The last `rows` rows of logits.
fn last_rows(logits: &[f32], rows: usize, vocabulary: usize) -> &[f32] {
    &logits[logits.len() - rows * vocabulary..]
}

#[test]
fn the_kernels_agree_with_the_plain_pass() {
    for weights in [WeightValues::Codes, WeightValues::Bf16] {
        let folder = tempfile::tempdir().expect("a folder");
        random::packed(2).write(folder.path());
        let model = load_as(folder.path(), weights);
        let tokens = random::tokens(40, 3);
        let oracle = logits(&model, &Plain::<f64>::new(), &tokens);
        for kernels in Kernels::available() {
            let cpu = Cpu::<f32>::new(kernels, Pool::new(1).expect("a pool of one"));
            let found = logits(&model, &cpu, &tokens);
            // Products rounded to bf16 are multiplied in f32. Logits up to 30 and sums of some hundred
            // terms: 1e-4 is about 50 roundings.
            let allowed = match weights {
                WeightValues::Codes => in_sixteen_bits(&oracle),
                WeightValues::Bf16 => 1e-4,
            };
            let worst = worst(&found, &oracle);
            assert!(worst <= allowed, "{}, {weights:?}: {worst}, {allowed}", kernels.name());
        }
        assert!(worst(&logits(&model, &Plain::<f32>::new(), &tokens), &oracle) <= 1e-4);
    }
}

#[test]
fn chunks_change_nothing() {
    let model = random_model();
    let tokens = random::tokens(3 * WINDOW + 5, 4);
    let whole = logits(&model, &fast(), &tokens);
    for chunk in [1, 2, 4, WINDOW - 1, WINDOW, WINDOW + 1, 16, tokens.len()] {
        let found = in_chunks(&model, &fast(), &tokens, chunk, Wanted::All);
        assert_eq!(found, whole, "chunks of {chunk}");
    }
}

#[test]
fn positions_that_skip_the_shared_layers_change_nothing() {
    let model = random_model();
    let vocabulary = model.config.text.vocab_size;
    for length in [1, WINDOW, 3 * WINDOW + 1] {
        let tokens = random::tokens(length, 5);
        let all = logits(&model, &fast(), &tokens);
        for chunk in [1, 5, WINDOW, length] {
            let last = in_chunks(&model, &fast(), &tokens, chunk, Wanted::Last);
            assert_eq!(last, last_rows(&all, 1, vocabulary), "{length} tokens by {chunk}");
        }
    }
}

/// Prompts around the window and its double, read in chunks below and above it, then decoded:
/// every row must equal that of one pass over the whole sequence, where no ring takes part.
fn case_14(model: &Model) {
    let vocabulary = model.config.text.vocab_size;
    for length in [7, 8, 9, 15, 16, 17, 40] {
        let tokens: Vec<u32> = (0..length).map(|i| 2 + (i * 37 % 150) as u32).collect();
        let (mut sequence, mut first) = (tokens.clone(), None);
        for chunk in [1, 4, 8, 16, length] {
            let (ids, rows) = greedy(model, &fast(), &tokens, chunk, 40);
            if first.is_none() {
                sequence.extend(&ids[..ids.len() - 1]);
                let whole = logits(model, &fast(), &sequence);
                first = Some(last_rows(&whole, 40, vocabulary).to_vec());
            }
            assert_eq!(Some(rows), first, "{length} tokens in chunks of {chunk}");
        }
    }
}

#[test]
fn field_case_14_chunks_and_decoding_across_the_sliding_window() {
    case_14(&random_model());
    let Some(conformance) = conformance() else { return };
    case_14(&load(&conformance.join("tiny-a/text")));
    case_14(&load(&conformance.join("tiny-c/text")));
}

#[test]
fn threads_and_company_change_nothing() {
    let model = std::sync::Arc::new(random_model());
    let (a, b) = (random::tokens(21, 6), random::tokens(11, 7));
    let alone = [&a, &b].map(|tokens| logits(&model, &as_the_device(), tokens));
    for threads in [1, 2, 3, 8] {
        let mut device = CpuDevice::new(model.clone(), threads).expect("threads start");
        let slots = [device.make_slot(64), device.make_slot(64)].map(|slot| slot.expect("a slot"));
        let mut rows = [Vec::new(), Vec::new()];
        // Two sequences step by step in one batch, in pieces of different lengths.
        for (a, b) in a.chunks(4).zip(b.chunks(2)) {
            let work = [(slots[0], a), (slots[1], b)];
            let work = work.map(|(slot, tokens)| Work { slot, tokens, logits: Wanted::All });
            let logits = device.step(&work).expect("the step runs");
            for (rows, logits) in rows.iter_mut().zip(logits) {
                rows.extend(logits);
            }
        }
        assert_eq!(rows, alone, "{threads} threads");
    }
}

/// Lengths at which others' attention was wrong: around multiples of 32 and of 256.
///
/// A row of logits depends on earlier tokens only, so one f64 pass over the longest prompt holds
/// the answer for all of them.
fn case_15(model: &Model) {
    let vocabulary = model.config.text.vocab_size;
    let lengths = [31..=35, 63..=67, 95..=99, 255..=258, 511..=514];
    let tokens: Vec<u32> = (0..514).map(|i| 2 + (i * 7919 % 150) as u32).collect();
    let oracle = logits(model, &Plain::<f64>::new(), &tokens);
    for length in lengths.into_iter().flatten() {
        let expected = &oracle[(length - 1) * vocabulary..][..vocabulary];
        for chunk in [64, length] {
            let found = in_chunks(model, &fast(), &tokens[..length], chunk, Wanted::Last);
            let (worst, allowed) = (worst(&found, expected), in_sixteen_bits(expected));
            assert!(worst <= allowed, "{length} tokens in chunks of {chunk}: {worst}, {allowed}");
        }
    }
}

#[test]
fn field_case_15_lengths_around_multiples_of_the_block() {
    case_15(&random_model());
    let Some(conformance) = conformance() else { return };
    case_15(&load(&conformance.join("tiny-c/text")));
}

#[test]
fn a_pass_that_is_refused_leaves_the_cache_as_it_was() {
    let model = random_model();
    let tokens = random::tokens(12, 8);
    let mut cache = Cache::new(&model.config.text, tokens.len());
    let mut run = |tokens: &[u32], wanted| {
        forward(&model, &fast(), &mut cache, tokens, wanted, &mut NoObserver)
    };
    run(&tokens[..7], Wanted::Nothing).expect("the tokens fit");
    let beyond = run(&[3, random::VOCABULARY as u32], Wanted::Last).expect_err("no such id");
    assert!(beyond.to_string().contains("token 8 of the prompt has the id 160"), "{beyond}");
    let full = run(&[3; 6], Wanted::Last).expect_err("13 positions in 12");
    assert!(full.to_string().contains("12"), "{full}");
    run(&[], Wanted::Last).expect_err("no tokens");
    let last = run(&tokens[7..], Wanted::Last).expect("the tokens fit");
    let whole = logits(&model, &fast(), &tokens);
    assert_eq!(last, last_rows(&whole, 1, model.config.text.vocab_size));
}

#[test]
fn an_id_behind_the_end_of_the_per_layer_table_is_refused() {
    let mut draft = random::packed(1);
    let table = "model.embed_tokens_per_layer";
    draft.config["vocab_size_per_layer_input"] = 100.into();
    for part in ["weight_packed", "weight_scale"] {
        let position = draft.position(&format!("{table}.{part}"));
        let (_, _, shape, bytes) = &mut draft.tensors[position];
        bytes.truncate(bytes.len() / shape[0] * 100);
        shape[0] = 100;
    }
    draft.bytes_mut(&format!("{table}.weight_shape"))[..8].copy_from_slice(&100i64.to_le_bytes());
    let folder = tempfile::tempdir().expect("a folder");
    draft.write(folder.path());
    let model = load(folder.path());
    let mut cache = Cache::new(&model.config.text, 8);
    let error = forward(&model, &fast(), &mut cache, &[99, 100], Wanted::Last, &mut NoObserver);
    let error = error.expect_err("row 100 of 100").to_string();
    assert!(
        error.contains("id 100") && error.contains("embed_tokens_per_layer has 100"),
        "{error}"
    );
}

/// Every way back, around the window and its double; tokens that are tried and dropped.
#[test]
fn slots_are_cut_and_copied_without_changing_a_bit() {
    let check = |model: Model, window: usize, lengths: &[usize]| {
        let mut device = CpuDevice::new(model.into(), 1).expect("a thread starts");
        slots::cuts_change_nothing(&mut device, window, lengths);
        slots::copies_change_nothing(&mut device, lengths);
        slots::tries_change_nothing(&mut device, lengths);
        slots::cuts_in_a_row_are_right_or_refused(&mut device, lengths);
    };
    check(random_model(), WINDOW, &[7, 8, 9, 15, 16, 17, 40]);
    let Some(conformance) = conformance() else { return };
    for set in ["tiny-a", "tiny-c"] {
        let model = load(&conformance.join(set).join("text"));
        let window = model.config.text.sliding_window;
        check(model, window, &[window - 1, window, window + 1, 2 * window + 1]);
    }
}

/// A slot given back keeps its memory for the next sequence, and nothing of the last one.
#[test]
fn memory_of_a_slot_is_counted_and_used_again() {
    let model = std::sync::Arc::new(random_model());
    let mut device = CpuDevice::new(model.clone(), 1).expect("a thread starts");
    let slot = device.make_slot(600).expect("a slot");
    assert_eq!(device.memory().slot_bytes(slot).expect("in use"), 0, "nothing is stored yet");
    let tokens = random::tokens(300, 1);
    let run = |device: &mut CpuDevice, slot, tokens: &[u32]| {
        let work = Work { slot, tokens, logits: Wanted::Last };
        device.step(&[work]).expect("it runs").swap_remove(0)
    };
    run(&mut device, slot, &tokens);
    let full = device.memory().slot_bytes(slot).expect("in use");
    // Two blocks of 256 positions in one full layer, one in each of three rings, keys and values.
    let row = |head_dim: usize| 2 * 2 * head_dim * size_of::<f16>();
    assert!(full >= 512 * row(64) + 3 * 256 * row(32), "{full}");
    device.free_slot(slot).expect("it was in use");
    let slot = device.make_slot(30).expect("a slot");
    assert_eq!(device.memory().slot_bytes(slot).expect("in use"), full, "its memory is there");
    assert_eq!(device.memory().positions(slot).expect("in use"), 0);
    let last = run(&mut device, slot, &tokens[..20]);
    let expected = logits(&model, &as_the_device(), &tokens[..20]);
    assert_eq!(last, last_rows(&expected, 1, model.config.text.vocab_size));
    let work = Work { slot, tokens: &tokens[..11], logits: Wanted::Last };
    assert!(device.step(&[work]).is_err(), "31 positions in 30");
}

/// Sequences of all lengths in one pass, each with other logits wanted, and a slot twice.
#[test]
fn a_pass_over_several_sequences_gives_each_its_own_logits() {
    let model = std::sync::Arc::new(random_model());
    let mut device = CpuDevice::new(model.clone(), 2).expect("threads start");
    let prompts: Vec<Vec<u32>> =
        (0..5).map(|seed| random::tokens(9 + 7 * seed, seed as u64)).collect();
    let wanted = [Wanted::Last, Wanted::All, Wanted::Nothing, Wanted::Last, Wanted::All];
    let slots: Vec<Slot> = (0..5).map(|_| device.make_slot(64).expect("a slot")).collect();
    let work: Vec<Work> = (0..5)
        .map(|i| Work { slot: slots[i], tokens: &prompts[i][..4 + 3 * i], logits: wanted[i] })
        .collect();
    let first = device.step(&work).expect("it runs");
    let rest: Vec<Work> = (0..5)
        .map(|i| Work { tokens: &prompts[i][4 + 3 * i..], logits: Wanted::All, ..work[i] })
        .collect();
    let rest = device.step(&rest).expect("it runs");
    let vocabulary = model.config.text.vocab_size;
    for (i, prompt) in prompts.iter().enumerate() {
        let expected = logits(&model, &as_the_device(), prompt);
        let (before, behind) = expected.split_at((4 + 3 * i) * vocabulary);
        let before = match wanted[i] {
            Wanted::All => before,
            Wanted::Last => last_rows(before, 1, vocabulary),
            Wanted::Nothing => &[],
        };
        assert_eq!(first[i], before, "sequence {i}");
        assert_eq!(rest[i], behind, "sequence {i}");
    }
    let twice = [5, 6].map(|id| Work {
        slot: slots[0],
        tokens: &[3, 4, 5][..id - 4],
        logits: Wanted::Last,
    });
    let found = device.step(&twice).expect("it runs");
    let expected = logits(&model, &as_the_device(), &[&prompts[0][..], &[3], &[3, 4]].concat());
    assert_eq!(found[1], last_rows(&expected, 1, vocabulary));
}

#[test]
fn slots_are_made_used_and_given_back() {
    let mut device = CpuDevice::new(random_model().into(), 1).expect("a thread starts");
    let slot = device.make_slot(8).expect("a slot");
    let other = device.make_slot(8).expect("a slot");
    assert_ne!(slot, other);
    device.free_slot(slot).expect("it was in use");
    let work = Work { slot, tokens: &[2], logits: Wanted::Last };
    assert!(device.step(&[work]).is_err() && device.free_slot(slot).is_err());
    assert_eq!(device.make_slot(8).expect("a slot"), slot, "a free place is used again");
    assert!(CpuDevice::new(random_model().into(), 0).is_err());
}

/// What a card may be off by, on a device that is here: the CPU's kernels over products rounded to
/// bf16, whose activations they keep in f32, with keys and values in f16 as on a card.
#[test]
fn an_f16_cache_moves_logits_by_as_much_as_cards_may_be_off() {
    // The widest takes f64 too long for what it would add here.
    for (name, config, count) in random::tensor_core_shapes().into_iter().take(2) {
        let folder = tempfile::tempdir().expect("a folder");
        random::packed_with(config, 6, &[ScaleDtype::F16]).write(folder.path());
        let model = load_as(folder.path(), WeightValues::Bf16);
        let (tokens, text) = (random::tokens(count, 8), &model.config.text);
        let exact = pass(
            &model,
            &Plain::<f64, f16>::new(),
            &mut Cache::new(text, count),
            &tokens,
            Wanted::All,
        );
        let allowed = tolerance::<f16, _>(&exact, Roundings::SINGLE, |rounded| {
            pass(&model, rounded, &mut Cache::new(text, count), &tokens, Wanted::All)
        });
        let mut cache = Cache::new(text, count);
        let found = pass(&model, &as_the_device(), &mut cache, &tokens, Wanted::All);
        let far = allowed.check(&found, &exact, name);
        println!("{name}: {far:e} of {allowed:?}");
        // It is the rounding to f16 that does it, and a tolerance that lets pass what keeps fewer
        // bits would be none.
        let wide = logits(&model, &Plain::<f64>::new(), &tokens);
        assert!(worst(&logits(&model, &fast(), &tokens), &wide) < allowed.worst, "{name}");
        let mut cache = Cache::new(text, count);
        let coarse = pass(&model, &Plain::<f64, bf16>::new(), &mut cache, &tokens, Wanted::All);
        assert!(worst(&coarse, &exact) > allowed.worst, "{name}: bf16 passes for f16");
    }
}
