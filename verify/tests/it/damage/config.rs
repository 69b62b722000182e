//! The keys of config.json.

use super::{bare, caught, disguises, good, in_file};
use crate::good_packs::report_of;
use crate::support::checkpoint::Parts;
use crate::support::{packer, synthetic};
use serde_json::{Value, json};
use std::sync::Arc;
use w4pack_format::scale::ScaleDtype;
use w4pack_format::source::Source;
use w4pack_verify::report::{FaultClass, Report, Verdict};

type Edit<'a> = &'a dyn Fn(&mut Value);

/// The report of a pack with its config edited, as another maker's.
fn of_another_maker(pack: &Parts, source: &Arc<dyn Source>, edit: Edit) -> Report {
    let mut pack = bare(pack);
    pack.edit_config(edit);
    report_of(&pack, source)
}

/// A fault in all disguises, and in another maker's pack as well.
fn refused(class: FaultClass, edit: Edit) {
    let place = in_file(class, "config.json");
    let report = caught(place, |pack| pack.edit_config(edit));
    assert_eq!(report.verdict, Verdict::Disproved);
    let (pack, source) = good();
    let report = of_another_maker(&pack, &source, edit);
    assert!(!report.faults.is_empty() && report.faults.iter().all(|fault| place.is_of(fault)));
}

/// A fault in what carries w4pack's folder, a note in another maker's pack.
fn is_a_variant(key: &str, edit: Edit) {
    caught(in_file(FaultClass::Config, "config.json"), |pack| pack.edit_config(edit));
    let (pack, source) = good();
    let report = of_another_maker(&pack, &source, edit);
    assert_eq!(report.verdict, Verdict::Proved, "{report}");
    assert!(report.notes.iter().any(|note| note.contains(key)), "{key}: {report}");
}

fn remove(config: &mut Value, key: &str) {
    config.as_object_mut().unwrap().shift_remove(key).unwrap();
}

#[test]
fn configurations_that_say_something_else() {
    type Edit = fn(&mut serde_json::Value);
    let edits: [(FaultClass, Edit); 6] = [
        (FaultClass::Config, |config| config["rms_norm_eps"] = json!(1e-5)),
        (FaultClass::Config, |config| config["sliding_window"] = 8.into()),
        (FaultClass::Config, |config| config["eos_token_id"] = json!([1, 107])),
        (FaultClass::Config, |config| config["surprise"] = 1.into()),
        (FaultClass::Config, |config| {
            config.as_object_mut().unwrap().remove("final_logit_softcapping");
        }),
        (FaultClass::Tie, |config| config["tie_word_embeddings"] = false.into()),
    ];
    for (class, edit) in edits {
        let report = caught(in_file(class, "config.json"), |pack| pack.edit_config(edit));
        assert_eq!(report.verdict, Verdict::Disproved);
    }
}

#[test]
fn a_key_that_the_source_does_not_have_is_refused_even_as_null() {
    for key in [
        "per_layer_config",
        "auto_map",
        "vision_config",
        "rope_theta",
        "torch_dtype",
        "is_decoder",
        "_attn_implementation",
        "max_length",
        "repetition_penalty",
        "sliding_window_pattern",
    ] {
        for value in [Value::Null, json!(1), json!("x"), json!({})] {
            refused(FaultClass::Config, &|config| config[key] = value.clone());
        }
    }
    for (key, value) in [
        ("_name_or_path", json!("somewhere")),
        ("transformers_version", json!("5.24.0")),
        ("num_experts", Value::Null),
        ("torch_dtype", json!("bfloat16")),
    ] {
        is_a_variant(key, &|config| config[key] = value.clone());
    }
    for key in ["_name_or_path", "transformers_version", "num_experts"] {
        refused(FaultClass::Config, &|config| config[key] = json!([1]));
    }
}

/// `Config(hidden_size=64.0)` fails deep inside other readers.
#[test]
fn an_integer_stays_an_integer() {
    for key in ["hidden_size", "vocab_size", "sliding_window", "bos_token_id", "pad_token_id"] {
        refused(FaultClass::Config, &|config| {
            config[key] = config[key].as_f64().unwrap().into();
        });
    }
    refused(FaultClass::Config, &|config| config["eos_token_id"] = json!([1.0, 106]));
    is_a_variant("final_logit_softcapping", &|config| {
        config["final_logit_softcapping"] = 30.into()
    });
    is_a_variant("rope_theta", &|config| {
        config["rope_parameters"]["sliding_attention"]["rope_theta"] = 10_000.into();
    });
}

#[test]
fn of_keys_on_both_levels_the_rule_says_which_one_holds() {
    let mut parts = synthetic::source(7);
    parts.edit_config(|config| {
        config["dtype"] = "float32".into();
        config["transformers_version"] = "5.5.0".into();
        config["initializer_range"] = 0.5.into();
        config["text_config"]["initializer_range"] = 0.25.into();
    });
    let source = parts.source();
    let pack = packer::emb4(&parts.tensors, &parts.files, ScaleDtype::BF16);
    let report = report_of(&pack, &source);
    assert_eq!(report.verdict, Verdict::Proved, "{report}");
    let edits: [Edit; 4] = [
        &|config| config["dtype"] = "float32".into(),
        &|config| config["eos_token_id"] = 1.into(),
        &|config| config["initializer_range"] = 0.5.into(),
        &|config| remove(config, "initializer_range"),
    ];
    for edit in edits {
        for pack in [pack.clone(), bare(&pack)] {
            let report = of_another_maker(&pack, &source, edit);
            assert_eq!(report.faults.len(), 1, "{report}");
            assert!(in_file(FaultClass::Config, "config.json").is_of(&report.faults[0]));
        }
    }
    let report = of_another_maker(&pack, &source, &|config| remove(config, "transformers_version"));
    assert_eq!(report.verdict, Verdict::Proved, "{report}");
    assert!(report.notes.iter().any(|note| note.contains("transformers_version")), "{report}");
}

#[test]
fn a_null_that_means_something_is_not_dropped() {
    let mut parts = synthetic::source(7);
    parts.edit_config(|config| {
        config["text_config"]["num_experts"] = Value::Null;
        config["text_config"]["unheard_of"] = Value::Null;
    });
    let source = parts.source();
    let pack = packer::emb4(&parts.tensors, &parts.files, ScaleDtype::BF16);
    let report = of_another_maker(&pack, &source, &|config| remove(config, "num_experts"));
    assert_eq!(report.verdict, Verdict::Proved, "{report}");
    let report = of_another_maker(&pack, &source, &|config| remove(config, "unheard_of"));
    assert!(in_file(FaultClass::Config, "config.json").is_of(&report.faults[0]), "{report}");
}

/// transformers writes `per_layer_config` in place of `global_head_dim` when it saves.
#[test]
fn head_sizes_are_spelled_one_way_or_the_other() {
    let sizes = json!({"1": {"head_dim": 64}, "3": {"head_dim": 64}});
    let anew = |config: &mut Value| {
        remove(config, "global_head_dim");
        config["per_layer_config"] = sizes.clone();
    };
    is_a_variant("head sizes", &anew);
    is_a_variant("head sizes", &|config| config["per_layer_config"] = sizes.clone());
    let edits: [Edit; 7] = [
        &|config| config["global_head_dim"] = 32.into(),
        &|config| config["global_head_dim"] = Value::Null,
        &|config| config["num_global_key_value_heads"] = 1.into(),
        &|config| config["per_layer_config"]["3"]["head_dim"] = 32.into(),
        &|config| remove(&mut config["per_layer_config"], "3"),
        &|config| config["per_layer_config"] = Value::Null,
        &|config| config["per_layer_config"]["0"] = json!({"sliding_window": 8}),
    ];
    for edit in edits {
        refused(FaultClass::Config, &|config| {
            anew(config);
            edit(config);
        });
    }
    refused(FaultClass::Config, &|config| config["num_global_key_value_heads"] = 1.into());
}

/// The other way round, from a source that transformers saved.
#[test]
fn head_sizes_of_a_source_that_transformers_saved() {
    let mut parts = synthetic::source(7);
    parts.edit_config(|config| {
        let text = &mut config["text_config"];
        text.as_object_mut().unwrap().shift_remove("global_head_dim");
        text["per_layer_config"] = json!({"1": {"head_dim": 64}, "3": {"head_dim": 64}});
    });
    let source = parts.source();
    let pack = packer::emb4(&parts.tensors, &parts.files, ScaleDtype::BF16);
    assert_eq!(report_of(&pack, &source).verdict, Verdict::Proved);
    let faults = |edit: Edit| of_another_maker(&pack, &source, edit).faults.len();
    assert_eq!(faults(&|config| config["global_head_dim"] = 64.into()), 1);
    assert_eq!(faults(&|config| config["num_global_key_value_heads"] = 1.into()), 1);
    let google = |config: &mut Value| {
        remove(config, "per_layer_config");
        config["global_head_dim"] = 64.into();
    };
    assert_eq!(faults(&google), 0);
    assert_eq!(faults(&|config| remove(config, "per_layer_config")), 1);
}

#[test]
fn the_tie_flag_must_stand_there() {
    refused(FaultClass::Tie, &|config| remove(config, "tie_word_embeddings"));
    for value in [Value::Null, json!(false), json!(1), json!("true")] {
        refused(FaultClass::Tie, &|config| config["tie_word_embeddings"] = value.clone());
    }
}

#[test]
fn white_space_is_no_hiding_place() {
    caught(in_file(FaultClass::Config, "config.json"), |pack| {
        pack.files.get_mut("config.json").unwrap().extend_from_slice(&[b' '; 5000]);
    });
    let (pack, source) = good();
    for pack in &disguises(&pack, &source)[1..] {
        let mut pack = pack.clone();
        pack.files.remove("w4pack/manifest.json");
        let config: Value = serde_json::from_slice(&pack.files["config.json"]).unwrap();
        let pretty = serde_json::to_vec_pretty(&config).unwrap();
        pack.files.insert("config.json".into(), pretty);
        assert_eq!(report_of(&pack, &source).verdict, Verdict::Proved);
    }
}
