//! Prompts and answers short enough for compute-sanitizer, through every kernel of a pass that small models
//! have: `compute-sanitizer --tool racecheck TESTS short::`.

use crate::shared_card;
use crate::support::random;
use crate::together::odd_shape;
use serde_json::json;
use std::sync::Arc;
use w4pack_format::checkpoint::Checkpoint;
use w4pack_format::scale::ScaleDtype;
use w4pack_runtime::device::cuda::{CudaDevice, CudaOptions, KvType, Products, When};
use w4pack_runtime::device::{DecodeStep, Decoded, Slot, Wanted, Work};
use w4pack_runtime::{Device, Speculation};

/// A prompt in two chunks, longer than the window.
const PROMPT: usize = 11;
const ANSWER: usize = 3;

fn read(device: &mut CudaDevice, prompt: &[u32]) -> Slot {
    let slot = device.make_slot(PROMPT + 2 * ANSWER).expect("a slot");
    device.step(&[Work { slot, tokens: prompt, logits: Wanted::Last }]).expect("it runs");
    slot
}

/// The logits of an answer's tokens alone, beside another answer, and tried in one pass.
fn is_the_same_alone_beside_another_and_tried(shape: &str, products: Products, kv: KvType) {
    let Some(_card) = shared_card() else { return };
    let tokens = random::tokens(PROMPT + ANSWER, 8);
    let (prompt, answer) = tokens.split_at(PROMPT);
    let mut shapes = random::tensor_core_shapes().into_iter().chain([odd_shape()]);
    let (_, mut config, _) = shapes.find(|(name, ..)| *name == shape).expect("a shape");
    if shape == "wide" {
        // One layer of each kind: seven take racecheck longer than anybody waits.
        let kinds = ["sliding", "full", "full"].map(|kind| format!("{kind}_attention"));
        config["layer_types"] = json!(kinds);
        (config["num_hidden_layers"], config["num_kv_shared_layers"]) = (json!(3), json!(1));
    }
    let folder = tempfile::tempdir().expect("a folder");
    random::packed_with(config, 6, &[ScaleDtype::F16]).write(folder.path());
    let checkpoint = Arc::new(Checkpoint::open_folder(folder.path()).expect("it opens"));
    let options = CudaOptions {
        slots: 3,
        chunk: Some(8),
        memory: Some(256 << 20),
        speculation: Speculation::Ngram,
        products: Some(products),
        together: When::Always,
        kv,
        ..CudaOptions::default()
    };
    let device = CudaDevice::load(&checkpoint, options, &mut |_| {});
    let mut device = device.expect("it fits the card");

    let alone = read(&mut device, prompt);
    let decode = |&token: &u32| device.decode(alone, token).expect("it runs");
    let rows: Vec<Vec<f32>> = answer.iter().map(decode).collect();
    device.free_slot(alone).expect("it is in use");

    let (one, other) = (read(&mut device, prompt), read(&mut device, &prompt[..5]));
    for (&token, row) in answer.iter().zip(&rows) {
        let steps = [other, one].map(|slot| DecodeStep { slot, token, logits: true });
        let found = device.decode_together(&steps).swap_remove(1).expect("it runs");
        assert!(found == Decoded::Logits(row.clone()), "beside another");
    }

    // Heads of 32 have no kernel on tensor cores, which those of 64 beside them have.
    let is_between = shape == "mixed" && kv == KvType::F16 && products == Products::Mma;
    assert_eq!(device.most_tried() > 1, !is_between);
    if device.most_tried() > 1 {
        let slot = read(&mut device, prompt);
        let mut trial = device.try_tokens(slot, answer).expect("they run");
        for (number, row) in rows.iter().enumerate() {
            let found = trial.leads_to(number, true).expect("it ran");
            assert!(found == Decoded::Logits(row.clone()), "tried");
        }
    }
}

/// Tests of their own, so that each can be looked at beside the others.
macro_rules! short_answers {
    ($($test:ident: $shape:literal, $products:ident, $kv:ident;)*) => {$(
        #[test]
        fn $test() {
            is_the_same_alone_beside_another_and_tried($shape, Products::$products, KvType::$kv);
        }
    )*};
}

short_answers! {
    small_on_tensor_cores: "small", Mma, F16;
    small_without: "small", Ffma, F16;
    small_with_bytes_as_keys: "small", Mma, Q8;
    mixed_on_tensor_cores: "mixed", Mma, F16;
    mixed_without: "mixed", Ffma, F16;
    mixed_with_bytes_as_keys: "mixed", Mma, Q8;
    wide_on_tensor_cores: "wide", Mma, F16;
    wide_without: "wide", Ffma, F16;
    wide_with_bytes_as_keys: "wide", Mma, Q8;
    odd_without: "odd", Ffma, F16;
}
