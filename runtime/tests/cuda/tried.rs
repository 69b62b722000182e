//! Tokens that one sequence tries, in one pass on a card: to the bit what comes of them one by one.

use crate::shared_card;
use crate::support::hostile::Hostile;
use crate::support::random;
use crate::support::slots::tries_change_nothing;
use crate::together::Way;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use w4pack_format::checkpoint::Checkpoint;
use w4pack_format::scale::ScaleDtype;
use w4pack_runtime::device::MOST_TRIED;
use w4pack_runtime::device::cuda::{CudaDevice, CudaOptions, KvType, Products};
use w4pack_runtime::{Device, Engine, Request, RuntimeError, Sampling, Speculation};

fn device(
    folder: &Path,
    slots: usize,
    products: Products,
    kv: KvType,
    speculation: Speculation,
) -> CudaDevice {
    let checkpoint = Arc::new(Checkpoint::open_folder(folder).expect("it opens"));
    let (products, memory) = (Some(products), Some(1 << 30));
    let options =
        CudaOptions { slots, kv, speculation, products, memory, ..CudaOptions::default() };
    CudaDevice::load(&checkpoint, options, &mut |_| {}).expect("it fits the card")
}

/// Around the windows of every shape, in the first slot and in another one.
#[test]
fn tokens_tried_together_have_the_bits_of_each_alone() {
    let Some(_card) = shared_card() else { return };
    for way in Way::all() {
        let window = way.config["sliding_window"].as_u64().expect("a window") as usize;
        let folder = way.write();
        for slots in [1, 3] {
            let mut device =
                device(folder.path(), slots, way.products, KvType::F16, Speculation::Ngram);
            if !way.takes_several() {
                assert_eq!(device.most_tried(), 1);
                continue;
            }
            if slots > 1 {
                device.make_slot(8).expect("a slot");
            }
            // And around the tiles of 64 positions that attention goes by.
            let lengths = [1, window - 3, window, window + 5, 2 * window + 8, 60, 63, 127, 200];
            tries_change_nothing(&mut device, &lengths);
        }
    }
}

/// What cannot be tried is refused, and where there is no kernel nobody is told otherwise.
#[test]
fn a_card_without_room_or_kernels_takes_no_guesses() {
    let Some(_card) = shared_card() else { return };
    let [(_, small, _), (_, mixed, _), _] = random::tensor_core_shapes();
    for (config, speculation) in [(small, Speculation::Off), (mixed, Speculation::Ngram)] {
        let folder = tempfile::tempdir().expect("a folder");
        random::packed_with(config, 6, &[ScaleDtype::F16]).write(folder.path());
        let device = device(folder.path(), 1, Products::Mma, KvType::F16, speculation);
        assert_eq!(device.most_tried(), 1);
        let engine = Engine::on_card(device, 8).expect("it starts");
        let refused = engine.speculating(Speculation::Ngram).err().expect("it cannot");
        assert!(matches!(refused, RuntimeError::NoSpeculation { .. }), "{refused}");
    }
}

/// Long answers, several windows of them: greedy, drawn, with all logits.
#[test]
fn guesses_of_any_kind_leave_answers_as_they_are() {
    let Some(_card) = shared_card() else { return };
    for way in Way::all().into_iter().filter(Way::takes_several) {
        let (name, folder) = (&way.name, way.write());
        let engine = |speculation| {
            let device = device(folder.path(), 1, way.products, KvType::F16, speculation);
            Engine::on_card(device, 16).expect("it starts")
        };
        let mut plain = engine(Speculation::Off);
        let ngram = engine(Speculation::Ngram).speculating(Speculation::Ngram).expect("it can");
        let hostile = engine(Speculation::Ngram)
            .drafting_with(Speculation::Ngram, || Box::new(Hostile::new(1, 150)));
        for (kind, mut engine) in [("ngram", ngram), ("hostile", hostile)] {
            let mut drafted = 0;
            for seed in 0..6 {
                let temperature = if seed % 2 == 0 { 0.0 } else { 0.7 };
                let request = Request {
                    prompt: random::tokens(5 + 9 * seed as usize, seed),
                    max_tokens: Some(80),
                    stop_ids: Vec::new(),
                    ignore_eos: false,
                    sampling: Sampling { temperature, seed: Some(seed), ..Sampling::GREEDY },
                    logits: seed > 3,
                };
                let ask = |engine: &mut Engine| {
                    engine
                        .generate(&request, &mut |_| ControlFlow::Continue(()))
                        .expect("it answers")
                };
                let (expected, found) = (ask(&mut plain), ask(&mut engine));
                assert_eq!(found.tokens, expected.tokens, "{name}, {kind}, {seed}");
                assert!(found.logits == expected.logits, "{name}, {kind}, {seed}: logits");
                drafted += found.drafted.drafted;
            }
            assert!(drafted > MOST_TRIED, "{name}, {kind}: {drafted}");
        }
    }
}
