//! Prompts and answers short enough for compute-sanitizer, through every kernel of a pass that small models
//! have: `compute-sanitizer --tool racecheck TESTS short::`.

use crate::shared_card;
use crate::support::random;
use std::sync::Arc;
use w4pack_format::checkpoint::Checkpoint;
use w4pack_format::scale::ScaleDtype;
use w4pack_runtime::device::cuda::{CudaDevice, CudaOptions, KvType, Products};
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
#[test]
fn a_short_answer_has_the_same_bits_alone_beside_another_and_tried() {
    let Some(_card) = shared_card() else { return };
    let tokens = random::tokens(PROMPT + ANSWER, 8);
    let (prompt, answer) = tokens.split_at(PROMPT);
    for (name, config, _) in random::tensor_core_shapes() {
        let folder = tempfile::tempdir().expect("a folder");
        random::packed_with(config, 6, &[ScaleDtype::F16]).write(folder.path());
        let checkpoint = Arc::new(Checkpoint::open_folder(folder.path()).expect("it opens"));
        for (products, kv) in [
            (Products::Mma, KvType::F16),
            (Products::Ffma, KvType::F16),
            (Products::Mma, KvType::Q8),
        ] {
            let what = format!("{name}, {products:?}, {kv:?}");
            let options = CudaOptions {
                slots: 3,
                chunk: Some(8),
                memory: Some(256 << 20),
                speculation: Speculation::Ngram,
                products: Some(products),
                kv,
                ..CudaOptions::default()
            };
            let device = CudaDevice::load(&checkpoint, options, &mut |_| {});
            let mut device = device.expect("it fits the card");

            let alone = read(&mut device, prompt);
            let rows: Vec<Vec<f32>> =
                answer.iter().map(|&token| device.decode(alone, token).expect("it runs")).collect();
            device.free_slot(alone).expect("it is in use");

            let (one, other) = (read(&mut device, prompt), read(&mut device, &prompt[..5]));
            for (&token, row) in answer.iter().zip(&rows) {
                let steps = [other, one].map(|slot| DecodeStep { slot, token, logits: true });
                let mut found = device.decode_together(&steps);
                let found = found.swap_remove(1).expect("it runs");
                assert!(found == Decoded::Logits(row.clone()), "{what}: beside another");
            }

            if device.most_tried() > 1 {
                let slot = read(&mut device, prompt);
                let mut trial = device.try_tokens(slot, answer).expect("they run");
                for (number, row) in rows.iter().enumerate() {
                    let found = trial.leads_to(number, true).expect("it ran");
                    assert!(found == Decoded::Logits(row.clone()), "{what}: tried");
                }
            }
        }
    }
}
