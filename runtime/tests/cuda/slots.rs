//! Slots of a card cut, copied and put back, and prompts reused by the scheduler on one.

use crate::shared_card;
use crate::support::slots::{
    copies_change_nothing, cuts_change_nothing, cuts_in_a_row_are_right_or_refused,
};
use crate::support::{load, random};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;
use w4pack_format::checkpoint::Checkpoint;
use w4pack_runtime::device::cuda::{CudaDevice, CudaOptions, KvType, Products};
use w4pack_runtime::scheduler::{Event, Job, SchedulerOptions};
use w4pack_runtime::{Adjustments, Chosen, Device, Engine, Sampling, Scheduler};

const LENGTHS: [usize; 7] = [7, 8, 9, 15, 16, 17, 40];

fn device(folder: &Path, kv: KvType, slots: usize, chunk: usize) -> CudaDevice {
    let checkpoint = Arc::new(Checkpoint::open_folder(folder).expect("it opens"));
    let memory = Some(256 << 20);
    let (chunk, products) = (Some(chunk), Some(Products::Mma));
    let options = CudaOptions { kv, slots, chunk, memory, products, ..CudaOptions::default() };
    CudaDevice::load(&checkpoint, options, &mut |_| {}).expect("it fits the card")
}

#[test]
fn slots_are_cut_and_copied_without_changing_a_bit() {
    let Some(_card) = shared_card() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    random::packed(1).write(folder.path());
    for kv in [KvType::F16, KvType::Bf16, KvType::Q8] {
        let mut device = device(folder.path(), kv, 2, 5);
        cuts_change_nothing(&mut device, random::WINDOW, &LENGTHS);
        copies_change_nothing(&mut device, &LENGTHS);
        cuts_in_a_row_are_right_or_refused(&mut device, &LENGTHS);
    }
}

/// Contents move between devices that compute alike, and between no others.
#[test]
fn devices_that_compute_otherwise_say_so() {
    let Some(_card) = shared_card() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    random::packed(1).write(folder.path());
    let words = |kv| device(folder.path(), kv, 1, 8).memory().arithmetic();
    assert_eq!(words(KvType::F16), words(KvType::F16));
    assert_ne!(words(KvType::F16), words(KvType::Q8));
}

fn answer(scheduler: &Scheduler, prompt: &[u32], seed: Option<u64>) -> (Vec<Chosen>, usize) {
    let (sender, events) = channel();
    let temperature = if seed.is_some() { 1.0 } else { 0.0 };
    let job = Job {
        prompt: prompt.to_vec(),
        max_tokens: 12,
        stop_ids: Vec::new(),
        sampling: Sampling { temperature, seed, ..Sampling::GREEDY },
        adjustments: Adjustments::default(),
        logprobs: Some(20),
        constraint: None,
        listener: Box::new(move |event| {
            // The test waits for both.
            let _ = match event {
                Event::Token(chosen) => sender.send(Ok(chosen.clone())),
                Event::Ended(summary) => sender.send(Err(summary.cached_tokens)),
                Event::Failed(error) => panic!("{error}"),
                _ => Ok(()),
            };
            ControlFlow::Continue(())
        }),
    };
    scheduler.submit(job).expect("it is taken");
    let mut tokens = Vec::new();
    loop {
        match events.recv().expect("it goes on") {
            Ok(chosen) => tokens.push(chosen),
            Err(cached) => return (tokens, cached),
        }
    }
}

/// Whatever a slot held before: the same tokens and log-probabilities. An answer's own tokens are
/// read again, since decoding leaves other bits than reading does.
#[test]
fn reuse_changes_no_bit_of_an_answer() {
    let Some(_card) = shared_card() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    random::packed(3).write(folder.path());
    let vocabulary = load(folder.path()).config.text.vocab_size;
    assert_eq!(vocabulary, random::VOCABULARY);
    let start = |slots, checkpoints| {
        let device = device(folder.path(), KvType::F16, slots, 6);
        let engine = Engine::on_card(device, 6).expect("it starts");
        let options = SchedulerOptions { slots, checkpoints, ..SchedulerOptions::default() };
        Scheduler::start(engine, options).expect("it starts")
    };
    let (reusing, plain) = (start(2, 4), start(1, 0));
    let mut prompt = random::tokens(23, 1);
    for turn in 0..6u64 {
        let seed = (turn % 2 == 1).then_some(turn);
        let (found, cached) = answer(&reusing, &prompt, seed);
        // Nothing of what came before serves this one.
        answer(&plain, &[1, 2, 3], None);
        let (expected, nothing) = answer(&plain, &prompt, seed);
        assert_eq!(nothing, 0);
        assert_eq!(found, expected, "turn {turn}");
        assert_eq!(cached, if turn == 0 { 0 } else { prompt.len() - 12 - 9 }, "turn {turn}");
        let ids: Vec<u32> = found.iter().map(|chosen| chosen.id).collect();
        prompt = [&prompt[..], &ids, &random::tokens(9, 50 + turn)].concat();
    }
}
