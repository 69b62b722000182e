//! What is refused when a checkpoint is loaded, and in which words.

use crate::support::checkpoint::Draft;
use crate::support::random;
use crate::support::*;
use half::f16;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use w4pack_format::checkpoint::Checkpoint;
use w4pack_format::dtype::Dtype;
use w4pack_format::scale::ScaleDtype;
use w4pack_runtime::forward::{NoObserver, forward};
use w4pack_runtime::{Cache, LoadOptions, Model, RuntimeError, Wanted, WeightValues, weights};

fn load_draft(draft: &Draft) -> w4pack_runtime::Result<Model> {
    let folder = tempfile::tempdir().expect("a folder");
    draft.write(folder.path());
    try_load(folder.path(), WeightValues::Codes)
}

/// Loading must fail, with every one of `words` in the message.
fn refused(draft: &Draft, words: &[&str]) -> RuntimeError {
    let error = load_draft(draft).expect_err("the checkpoint is faulty");
    let message = error.to_string();
    for word in words {
        assert!(message.contains(word), "`{word}` is not in: {message}");
    }
    error
}

const Q: &str = "model.layers.1.self_attn.q_proj";

#[test]
fn a_sound_checkpoint_loads_and_says_what_it_takes() {
    let folder = tempfile::tempdir().expect("a folder");
    random::packed(1).write(folder.path());
    let checkpoint = w4pack_format::checkpoint::Checkpoint::open_folder(folder.path());
    let mut seen = Vec::new();
    let model = Model::load(&checkpoint.expect("it opens"), &Default::default(), &mut |progress| {
        seen.push(progress)
    })
    .expect("it loads");
    assert!(model.notes.is_empty());
    assert!(seen.windows(2).all(|pair| pair[0].bytes < pair[1].bytes));
    let last = seen.last().expect("progress is reported");
    assert_eq!(last.bytes, last.total);

    let plan = model.memory_plan(4);
    // One full layer owns keys and values, three sliding ones: 2 heads, keys and values, f32.
    assert_eq!(plan.full_per_token, 2 * 64 * 2 * 4);
    assert_eq!(plan.sliding_per_token, 3 * 2 * 32 * 2 * 4);
    assert_eq!(plan.sliding_window, random::WINDOW);
    assert_eq!(plan.weights, model.weights.bytes());
    let ring = plan.sliding_window.min(10) * plan.sliding_per_token;
    assert_eq!(plan.total(10) - plan.total(0), 10 * plan.full_per_token + ring);
}

/// Google's names under a text-only configuration, shapes of 32 bits, a second copy of the table.
/// Rows from the file give the same logits, whatever dtype the table has, and a faulty step among
/// them is refused when its row is wanted, by its place.
#[test]
fn a_table_in_its_file_is_the_same_model() {
    let load = |folder: &Path, weights| {
        let checkpoint = Arc::new(Checkpoint::open_folder(folder).expect("it opens"));
        let options = LoadOptions { weights };
        Model::load_without_table(&checkpoint, &options, &mut |_| {}).expect("it loads")
    };
    let tokens = random::tokens(20, 2);
    for dtype in [ScaleDtype::F16, ScaleDtype::BF16, ScaleDtype::F32] {
        let draft = random::packed_with(random::config(), 1, &[dtype]);
        let folder = tempfile::tempdir().expect("a folder");
        draft.write(folder.path());
        for weights in [WeightValues::Codes, WeightValues::Bf16] {
            let (memory, file) = (load_as(folder.path(), weights), load(folder.path(), weights));
            assert!(
                file.memory_plan(2).per_layer_table == 0
                    && memory.memory_plan(2).per_layer_table > 0
            );
            assert_eq!(logits(&file, &fast(), &tokens), logits(&memory, &fast(), &tokens));
        }
    }
    let mut draft = random::packed(1);
    let scales = draft.tensors.iter_mut().find(|tensor| {
        tensor.0.starts_with("model.embed_tokens_per_layer.") && tensor.0.ends_with("weight_scale")
    });
    let (name, _, shape, bytes) = scales.expect("the table has scales");
    let (groups, row) = (shape[1], 7);
    let width = bytes.len() / (shape[0] * groups);
    bytes[(row * groups + 1) * width..][..width].fill(0);
    let name = name.clone();
    let folder = tempfile::tempdir().expect("a folder");
    draft.write(folder.path());
    let model = load(folder.path(), WeightValues::Codes);
    let run = |token: u32| {
        let mut cache = Cache::new(&model.config.text, 4);
        forward(&model, &fast(), &mut cache, &[token], Wanted::Last, &mut NoObserver)
    };
    assert!(run(6).is_ok());
    let problem = run(row as u32).expect_err("a step of 0").to_string();
    assert!(problem.contains(&name) && problem.contains("row 7, group 1"), "{problem}");
}

#[test]
fn other_makers_spellings_are_the_same_model() {
    let mut draft = random::packed(1);
    let tokens = random::tokens(20, 2);
    let plain = load_draft(&draft).expect("as w4pack writes it");
    let expected = logits(&plain, &fast(), &tokens);
    let table = |tensor: &&(String, Dtype, Vec<usize>, Vec<u8>)| {
        tensor.0.starts_with("model.embed_tokens.")
    };
    let mut copies: Vec<_> = draft.tensors.iter().filter(table).cloned().collect();
    copies.iter_mut().for_each(|copy| copy.0 = copy.0.replace("model.embed_tokens", "lm_head"));
    draft.tensors.extend(copies);
    for (name, dtype, _, bytes) in &mut draft.tensors {
        if let Some(rest) = name.strip_prefix("model.") {
            *name = format!("model.language_model.{rest}");
        }
        if name.ends_with(".weight_shape") {
            *dtype = Dtype::I32;
            *bytes = bytes.chunks(8).flat_map(|number| &number[..4]).copied().collect();
        }
    }
    draft.config["tie_word_embeddings"] = false.into();
    let group = &mut draft.config["quantization_config"]["config_groups"]["group_0"];
    group["targets"].as_array_mut().expect("a list").push("re:.*lm_head$".into());
    draft.config["quantization_config"]["ignore"] = serde_json::json!([]);
    let model = load_draft(&draft).expect("as others write it");
    assert!(model.weights.lm_head.is_none(), "a copy is kept once");
    assert!(logits(&model, &fast(), &tokens) == expected);
}

#[test]
fn field_case_01_keys_and_values_of_shared_layers_may_be_there_or_not() {
    let mut draft = random::packed(1);
    let plain = load_draft(&draft).expect("no keys in shared layers");
    let tokens = random::tokens(20, 2);
    let expected = logits(&plain, &fast(), &tokens);
    draft.add_packed(
        "model.layers.5.self_attn.k_proj",
        &[64, 64],
        &[1; 64 * 64],
        &[1.0; 128],
        w4pack_format::scale::ScaleDtype::F16,
    );
    draft.add_bf16("model.layers.5.self_attn.k_norm.weight", &[64], &[1.0; 64]);
    let with_keys = load_draft(&draft).expect("unused keys in a shared layer");
    assert!(with_keys.notes[0].contains("`model.layers.5.self_attn.k_norm.weight`"));
    assert_eq!(logits(&with_keys, &fast(), &tokens), expected);

    let mut draft = random::packed(1);
    for part in ["weight_packed", "weight_scale", "weight_shape"] {
        draft.remove(&format!("model.layers.3.self_attn.k_proj.{part}"));
    }
    refused(&draft, &["lacks a tensor", "`model.layers.3.self_attn.k_proj.weight_packed`"]);
}

#[test]
fn field_case_04_scales_that_are_no_numbers() {
    for (value, shown) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf"), (0.0, "0"), (-0.0, "-0")] {
        let mut draft = random::packed(1);
        let scale = format!("{Q}.weight_scale");
        // Row 3, group 1 of two groups.
        let (position, index) = (draft.position(&scale), 3 * 2 + 1);
        let (_, dtype, _, bytes) = &mut draft.tensors[position];
        match dtype {
            Dtype::F16 => {
                bytes[2 * index..][..2].copy_from_slice(&f16::from_f32(value).to_le_bytes())
            }
            Dtype::BF16 => {
                bytes[2 * index..][..2].copy_from_slice(&half::bf16::from_f32(value).to_le_bytes())
            }
            _ => bytes[4 * index..][..4].copy_from_slice(&value.to_le_bytes()),
        }
        let error = refused(&draft, &[&scale, "model.safetensors", "row 3, group 1 is", shown]);
        assert!(error.hint().is_some());
    }
}

#[test]
fn field_case_11_a_file_that_was_cut_is_refused_before_its_weights_are_read() {
    for cut in [1, 4096] {
        let folder = tempfile::tempdir().expect("a folder");
        random::packed(1).write(folder.path());
        let path = folder.path().join("model.safetensors");
        let file = fs::OpenOptions::new().write(true).open(&path).expect("the file opens");
        let bytes = file.metadata().expect("it has a size").len();
        file.set_len(bytes - cut).expect("it can be cut");
        let error = try_load(folder.path(), WeightValues::Codes).expect_err("it is too short");
        assert!(error.to_string().contains("model.safetensors"), "{error}");
        assert!(error.hint().is_some());
    }
}

#[test]
fn field_case_11_a_file_cut_after_opening_is_an_error_too() {
    let folder = tempfile::tempdir().expect("a folder");
    random::packed(1).write(folder.path());
    let checkpoint = w4pack_format::checkpoint::Checkpoint::open_folder(folder.path());
    let checkpoint = checkpoint.expect("it opens");
    let path = folder.path().join("model.safetensors");
    let file = fs::OpenOptions::new().write(true).open(path).expect("the file opens");
    let bytes = file.metadata().expect("it has a size").len();
    file.set_len(bytes / 2).expect("it can be cut");
    let error = Model::load(&checkpoint, &Default::default(), &mut |_| {}).expect_err("it shrank");
    assert!(error.to_string().contains("ended early"), "{error}");
}

#[test]
fn missing_extra_and_misshapen_tensors_are_named() {
    let mut draft = random::packed(1);
    draft.remove("model.norm.weight");
    draft.remove("model.layers.0.layer_scalar");
    refused(&draft, &["lacks 2 tensors", "`model.layers.0.layer_scalar`", "`model.norm.weight`"]);

    let mut draft = random::packed(1);
    draft.add_bf16("model.layers.9.layer_scalar", &[1], &[1.0]);
    refused(&draft, &["holds a tensor", "`model.layers.9.layer_scalar`"]);

    let mut draft = random::packed(1);
    draft.remove(&format!("{Q}.weight_shape"));
    refused(&draft, &["lacks a tensor", &format!("`{Q}.weight_shape`")]);

    let mut draft = random::packed(1);
    draft.config["intermediate_size"] = 128.into();
    refused(&draft, &["mlp.gate_proj.weight_packed", "[96, 8]", "[128, 8]"]);

    let mut draft = random::packed(1);
    draft.bytes_mut(&format!("{Q}.weight_shape"))[0] = 7;
    refused(&draft, &[&format!("{Q}.weight_shape"), "[7, 64]", "[128, 64]"]);

    let mut draft = random::packed(1);
    let norm = draft.position("model.norm.weight");
    draft.tensors[norm].1 = Dtype::F16;
    refused(&draft, &["model.norm.weight", "F16, expected BF16"]);
}

#[test]
fn models_of_other_kinds_are_refused_by_the_field_that_makes_them_so() {
    let mut draft = random::packed(1);
    draft.config["attention_bias"] = true.into();
    refused(&draft, &["config.json", "attention_bias", "not supported"]);

    // With experts the same names are too few, without values of their own too many.
    let mut draft = random::packed(1);
    draft.config["enable_moe_block"] = true.into();
    refused(&draft, &["config.json", "num_experts", "missing"]);
    for (key, value) in [("num_experts", 4), ("top_k_experts", 2), ("moe_intermediate_size", 32)] {
        draft.config[key] = value.into();
    }
    refused(&draft, &["lacks", "layers.0.router.scale"]);

    let mut draft = random::packed(1);
    draft.config["attention_k_eq_v"] = true.into();
    refused(&draft, &["no part of this model reads", "layers.2.self_attn.v_proj.weight_packed"]);

    let mut draft = random::packed(1);
    draft.config["model_type"] = "gemma3_text".into();
    draft.config["rope_parameters"] = serde_json::Value::Null;
    refused(&draft, &["is a Gemma 3", "runs Gemma 4"]);
}

#[test]
fn config_and_tensors_must_agree_on_what_is_packed() {
    let mut draft = random::packed(1);
    draft.config.as_object_mut().expect("an object").remove("quantization_config");
    refused(&draft, &["embed_tokens.weight_packed", "no `quantization_config`"]);

    let mut draft = random::packed(1);
    draft.config["quantization_config"]["ignore"] = serde_json::json!(["re:.*q_proj$"]);
    refused(&draft, &["self_attn.q_proj.weight_packed", "does not cover"]);

    let mut draft = random::packed(1);
    for part in ["weight_packed", "weight_scale", "weight_shape"] {
        draft.remove(&format!("{Q}.{part}"));
    }
    draft.add_bf16(&format!("{Q}.weight"), &[128, 64], &[0.5; 128 * 64]);
    refused(&draft, &[&format!("{Q}.weight"), "it is plain"]);
    draft.config["quantization_config"]["ignore"] = serde_json::json!([Q, "re:.*lm_head$"]);
    load_draft(&draft).expect("one linear in bf16, and config.json says so");
}

#[test]
fn a_copied_head_is_kept_once_and_another_one_is_used() {
    let mut draft = random::packed(1);
    let copies: Vec<_> = ["weight_packed", "weight_scale", "weight_shape"]
        .map(|part| {
            let position = draft.position(&format!("model.embed_tokens.{part}"));
            let (_, dtype, shape, bytes) = draft.tensors[position].clone();
            (format!("lm_head.{part}"), dtype, shape, bytes)
        })
        .into();
    let tied = load_draft(&draft).expect("tied");
    draft.tensors.extend(copies);
    draft.config["tie_word_embeddings"] = false.into();
    draft.config["quantization_config"]["ignore"] = serde_json::json!([]);
    let untied = load_draft(&draft).expect("untied, with a copy");
    assert!(untied.weights.lm_head.is_none());
    let tokens = random::tokens(9, 2);
    assert_eq!(logits(&untied, &fast(), &tokens), logits(&tied, &fast(), &tokens));

    // Codes of one word of the head changed.
    draft.bytes_mut("lm_head.weight_packed")[5] ^= 0x35;
    let other = load_draft(&draft).expect("untied, with a head of its own");
    assert!(other.weights.lm_head.is_some());
    assert_ne!(logits(&other, &fast(), &tokens), logits(&tied, &fast(), &tokens));
    draft.config["tie_word_embeddings"] = true.into();
    refused(&draft, &["lm_head.weight_packed", "config.json ties the two"]);

    let mut draft = random::packed(1);
    draft.config["tie_word_embeddings"] = false.into();
    refused(&draft, &["lacks a tensor", "`lm_head.weight`"]);
}

#[test]
fn towers_stray_files_and_unknown_keys_are_reported() {
    let mut draft = random::packed(1);
    let names: Vec<String> = draft.tensors.iter().map(|tensor| tensor.0.clone()).collect();
    for (tensor, name) in draft.tensors.iter_mut().zip(names) {
        tensor.0 = name.replacen("model.", "model.language_model.", 1);
    }
    draft.add_bf16("model.vision_tower.layers.0.q_proj.weight", &[2], &[1.0, 2.0]);
    let text = draft.config.clone();
    let quantization = text["quantization_config"].clone();
    draft.config = serde_json::json!({
        "model_type": "gemma4", "text_config": text, "tie_word_embeddings": true,
        "quantization_config": quantization, "vision_config": null, "future_key": 1
    });
    draft.config["text_config"].as_object_mut().expect("an object").remove("quantization_config");
    let folder = tempfile::tempdir().expect("a folder");
    draft.write(folder.path());
    fs::write(folder.path().join("old.safetensors"), "").expect("a stray file");
    let model = load(folder.path());
    assert!(
        model.notes[0].contains("a tensor of the vision and audio towers"),
        "{:?}",
        model.notes
    );
    assert!(model.notes[1].contains("old.safetensors"), "{:?}", model.notes);
    assert!(model.notes[2].contains("future_key"), "{:?}", model.notes);
}

/// Every tensor, its name and the configuration take part; the folder's name and stray files do
/// not.
#[test]
fn the_fingerprint_is_of_weights_and_configuration() {
    let fingerprint = |draft: &Draft| {
        let folder = tempfile::tempdir().expect("a folder");
        draft.write(folder.path());
        fs::write(folder.path().join("README.md"), format!("{}", folder.path().display()))
            .expect("a stray file");
        let checkpoint = Checkpoint::open_folder(folder.path()).expect("it opens");
        weights::fingerprint(&checkpoint).expect("it is read")
    };
    let own = fingerprint(&random::packed(1));
    assert_eq!(own, fingerprint(&random::packed(1)));
    assert_ne!(own, fingerprint(&random::packed(2)));
    for tensor in 0..random::packed(1).tensors.len() {
        let mut draft = random::packed(1);
        let (name, _, _, bytes) = &mut draft.tensors[tensor];
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        let name = name.clone();
        assert_ne!(own, fingerprint(&draft), "{name}");
    }
    let mut draft = random::packed(1);
    draft.config["rms_norm_eps"] = 1e-5.into();
    assert_ne!(own, fingerprint(&draft), "config.json");
    let mut draft = random::packed(1);
    let norm = draft.position("model.norm.weight");
    draft.tensors[norm].0 = "model.another.weight".into();
    assert_ne!(own, fingerprint(&draft), "a name");
}
