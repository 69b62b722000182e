//! The doctor on safetensors: each rule with a checkpoint that breaks it, and checkpoints whose fate
//! with the real loaders is known.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value as Json, json};
use w4pack_format::dtype::Dtype;
use w4pack_format::scale::ScaleDtype;
use w4pack_format::source::{FolderSource, Source};
use w4pack_verify::doctor::{Diagnosis, Effect, Loader, diagnose};

use crate::doctor_gguf::Blocks;
use crate::support::checkpoint::Parts;
use crate::support::memory::{Files, MemorySource};
use crate::support::tensors::Tensor;
use crate::support::{conformance, packer, synthetic};

const UP: &str = "model.layers.0.mlp.up_proj";

fn emb4() -> Parts {
    let source = synthetic::source(7);
    packer::emb4(&source.tensors, &source.files, ScaleDtype::F16)
}

fn untied() -> Parts {
    let mut parts = emb4();
    packer::untie(&mut parts);
    parts
}

/// `embed_tokens` in bf16, as layout `linear-ple4` has it.
fn bf16_table() -> Parts {
    let mut parts = emb4();
    packer::keep(&mut parts, "model.embed_tokens", &synthetic::source(7).tensors);
    edit_scheme(&mut parts, |scheme| {
        scheme["ignore"].as_array_mut().unwrap().push(json!("re:.*embed_tokens$"));
    });
    parts
}

/// Multimodal names and configuration, with one linear of a tower.
fn multimodal() -> Parts {
    let mut parts = bf16_table();
    let scheme = config(&parts)["quantization_config"].clone();
    let renamed = parts
        .tensors
        .into_iter()
        .map(|(name, tensor)| (name.replacen("model.", "model.language_model.", 1), tensor));
    parts.tensors = renamed.collect();
    let tower = Tensor::of_halves(&[4, 32], &[0x3f80; 128]);
    parts.tensors.insert("model.vision_tower.encoder.layers.0.q_proj.linear.weight".into(), tower);
    parts.edit_config(|config| {
        *config = synthetic::config();
        config["quantization_config"] = scheme;
    });
    parts
}

fn config(parts: &Parts) -> Json {
    serde_json::from_slice(&parts.files["config.json"]).unwrap()
}

fn edit_scheme(parts: &mut Parts, edit: impl FnOnce(&mut Json)) {
    parts.edit_config(|config| edit(&mut config["quantization_config"]));
}

fn edit_group(parts: &mut Parts, edit: impl FnOnce(&mut Json)) {
    edit_scheme(parts, |scheme| edit(&mut scheme["config_groups"]["group_0"]));
}

fn remove(object: &mut Json, key: &str) {
    object.as_object_mut().unwrap().shift_remove(key).unwrap();
}

fn ask(parts: &Parts, loader: Loader) -> Diagnosis {
    diagnose(parts.source(), loader).unwrap()
}

fn scale(parts: &mut Parts, bits: u16) {
    parts.bytes_mut(&format!("{UP}.weight_scale"))[..2].copy_from_slice(&bits.to_le_bytes());
}

fn plain_up(parts: &mut Parts) {
    packer::keep(parts, UP, &synthetic::source(7).tensors);
}

/// A checkpoint that breaks a rule: the rule, its effect, what to begin with, and what to change.
type Case<'c> = (&'c str, Effect, fn() -> Parts, &'c dyn Fn(&mut Parts));

/// Each case breaks its rule and is cured of it without the change; no rule is without a case.
fn assert_rules(loader: Loader, cases: &[Case<'_>]) {
    for (rule, effect, begin, change) in cases {
        let mut parts = begin();
        let before = ask(&parts, loader);
        change(&mut parts);
        let after = ask(&parts, loader);
        let found = after.findings.iter().find(|finding| finding.rule == *rule);
        let found = found.unwrap_or_else(|| panic!("{rule} is not in: {after}"));
        assert_eq!(found.effect, *effect, "{after}");
        assert!(!found.concerns.is_empty() && !found.detail.is_empty(), "{after}");
        assert!(before.findings.iter().all(|finding| finding.rule != *rule), "{before}");
        if *effect != Effect::Note {
            assert!(!after.loads && after.exit_code() == 1);
            assert!(after.advice.is_some(), "{after}");
        }
        assert!(after.to_string().contains(rule));
    }
    let mut tried: BTreeSet<&str> = cases.iter().map(|case| case.0).collect();
    tried.insert(of_gguf_file(loader));
    let rules: BTreeSet<&str> = loader.rules().iter().copied().collect();
    assert_eq!(tried, rules);
}

/// The rule that a GGUF file breaks with a loader of safetensors.
fn of_gguf_file(loader: Loader) -> &'static str {
    let diagnosis = Blocks::sound().ask_for(loader);
    assert!(!diagnosis.loads, "{diagnosis}");
    let advised = diagnosis.advice.as_ref().map(|advice| advice.layout);
    assert_eq!(advised, Some(if loader == Loader::Vllm { "emb4-untied" } else { "emb4" }));
    let [finding] = &diagnosis.findings[..] else { panic!("{diagnosis}") };
    finding.rule
}

#[test]
fn each_rule_of_transformers_has_a_checkpoint_that_breaks_it() {
    use Effect::*;
    let cases: &[Case<'_>] = &[
        ("class-and-names", Uninitialised, multimodal, &|parts| {
            let text = config(&emb4());
            parts.edit_config(|config| *config = text);
        }),
        ("no-quantization-config", Uninitialised, emb4, &|parts| {
            parts.edit_config(|config| remove(config, "quantization_config"));
        }),
        ("quantization-status", Uninitialised, emb4, &|parts| {
            edit_scheme(parts, |scheme| remove(scheme, "quantization_status"));
        }),
        ("preset-name", Refuses, emb4, &|parts| {
            edit_scheme(parts, |scheme| {
                let targets = scheme["config_groups"]["group_0"]["targets"].clone();
                scheme["config_groups"] = json!({"W4A16": targets});
            });
        }),
        ("unknown-key", Refuses, emb4, &|parts| {
            edit_group(parts, |group| group["weights"]["bits"] = 4.into());
        }),
        ("other-format", Refuses, emb4, &|parts| {
            edit_scheme(parts, |scheme| scheme["format"] = "int-quantized".into());
        }),
        ("other-weights", Misreads, emb4, &|parts| {
            edit_group(parts, |group| group["weights"]["num_bits"] = 8.into());
        }),
        ("several-groups", Misreads, emb4, &|parts| {
            edit_scheme(parts, |scheme| {
                let mut second = scheme["config_groups"]["group_0"].clone();
                second["weights"]["group_size"] = 128.into();
                second["targets"] = json!(["re:.*nothing$"]);
                scheme["config_groups"]["group_1"] = second;
            });
        }),
        ("packed-not-covered", Uninitialised, emb4, &|parts| {
            edit_scheme(parts, |scheme| {
                scheme["ignore"].as_array_mut().unwrap().push(json!(UP));
            });
        }),
        ("covered-not-packed", Uninitialised, emb4, &plain_up),
        ("missing-weight", Uninitialised, emb4, &|parts| {
            parts.tensors.remove("model.norm.weight").unwrap();
        }),
        ("missing-part", Refuses, emb4, &|parts| {
            parts.tensors.remove(&format!("{UP}.weight_shape")).unwrap();
        }),
        ("weight-shape", Refuses, emb4, &|parts| {
            parts.bytes_mut(&format!("{UP}.weight_shape"))[0] ^= 1;
        }),
        ("columns", Refuses, emb4, &|parts| {
            parts.edit_config(|config| config["hidden_size"] = 48.into());
        }),
        ("packed-embedding", Refuses, emb4, &|parts| {
            edit_scheme(parts, |scheme| remove(scheme, "dequantize"));
        }),
        ("tied-packed-head", Refuses, emb4, &|parts| {
            edit_scheme(parts, |scheme| {
                remove(scheme, "dequantize");
                scheme["ignore"] = json!([]);
            });
        }),
        ("scales-cast", Misreads, bf16_table, &|parts| {
            edit_scheme(parts, |scheme| remove(scheme, "dequantize"));
        }),
        ("scales-overflow", Misreads, emb4, &|parts| scale(parts, 0x7000)),
        ("faulty-scales", Misreads, emb4, &|parts| scale(parts, 0x7e00)),
        ("stranger", Note, emb4, &|parts| {
            parts.tensors.insert("score.weight".into(), Tensor::of_halves(&[1], &[0]));
        }),
        ("older-versions", Note, bf16_table_and_no_packed_one, &|parts| *parts = emb4()),
    ];
    assert_rules(Loader::Transformers, cases);
}

/// Layout `linear`.
fn bf16_table_and_no_packed_one() -> Parts {
    let mut parts = bf16_table();
    packer::keep(&mut parts, "model.embed_tokens_per_layer", &synthetic::source(7).tensors);
    edit_group(&mut parts, |group| group["targets"] = json!(["Linear"]));
    parts
}

#[test]
fn each_rule_of_vllm_has_a_checkpoint_that_breaks_it() {
    use Effect::*;
    let cases: &[Case<'_>] = &[
        ("no-quantization-config", Refuses, untied, &|parts| {
            parts.edit_config(|config| remove(config, "quantization_config"));
        }),
        ("other-format", Refuses, untied, &|parts| {
            edit_scheme(parts, |scheme| remove(scheme, "format"));
        }),
        ("other-weights", Refuses, untied, &|parts| {
            edit_group(parts, |group| group["weights"]["group_size"] = 128.into());
        }),
        ("kv-cache-scheme", Refuses, untied, &|parts| {
            edit_scheme(parts, |scheme| {
                scheme["kv_cache_scheme"] = json!({"num_bits": 4, "type": "int"});
            });
        }),
        ("sparsity", Refuses, untied, &|parts| {
            edit_scheme(parts, |scheme| scheme["sparsity_config"] = json!({"format": "sparse-24"}));
        }),
        ("tied-packed-table", Refuses, untied, &|parts| *parts = emb4()),
        ("tied-head-target", Uninitialised, bf16_table, &|parts| {
            edit_scheme(parts, |scheme| scheme["ignore"] = json!(["re:.*embed_tokens$"]));
            edit_group(parts, |group| {
                group["targets"].as_array_mut().unwrap().push(json!("lm_head"));
            });
        }),
        ("packed-not-covered", Refuses, untied, &|parts| {
            // What the official writer's own classes would say.
            edit_group(parts, |group| group["targets"] = json!(["Linear", "Embedding"]));
        }),
        ("covered-not-packed", Refuses, untied, &plain_up),
        ("missing-weight", Uninitialised, untied, &|parts| {
            for part in ["weight_packed", "weight_scale", "weight_shape"] {
                parts.tensors.remove(&format!("{UP}.{part}")).unwrap();
            }
        }),
        ("missing-part", Uninitialised, untied, &|parts| {
            parts.tensors.remove(&format!("{UP}.weight_scale")).unwrap();
        }),
        ("zero-point", Refuses, untied, &|parts| {
            let zero = Tensor { dtype: Dtype::I32, shape: vec![1], bytes: vec![0; 4] };
            parts.tensors.insert(format!("{UP}.weight_zero_point"), zero);
        }),
        ("mixed-fusion", Refuses, untied, &|parts| {
            plain_up(parts);
            edit_scheme(parts, |scheme| {
                scheme["ignore"] = json!([r"re:.*layers\.0\.mlp\.up_proj$"])
            });
        }),
        ("packed-tower", Refuses, with_ignored_tower, &|parts| *parts = multimodal()),
        ("columns", Refuses, untied, &|parts| {
            parts.edit_config(|config| config["hidden_size"] = 48.into());
        }),
        ("faulty-scales", Misreads, untied, &|parts| scale(parts, 0)),
        ("scales-cast", Note, with_bf16_scales, &|parts| *parts = untied()),
        ("stranger", Refuses, untied, &|parts| {
            parts.tensors.insert("score.weight".into(), Tensor::of_halves(&[1], &[0]));
        }),
        ("unused-keys", Note, untied, &|parts| {
            let name = "model.layers.3.self_attn.k_proj.weight_packed";
            parts.tensors.insert(name.into(), Tensor::of_halves(&[1], &[0]));
        }),
    ];
    assert_rules(Loader::Vllm, cases);
}

fn with_ignored_tower() -> Parts {
    let mut parts = multimodal();
    edit_scheme(&mut parts, |scheme| {
        scheme["ignore"].as_array_mut().unwrap().push(json!("re:.*vision_tower.*"));
    });
    parts
}

fn with_bf16_scales() -> Parts {
    let source = synthetic::source(7);
    let mut parts = packer::emb4(&source.tensors, &source.files, ScaleDtype::BF16);
    packer::untie(&mut parts);
    // Tensors that fell back to f32 are cast as well.
    for (name, tensor) in &mut parts.tensors {
        if name.ends_with("weight_scale") && tensor.dtype == Dtype::F32 {
            tensor.bytes = tensor.bytes.chunks(4).flat_map(|step| &step[2..]).copied().collect();
            tensor.dtype = Dtype::BF16;
        }
    }
    parts
}

/// What was seen when the loaders themselves were run on these files.
#[test]
fn the_official_librarys_packs_fare_as_they_did_with_the_loaders() {
    let seen = [
        ("linear", true, true),
        ("linear-ple4", false, true),
        ("emb4-untied", false, true),
        ("emb4-tied", false, false),
    ];
    for (name, transformers, vllm) in seen {
        let Some(folder) = conformance(&format!("ct-official/{name}")) else { return };
        let source: Arc<dyn Source> = Arc::new(FolderSource::open(&folder).unwrap());
        for (loader, loads) in [(Loader::Transformers, transformers), (Loader::Vllm, vllm)] {
            let diagnosis = diagnose(source.clone(), loader).unwrap();
            assert_eq!(diagnosis.loads, loads, "{name}: {diagnosis}");
        }
        let llama_cpp = diagnose(source, Loader::LlamaCpp).unwrap();
        assert_eq!(llama_cpp.findings[0].rule, "no-gguf");
        assert_eq!(llama_cpp.advice.unwrap().layout, "gguf");
    }
}

#[test]
fn advice_names_the_layout_that_the_loader_takes() {
    for (parts, loader, layout) in [
        (emb4(), Loader::Vllm, Some("emb4-untied")),
        (emb4(), Loader::Transformers, None),
        (untied(), Loader::Vllm, None),
        (untied(), Loader::Transformers, None),
        (bf16_table(), Loader::Vllm, None),
        (bf16_table(), Loader::Transformers, None),
        (emb4(), Loader::LlamaCpp, Some("gguf")),
    ] {
        let diagnosis = ask(&parts, loader);
        let advised = diagnosis.advice.as_ref().map(|advice| advice.layout);
        assert_eq!(advised, layout, "{diagnosis}");
        assert_eq!(diagnosis.loads, layout.is_none());
    }
    let mut broken = emb4();
    scale(&mut broken, 0x7e00);
    let advice = ask(&broken, Loader::Transformers).advice.unwrap();
    assert!(advice.text.contains("fault of the checkpoint"), "{}", advice.text);
}

#[test]
fn long_lists_are_cut() {
    let mut parts = emb4();
    parts.edit_config(|config| remove(config, "quantization_config"));
    let diagnosis = ask(&parts, Loader::Vllm);
    let concerns = &diagnosis.findings[0].concerns;
    assert_eq!(concerns.len(), 6);
    assert!(concerns[5].starts_with("and ") && concerns[5].ends_with(" more"));
}

#[test]
fn files_that_no_loader_could_read_are_errors() {
    let mut parts = emb4();
    parts.edit_config(|config| remove(config, "model_type"));
    for loader in [Loader::Transformers, Loader::Vllm] {
        let error = diagnose(parts.source(), loader).unwrap_err();
        assert!(error.to_string().contains("model_type"), "{error}");
    }
    let files = Files::from([("model.gguf".into(), b"PK".to_vec())]);
    let error = diagnose(MemorySource::shared(files), Loader::LlamaCpp).unwrap_err();
    assert!(error.to_string().contains("model.gguf"), "{error}");
}
