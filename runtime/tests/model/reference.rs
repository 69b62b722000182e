//! The tiny reference models: transformers' float32 logits, greedy ids and activations.

use crate::support::*;
use std::collections::BTreeMap;
use w4pack_runtime::forward::{Observer, Stage, forward};
use w4pack_runtime::{Arithmetic, Cache, Model, Plain, Wanted};

/// What the sets' READMEs suggest for a float32 run.
const TOLERANCE: f64 = 1e-3;

/// Both spellings of the same model: Google's files and text-only names.
fn each_model(check: impl Fn(&std::path::Path, &Model)) {
    let Some(conformance) = conformance() else { return };
    for set in ["tiny-a", "tiny-c"] {
        for layout in ["google", "text"] {
            let set = conformance.join(set);
            check(&set, &load(&set.join(layout)));
        }
    }
}

#[test]
fn logits_of_every_position_are_the_reference_ones() {
    each_model(|set, model| {
        let reference = Tensors::read(&set.join("reference/logits.safetensors"));
        for prompt in prompts(set) {
            let expected = reference.f32(&format!("f32|{}|prompt_logits", prompt.name));
            let worst = worst(&logits(model, &fast(), &prompt.ids), &expected);
            assert!(worst <= TOLERANCE, "{} {}: {worst}", set.display(), prompt.name);
        }
    });
}

#[test]
fn the_plain_pass_gives_them_too() {
    each_model(|set, model| {
        let reference = Tensors::read(&set.join("reference/logits.safetensors"));
        let prompt = &prompts(set)[0];
        let expected = reference.f32(&format!("f32|{}|prompt_logits", prompt.name));
        let found = logits(model, &Plain::<f32>::new(), &prompt.ids);
        assert!(worst(&found, &expected) <= TOLERANCE);
        let found = logits(model, &Plain::<f64>::new(), &prompt.ids);
        assert!(worst(&found, &expected) <= TOLERANCE);
    });
}

#[test]
fn greedy_ids_are_the_reference_ones_with_and_without_cache() {
    each_model(|set, model| {
        let reference = Tensors::read(&set.join("reference/logits.safetensors"));
        for prompt in prompts(set) {
            let name = format!("{} {}", set.display(), prompt.name);
            let count = prompt.greedy_cached.len();
            let (ids, rows) = greedy(model, &fast(), &prompt.ids, prompt.ids.len(), count);
            assert_eq!(ids, prompt.greedy_cached, "{name}, cached");
            let expected = reference.f32(&format!("f32|{}|decode_logits_cached", prompt.name));
            assert!(worst(&rows, &expected) <= TOLERANCE, "{name}, cached");

            let mut tokens = prompt.ids.clone();
            for &expected in &prompt.greedy_uncached {
                let row = in_chunks(model, &fast(), &tokens, tokens.len(), Wanted::Last);
                let next = argmax(&row);
                assert_eq!(next, expected, "{name}, uncached");
                tokens.push(next);
            }
        }
    });
}

/// Keeps every stage.
struct Recorder {
    stages: BTreeMap<String, Vec<f32>>,
}

impl Observer<f32> for Recorder {
    fn stage(&mut self, stage: Stage, numbers: &[f32]) {
        let name = match stage {
            Stage::InputsEmbeds => "inputs_embeds".into(),
            Stage::PerLayerInputs => "per_layer_inputs".into(),
            Stage::AttentionOut(layer) => format!("layer.{layer}.attn_out"),
            Stage::MlpOut(layer) => format!("layer.{layer}.mlp_out"),
            Stage::LayerOut(layer) => format!("layer.{layer}.out"),
            Stage::FinalNorm => "final_norm".into(),
        };
        self.stages.insert(name, numbers.to_vec());
    }
}

#[test]
fn every_stage_is_the_reference_one() {
    fn check(set: &std::path::Path, model: &Model, arithmetic: &impl Arithmetic<Number = f32>) {
        let reference = Tensors::read(&set.join("reference/activations.safetensors"));
        for name in ["short", "long_random"] {
            let all = prompts(set);
            let prompt = all.iter().find(|prompt| prompt.name == name).expect("the prompt");
            let mut recorder = Recorder { stages: BTreeMap::new() };
            let mut cache = Cache::new(&model.config.text, prompt.ids.len());
            forward(model, arithmetic, &mut cache, &prompt.ids, Wanted::All, &mut recorder)
                .expect("the prompt runs");
            let prefix = format!("f32|{name}|");
            let mut compared = 0;
            for key in reference.tensors.keys().filter(|key| key.starts_with(&prefix)) {
                let stage = &key[prefix.len()..];
                let expected = reference.f32(key);
                // Relative to the stage's own size: an early stage is not excused by a late one.
                let size = expected.iter().fold(1.0f64, |size, v| size.max(f64::from(v.abs())));
                let worst = worst(&recorder.stages[stage], &expected) / size;
                assert!(worst <= 1e-4, "{} {key}: {worst}", set.display());
                compared += 1;
            }
            assert_eq!(compared, recorder.stages.len(), "every stage has a reference");
        }
    }
    each_model(|set, model| {
        check(set, model, &fast());
        check(set, model, &Plain::<f32>::new());
    });
}
