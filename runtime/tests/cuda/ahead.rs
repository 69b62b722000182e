//! Greedy steps that the card runs before they are asked for, against a device that never does: the same
//! ids, the same keys and values, whatever comes between.

use crate::shared_card;
use crate::support::checkpoint::Draft;
use crate::support::hostile::Hostile;
use crate::support::random::{self, VOCABULARY};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use w4pack_format::checkpoint::Checkpoint;
use w4pack_format::scale::ScaleDtype;
use w4pack_runtime::device::cuda::{CudaDevice, CudaOptions, KvType, Products, TablePlace, When};
use w4pack_runtime::device::{Contents, DecodeStep, Decoded, Rings};
use w4pack_runtime::{
    Device, Engine, Request, RuntimeError, Sampling, Slot, Speculation, Wanted, Work,
};

fn device(folder: &Path, options: CudaOptions) -> CudaDevice {
    let checkpoint = Arc::new(Checkpoint::open_folder(folder).expect("it opens"));
    CudaDevice::load(&checkpoint, options, &mut |_| {}).expect("it fits the card")
}

fn options() -> CudaOptions {
    let (products, memory, chunk) = (Some(Products::Mma), Some(256 << 20), Some(8));
    CudaOptions { products, memory, chunk, ..CudaOptions::default() }
}

/// Two devices of one model, that get the same to do: steps run ahead on the second one.
struct Both {
    never: CudaDevice,
    always: CudaDevice,
}

impl Both {
    fn new(folder: &Path, options: &CudaOptions) -> Self {
        let [never, always] = [When::Never, When::Always]
            .map(|ahead| device(folder, CudaOptions { ahead, ..options.clone() }));
        Self { never, always }
    }

    /// What both do; errors as words. It must be the same.
    fn same<T: PartialEq>(
        &mut self,
        what: &str,
        mut work: impl FnMut(&mut CudaDevice) -> Result<T, RuntimeError>,
    ) -> Result<T, String> {
        let expected = work(&mut self.never).map_err(|error| error.to_string());
        let found = work(&mut self.always).map_err(|error| error.to_string());
        if let (Err(expected), Err(found)) = (&expected, &found) {
            assert_eq!(found, expected, "{what}");
        }
        assert!(found == expected, "{what}");
        found
    }

    fn read(&mut self, slot: Slot, tokens: &[u32]) -> Result<(), String> {
        let work = Work { slot, tokens, logits: Wanted::Last };
        self.same("a prompt", |device| Ok(bits(&device.step(&[work])?[0]))).map(drop)
    }

    fn greedy(&mut self, slot: Slot, token: u32) -> Result<u32, String> {
        self.same("a greedy step", |device| device.decode_greedy(slot, token))
    }

    fn logits(&mut self, slot: Slot, token: u32) -> Result<(), String> {
        self.same("a step to logits", |device| Ok(bits(&device.decode(slot, token)?))).map(drop)
    }

    fn export(&mut self, slot: Slot) -> Contents {
        self.same("what a slot holds", |device| device.memory().export(slot)).expect("it is in use")
    }

    fn slot(&mut self, context: usize) -> Slot {
        self.same("a slot", |device| device.make_slot(context)).expect("there is one")
    }
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|logit| logit.to_bits()).collect()
}

fn likeliest(logits: &[f32]) -> u32 {
    w4pack_runtime::sampling::greedy(logits).expect("finite")
}

/// From an empty slot over the window's edge, around the ring and up to the end of the context, on every way
/// that a token takes through the layers.
#[test]
fn answers_run_ahead_are_those_that_are_not() {
    let Some(_card) = shared_card() else { return };
    let base = options();
    for (name, config, count) in random::tensor_core_shapes() {
        let folder = tempfile::tempdir().expect("a folder");
        random::packed_with(config, 6, &[ScaleDtype::F16]).write(folder.path());
        let mut ways = vec![("tensor cores", base.clone(), true)];
        if name != "wide" {
            let products = Some(Products::Ffma);
            ways.push(("ordinary cores", CudaOptions { products, ..base.clone() }, true));
            ways.push(("q8", CudaOptions { kv: KvType::Q8, ..base.clone() }, true));
            ways.push(("no overlap", CudaOptions { overlap: false, ..base.clone() }, true));
            for (place, runs) in [(TablePlace::Host, true), (TablePlace::Disk, false)] {
                let table = Some(place);
                ways.push((place.name(), CudaOptions { table, ..base.clone() }, runs));
            }
        }
        for (way, options, runs_ahead) in ways {
            let mut both = Both::new(folder.path(), &options);
            for prompt in [0, 5] {
                let slot = both.slot(count);
                let tokens = random::tokens(prompt + 1, 9);
                if prompt > 0 {
                    both.read(slot, &tokens[..prompt]).expect("it runs");
                }
                let mut token = tokens[prompt];
                let before = both.always.steps_run_ahead();
                for _ in prompt..count {
                    token = both.greedy(slot, token).expect("it runs");
                }
                let run = both.always.steps_run_ahead() - before;
                let expected = if runs_ahead { count - prompt - 1 } else { 0 };
                assert_eq!(run, expected, "{name}, {way}");
                assert_eq!(both.never.steps_run_ahead(), 0);
                let full = both.greedy(slot, token).expect_err("the context is full");
                assert!(full.contains(&count.to_string()), "{name}, {way}: {full}");
                both.export(slot);
                both.same("free", |device| device.free_slot(slot)).expect("it is in use");
            }
        }
    }
}

/// A slot of both devices, as the test knows it.
struct Held {
    slot: Slot,
    /// Likely to be asked for next.
    token: u32,
    length: usize,
    rings: Option<Rings>,
}

/// Whatever a device can be asked for, in any order, most of the time greedy steps that go on.
#[test]
fn whatever_comes_between_changes_nothing() {
    let Some(_card) = shared_card() else { return };
    const CONTEXT: usize = 70;
    const KINDS: usize = 15;
    let (_, config, _) = random::tensor_core_shapes()[0].clone();
    let folder = tempfile::tempdir().expect("a folder");
    random::packed_with(config, 6, &[ScaleDtype::F16]).write(folder.path());
    let options = CudaOptions { slots: 3, speculation: Speculation::Ngram, ..options() };
    let mut both = Both::new(folder.path(), &options);
    let mut random = ChaCha8Rng::seed_from_u64(4);
    let mut draw = |below: usize| random.next_u32() as usize % below;
    let start = |both: &mut Both, prompt: usize| {
        let slot = both.slot(CONTEXT);
        both.read(slot, &random::tokens(prompt, prompt as u64)).expect("it runs");
        Held { slot, token: 3, length: prompt, rings: None }
    };
    let mut slots: Vec<Held> = (0..3).map(|slot| start(&mut both, 3 + 4 * slot)).collect();
    let mut done = [0; KINDS];
    for round in 0..1500 {
        let which = draw(3);
        for _ in 0..draw(4) {
            let held = &mut slots[which];
            if held.length < CONTEXT {
                held.token = both.greedy(held.slot, held.token).expect("it runs");
                held.length += 1;
            }
        }
        let (kind, other) = (draw(KINDS), (which + 1 + draw(2)) % 3);
        done[kind] += 1;
        let (one_token, prompt) = (draw(VOCABULARY) as u32, 1 + draw(12));
        let held = &mut slots[which];
        let (slot, token) = (held.slot, held.token);
        match kind {
            // Another token than the one chosen, greedily and not.
            0 => held.length += usize::from(both.greedy(slot, one_token).is_ok()),
            1 => held.length += usize::from(both.logits(slot, one_token).is_ok()),
            // The one chosen, but with logits.
            2 => held.length += usize::from(both.logits(slot, token).is_ok()),
            // A prompt behind the answer, or of another sequence.
            3 => {
                let read = both.read(slot, &random::tokens(prompt, round));
                held.length += if read.is_ok() { prompt } else { 0 };
            }
            4 => {
                let read = both.read(slots[other].slot, &random::tokens(prompt, round));
                slots[other].length += if read.is_ok() { prompt } else { 0 };
            }
            // Two answers step by step in turn, and together.
            5 => {
                for _ in 0..3 {
                    for held in [which, other] {
                        let held = &mut slots[held];
                        if let Ok(next) = both.greedy(held.slot, held.token) {
                            (held.token, held.length) = (next, held.length + 1);
                        }
                    }
                }
            }
            6 => {
                let steps = [which, other].map(|held| DecodeStep {
                    slot: slots[held].slot,
                    token: slots[held].token,
                    logits: round % 2 == 0,
                });
                let found = both.same("together", |device| {
                    let found = device.decode_together(&steps).into_iter();
                    Ok(found.map(|one| one.map_err(|error| error.to_string())).collect::<Vec<_>>())
                });
                for (held, found) in [which, other].into_iter().zip(found.expect("a list")) {
                    let held = &mut slots[held];
                    match found {
                        Ok(Decoded::Likeliest(id)) => held.token = id,
                        Ok(Decoded::Logits(logits)) => held.token = likeliest(&logits),
                        Err(_) => continue,
                    }
                    held.length += 1;
                }
            }
            // Tokens tried behind the certain one, of which some are kept.
            7 => {
                let mut tried = random::tokens(2 + draw(7), round);
                tried[0] = token;
                let keep = draw(tried.len() + 1);
                let kept = both.same("a trial", |device| {
                    let mut trial = device.try_tokens(slot, &tried)?;
                    let found = trial.leads_to(tried.len() - 1, true)?;
                    if keep > 0 {
                        trial.keep(keep);
                    }
                    Ok(found)
                });
                held.length += if kept.is_ok() { keep } else { 0 };
            }
            // Copies of rings and of all.
            8 => {
                let saved = both.same("rings", |device| device.memory().save_rings(slot));
                held.rings = Some(saved.expect("it is in use"));
            }
            9 => drop(both.export(slot)),
            // A cut by one, or to where it is; a step run ahead may have taken a row more of the rings, so that
            // of several cuts in a row the last one is refused.
            10 => {
                let target = held.length - draw(2).min(held.length);
                let expected = both.never.memory().restore(slot, target, None);
                let found = both.always.memory().restore(slot, target, None);
                match (expected, found) {
                    (Ok(()), Ok(())) => held.length = target,
                    (_, Err(error)) => {
                        assert!(error.to_string().contains("begin at position"), "{error}");
                        both.same("to nothing", |device| device.memory().restore(slot, 0, None))
                            .expect("nothing can always be kept");
                        held.length = 0;
                    }
                    (Err(error), Ok(())) => panic!("only one refuses: {error}"),
                }
            }
            // Back to where rings were saved.
            11 => {
                if let Some(rings) =
                    held.rings.take().filter(|rings| rings.positions <= held.length)
                {
                    both.same("back", |device| {
                        device.memory().restore(slot, rings.positions, Some(&rings))
                    })
                    .expect("they fit");
                    held.length = rings.positions;
                }
            }
            // What one slot holds, put into another.
            12 => {
                let contents = both.export(slot);
                let into = slots[other].slot;
                both.same("import", |device| device.memory().import(into, &contents))
                    .expect("it fits");
                let (token, length) = (slots[which].token, slots[which].length);
                slots[other] = Held { slot: into, token, length, rings: None };
            }
            // A sequence ends, and another one gets its slot.
            13 => {
                both.same("free", |device| device.free_slot(slot)).expect("it is in use");
                slots[which] = start(&mut both, prompt);
            }
            // What is refused.
            _ => {
                both.greedy(slot, VOCABULARY as u32).expect_err("there is no such token");
                both.greedy(Slot::numbered(7), token).expect_err("there is no such slot");
            }
        }
        for held in &mut slots {
            let found = both.same("length", |device| device.memory().positions(held.slot));
            assert_eq!(found, Ok(held.length), "{kind} in round {round}");
            if held.length == CONTEXT {
                both.greedy(held.slot, held.token).expect_err("the context is full");
                both.export(held.slot);
                both.same("free", |device| device.free_slot(held.slot)).expect("it is in use");
                *held = start(&mut both, 1 + round as usize % 9);
            }
        }
    }
    assert!(done.iter().all(|&count| count > 50), "{done:?}");
    for held in &slots {
        both.export(held.slot);
    }
    assert!(both.always.steps_run_ahead() > 1000, "{}", both.always.steps_run_ahead());
}

/// A model whose per-layer inputs of one token are infinite.
fn with_a_broken_token(config: serde_json::Value, token: usize) -> Draft {
    let mut draft = random::packed_with(config, 6, &[ScaleDtype::F16]);
    let name = "embed_tokens_per_layer.weight_packed";
    let found = draft.tensors.iter().find(|tensor| tensor.0.ends_with(name)).expect("a table");
    let module = found.0.strip_suffix(".weight_packed").expect("it is packed").to_string();
    let shape = [found.2[0], 8 * found.2[1]];
    let others: Vec<String> = draft.tensors.iter().map(|tensor| tensor.0.clone()).collect();
    for of_table in others.iter().filter(|name| name.starts_with(&format!("{module}."))) {
        draft.remove(of_table);
    }
    let codes: Vec<i8> = (0..shape[0] * shape[1]).map(|at| (at * 7 % 15) as i8 - 7).collect();
    let groups = shape[1] / 32;
    let step = |group: usize| if group / groups == token { 3e38 } else { 0.02 };
    let steps: Vec<f32> = (0..shape[0] * groups).map(step).collect();
    draft.add_packed(&module, &shape, &codes, &steps, ScaleDtype::F32);
    draft
}

/// The step behind one whose logits are no numbers is under way when the host hears of it; the answer goes on
/// from before.
#[test]
fn broken_logits_are_an_error_and_leave_the_slot_as_it_was() {
    let Some(_card) = shared_card() else { return };
    const BROKEN: u32 = 77;
    let (_, config, _) = random::tensor_core_shapes()[0].clone();
    let folder = tempfile::tempdir().expect("a folder");
    with_a_broken_token(config, BROKEN as usize).write(folder.path());
    let mut both = Both::new(folder.path(), &options());
    let slot = both.slot(60);
    let mut token = 3;
    for step in 0..24 {
        if step % 3 == 2 {
            for _ in 0..1 + step % 2 {
                let error = both.greedy(slot, BROKEN).expect_err("its logits are no numbers");
                assert!(error.contains("is NaN"), "{error}");
            }
        }
        token = both.greedy(slot, token).expect("it runs");
        assert_ne!(token, BROKEN, "the test is of another token");
    }
    assert_eq!(both.export(slot).rings.positions, 24);
    assert!(both.always.steps_run_ahead() > 8, "{}", both.always.steps_run_ahead());
}

/// Answers by the engine: greedy, drawn, with all logits, with guesses that are right and wrong, and where the
/// device decides by itself when to run ahead.
#[test]
fn engines_answer_alike_with_and_without() {
    let Some(_card) = shared_card() else { return };
    let (_, config, _) = random::tensor_core_shapes()[0].clone();
    let folder = tempfile::tempdir().expect("a folder");
    random::packed_with(config, 6, &[ScaleDtype::F16]).write(folder.path());
    let engine = |ahead, speculation| {
        let options = CudaOptions { ahead, speculation, ..options() };
        Engine::on_card(device(folder.path(), options), 8).expect("it starts")
    };
    let mut plain = engine(When::Never, Speculation::Off);
    let mut engines = Vec::new();
    for ahead in [When::WhenItPays, When::Always] {
        engines.push(engine(ahead, Speculation::Off));
        for speculation in [Speculation::Ngram, Speculation::Auto] {
            let guessing = engine(ahead, Speculation::Ngram).speculating(speculation);
            engines.push(guessing.expect("it can"));
        }
        let hostile = engine(ahead, Speculation::Ngram);
        engines.push(hostile.drafting_with(Speculation::Ngram, || Box::new(Hostile::new(1, 150))));
    }
    for seed in 0..8 {
        let request = Request {
            prompt: random::tokens(5 + 9 * seed as usize, seed),
            max_tokens: Some([80, 3, 50, 1][seed as usize % 4]),
            stop_ids: Vec::new(),
            ignore_eos: false,
            sampling: Sampling {
                temperature: if seed % 3 == 2 { 0.7 } else { 0.0 },
                seed: Some(seed),
                ..Sampling::GREEDY
            },
            logits: seed == 5,
        };
        let ask = |engine: &mut Engine| {
            engine.generate(&request, &mut |_| ControlFlow::Continue(())).expect("it answers")
        };
        let expected = ask(&mut plain);
        for (number, engine) in engines.iter_mut().enumerate() {
            let found = ask(engine);
            assert_eq!(found.tokens, expected.tokens, "engine {number}, {seed}");
            assert!(found.logits == expected.logits, "engine {number}, {seed}: logits");
        }
    }
}
