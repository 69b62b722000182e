//! `quantization_config`: w4pack's own to the letter, or a variant that every reader takes.

use super::{bare, caught, good, in_file, in_weights};
use crate::good_packs::report_of;
use crate::support::checkpoint::Parts;
use crate::support::{packer, synthetic};
use serde_json::{Value, json};
use w4pack_format::manifest::{MANIFEST_FILE, Manifest};
use w4pack_verify::report::{FaultClass, Verdict};
use w4pack_verify::{Options, verify};

type Edit<'a> = &'a dyn Fn(&mut Value);

fn refused(edit: Edit) {
    let place = in_file(FaultClass::Config, "config.json");
    let edit = |config: &mut Value| edit(&mut config["quantization_config"]);
    let report = caught(place, |pack| pack.edit_config(edit));
    assert_eq!(report.verdict, Verdict::Disproved);
    let (pack, source) = good();
    let mut pack = bare(&pack);
    pack.edit_config(edit);
    let report = report_of(&pack, &source);
    let all = report.faults.iter().all(|fault| place.is_of(fault));
    assert!(!report.faults.is_empty() && all, "{report}");
}

fn is_a_variant(key: &str, edit: Edit) {
    let edit = |config: &mut Value| edit(&mut config["quantization_config"]);
    caught(in_file(FaultClass::Config, "config.json"), |pack| pack.edit_config(edit));
    let (pack, source) = good();
    let mut pack = bare(&pack);
    pack.edit_config(edit);
    let report = report_of(&pack, &source);
    assert_eq!(report.verdict, Verdict::Proved, "{report}");
    let named = |note: &String| note.contains(&format!("quantization_config.{key}"));
    assert!(report.notes.iter().any(named), "{key}: {report}");
}

fn remove(object: &mut Value, key: &str) {
    object.as_object_mut().unwrap().shift_remove(key).unwrap();
}

fn group(scheme: &mut Value) -> &mut Value {
    &mut scheme["config_groups"]["group_0"]
}

#[test]
fn what_other_readers_refuse_or_misread_is_a_fault() {
    let edits: [Edit; 17] = [
        &|scheme| remove(scheme, "quantization_status"),
        &|scheme| scheme["dequantize"] = false.into(),
        &|scheme| scheme["run_compressed"] = true.into(),
        &|scheme| scheme["run_compressed"] = "evil".into(),
        &|scheme| scheme["use_optimized_inference"] = 7.into(),
        &|scheme| scheme["kv_cache_scheme"] = 5.into(),
        &|scheme| scheme["kv_cache_scheme"] = json!({}),
        &|scheme| scheme["sparsity_config"] = 3.into(),
        &|scheme| scheme["transform_config"] = 3.into(),
        &|scheme| scheme["global_compression_ratio"] = json!({}),
        &|scheme| scheme["moe_sparsity_config"] = json!({}),
        &|scheme| scheme["input_activations"] = Value::Null,
        &|scheme| group(scheme)["input_activations"] = 1.into(),
        &|scheme| group(scheme)["output_activations"] = json!({}),
        &|scheme| group(scheme)["weights"]["dynamic"] = Value::Null,
        &|scheme| group(scheme)["weights"]["observer"] = 1.into(),
        &|scheme| group(scheme)["weights"]["observer_kwargs"] = "evil".into(),
    ];
    for edit in edits {
        refused(edit);
    }
    for version in [json!(["0.20.1"]), json!({"a": 1}), json!(""), json!("evil"), Value::Null] {
        refused(&|scheme| scheme["version"] = version.clone());
    }
    for name in ["W4A16", "", "group_", "group_x"] {
        refused(&|scheme| {
            let group = group(scheme).clone();
            scheme["config_groups"] = json!({ name: group });
        });
    }
}

#[test]
fn entries_that_readers_may_take_in_different_ways() {
    for table in [
        "re:.*embed_tokens",
        "re:(?U).*embed_tokens$",
        "re:.*embed_tokens|zz$",
        "re:.*embed_.okens",
        "re:.*embed_token(s)$",
        "re:.*+embed_tokens$",
        "re:.*embed_tokens{1}$",
        "RE:.*embed_tokens$",
        "",
        "re:",
        "embed_tokens",
        "model.embed_tokens.weight",
    ] {
        refused(&|scheme| group(scheme)["targets"][1] = table.into());
        refused(&|scheme| scheme["ignore"].as_array_mut().unwrap().push(table.into()));
    }
    refused(&|scheme| {
        group(scheme)["targets"].as_array_mut().unwrap().push("re:.*lm_head$".into());
    });
    refused(&|scheme| group(scheme)["targets"].as_array_mut().unwrap().push("lm_head".into()));
    refused(&|scheme| scheme["ignore"] = json!(["re:.*"]));
    refused(&|scheme| scheme["ignore"] = json!([r"re:.*layers\.0\.mlp\.up_proj$"]));
}

#[test]
fn variants_of_other_writers_are_noted_and_w4pack_has_none() {
    is_a_variant("config_groups", &|scheme| {
        group(scheme)["targets"] = json!(["Linear", "Embedding"]);
    });
    is_a_variant("config_groups", &|scheme| {
        group(scheme)["targets"][1] = "model.embed_tokens".into()
    });
    is_a_variant("config_groups", &|scheme| remove(group(scheme), "format"));
    is_a_variant("config_groups", &|scheme| remove(group(scheme), "input_activations"));
    is_a_variant("config_groups", &|scheme| {
        group(scheme)["weights"]["observer"] = "minmax".into();
        group(scheme)["weights"]["observer_kwargs"] = json!({});
        group(scheme)["weights"]["actorder"] = Value::Null;
    });
    is_a_variant("ignore", &|scheme| scheme["ignore"] = json!([]));
    is_a_variant("ignore", &|scheme| scheme["ignore"] = json!(["lm_head"]));
    is_a_variant("version", &|scheme| scheme["version"] = "0.17.0".into());
    is_a_variant("version", &|scheme| remove(scheme, "version"));
    is_a_variant("moe_sparsity_config", &|scheme| scheme["moe_sparsity_config"] = Value::Null);
    is_a_variant("sparsity_config", &|scheme| remove(scheme, "sparsity_config"));
    is_a_variant("global_compression_ratio", &|scheme| {
        scheme["global_compression_ratio"] = 1.5.into();
    });
}

/// Without the key transformers cannot load a packed table. The official writer leaves it out all
/// the same, so that it is a fault only where everything else is w4pack's.
#[test]
fn a_missing_dequantize_is_a_fault_of_ours_and_a_note_of_others() {
    refused(&|scheme| remove(scheme, "dequantize"));
    is_a_variant("dequantize", &|scheme| {
        remove(scheme, "dequantize");
        group(scheme)["targets"] = json!(["Linear", "Embedding"]);
        scheme["ignore"] = json!([]);
        scheme["moe_sparsity_config"] = Value::Null;
    });
}

/// A kept matrix is named in `ignore`, and the manifest must admit it.
#[test]
fn matrices_in_bf16_need_an_entry_in_ignore() {
    let (mut pack, on_grid) = good();
    pack.files.remove(MANIFEST_FILE);
    let mut parts = synthetic::source(7);
    // The third value of row 5, far from its neighbours.
    let tensor = "model.language_model.layers.1.mlp.up_proj.weight";
    parts.bytes_mut(tensor)[2 * (5 * 64 + 2) + 1] = 0x70;
    let source = parts.source();
    let mut needless = pack.clone();
    packer::keep(&mut pack, "model.layers.1.mlp.up_proj", &parts.tensors);
    let report = report_of(&pack, &source);
    assert!(in_file(FaultClass::Config, "config.json").is_of(&report.faults[0]), "{report}");
    pack.edit_config(|config| {
        let ignore = config["quantization_config"]["ignore"].as_array_mut().unwrap();
        ignore.push(r"re:.*layers\.1\.mlp\.up_proj$".into());
    });
    let report = report_of(&pack, &source);
    assert_eq!(report.verdict, Verdict::Proved, "{report}");
    assert!(report.notes.iter().any(|note| note.contains("vLLM")), "{report}");
    assert!(report.notes.iter().any(|note| note.contains("is off the grid")), "{report}");

    // A matrix on the grid has no business in bf16; another maker's has, and it is noted.
    packer::keep(&mut needless, "model.layers.1.mlp.up_proj", &synthetic::source(7).tensors);
    needless.files.insert("config.json".into(), pack.files["config.json"].clone());
    let report = report_of(&needless, &on_grid);
    let kept = in_weights(FaultClass::OffGrid, "model.layers.1.mlp.up_proj.weight");
    assert!(report.faults.len() == 1 && kept.is_of(&report.faults[0]), "{report}");
    let report = report_of(&bare(&needless), &on_grid);
    assert_eq!(report.verdict, Verdict::Proved, "{report}");
    assert!(report.notes.iter().any(|note| note.contains("on the grid")), "{report}");

    // The manifest must admit it.
    let fault = in_file(FaultClass::Manifest, MANIFEST_FILE);
    let honest = pack.clone().with_manifest(&source, "bf16");
    for (allow, faults) in [(false, 1), (true, 0)] {
        let mut manifest = Manifest::parse(&honest.files[MANIFEST_FILE]).unwrap();
        manifest.options.allow_off_grid = allow;
        pack.files.insert(MANIFEST_FILE.into(), manifest.to_bytes());
        let report = report_of(&pack, &source);
        assert_eq!(report.faults.len(), faults, "{report}");
        assert!(report.faults.iter().all(|found| fault.is_of(found)), "{report}");
    }
}

/// Fused linears are packed together or not at all; without a source nobody knows better.
#[test]
fn fused_linears_are_packed_together_or_not_at_all() {
    let source = synthetic::source(7);
    for module in ["self_attn.q_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj"] {
        let (pack, _) = good();
        let mut pack = bare(&pack);
        let alone = |pack: &Parts| verify(pack.source(), None, &Options::default(), &());
        assert_eq!(alone(&pack).verdict, Verdict::SelfConsistent);
        let mut whole = good().0;
        packer::keep(&mut whole, &format!("model.layers.0.{module}"), &source.tensors);
        pack.tensors = whole.tensors;
        pack.edit_config(|config| {
            let ignore = config["quantization_config"]["ignore"].as_array_mut().unwrap();
            ignore.push(format!("re:.*layers.0.{module}$").into());
        });
        let report = alone(&pack);
        assert_eq!((report.faults.len(), report.exit_code()), (1, 1), "{report}");
        assert!(in_file(FaultClass::Config, "config.json").is_of(&report.faults[0]), "{report}");
        assert!(report.faults[0].detail.contains(module), "{report}");
    }
    // Layers that read other layers' keys have no k and v; o_proj and down_proj stand alone.
    for module in ["layers.2.self_attn.q_proj", "layers.0.mlp.down_proj"] {
        let mut pack = good().0;
        packer::keep(&mut pack, &format!("model.{module}"), &source.tensors);
        let mut pack = bare(&pack);
        pack.edit_config(|config| {
            let ignore = config["quantization_config"]["ignore"].as_array_mut().unwrap();
            ignore.push(format!("re:.*{module}$").into());
        });
        let report = verify(pack.source(), None, &Options::default(), &());
        assert_eq!(report.verdict, Verdict::SelfConsistent, "{report}");
    }
}
