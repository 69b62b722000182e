//! Undamaged packs are proved, with every byte accounted for.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::support::checkpoint::Parts;
use crate::support::memory::{MemorySource, folder};
use crate::support::{conformance, packer, synthetic, tensors};
use serde_json::Value;
use w4pack_format::scale::ScaleDtype;
use w4pack_format::source::Source;
use w4pack_verify::report::{Report, Verdict};
use w4pack_verify::{Options, verify};

/// Verifies with one thread less than the tests next door would like.
pub fn report_of(result: &Parts, source: &Arc<dyn Source>) -> Report {
    verify(result.source(), Some(source.clone()), &Options::default(), &())
}

fn assert_proved(report: &Report) {
    assert_eq!(report.faults, [], "{report}");
    assert_eq!(report.verdict, Verdict::Proved);
    assert_eq!((report.unaccounted, report.exit_code()), (0, 0));
    assert_eq!(report.whole.int4_codes_disagreeing, 0);
    assert_eq!(report.groups.steps_canonical, report.groups.all);
    let sum = report.accounted.source.values().chain(report.accounted.result.values());
    assert_eq!(sum.sum::<u64>(), report.bytes, "every byte is in exactly one class");
}

#[test]
fn a_synthetic_pack_is_proved_with_every_scale_dtype() {
    let source = synthetic::source(1);
    let shared = source.source();
    for dtype in ScaleDtype::ALL {
        let pack = packer::emb4(&source.tensors, &source.files, dtype)
            .with_manifest(&shared, dtype.name());
        let report = report_of(&pack, &shared);
        assert_proved(&report);
        assert_eq!(report.left_out.len(), 3, "two tower tensors and README.md");
        assert!(
            report.groups.many_peaks > 0 && report.groups.zero > 0 && report.groups.sign_free > 0
        );
        assert_eq!(report.step_rule, "canonical");
        let differing = report.whole.elements_differing;
        assert_eq!(differing == 0, dtype == ScaleDtype::F32, "{dtype}: {differing} differ");
    }
}

#[test]
fn the_answer_does_not_depend_on_threads() {
    let source = synthetic::source(2);
    let mut pack = packer::emb4(&source.tensors, &source.files, ScaleDtype::F16);
    pack.bytes_mut("model.layers.1.mlp.up_proj.weight_packed").reverse();
    let answer = |threads| {
        let options = Options { threads, ..Options::default() };
        let report = verify(pack.source(), Some(source.source()), &options, &());
        serde_json::to_value(Report { seconds: 0.0, ..report }).unwrap()
    };
    assert_eq!(answer(1), answer(5));
}

#[test]
fn the_reference_sets_are_proved_in_both_layouts() {
    for set in ["tiny-a", "tiny-c"] {
        let Some(set) = conformance(set) else { return };
        for layout in ["google", "text"] {
            let files = folder(&set.join(layout));
            let source = MemorySource::shared(files.clone());
            let weights = tensors::read_folder(&set.join(layout));
            for dtype in ScaleDtype::ALL {
                let pack =
                    packer::emb4(&weights, &files, dtype).with_manifest(&source, dtype.name());
                let report = report_of(&pack, &source);
                assert_proved(&report);
                assert!(dtype != ScaleDtype::F32 || report.whole.elements_differing == 0);
            }
        }
    }
}

#[test]
fn what_the_official_library_wrote_is_proved_in_all_four_layouts() {
    let Some(set) = conformance("ct-official") else { return };
    let source = MemorySource::shared(folder(&set.join("dense")));
    for (layout, elements, head) in [
        ("linear", 233_472, None),
        ("linear-ple4", 266_240, None),
        ("emb4-tied", 282_624, None),
        ("emb4-untied", 282_624, Some(true)),
    ] {
        let result = MemorySource::shared(folder(&set.join(layout)));
        let report = verify(result, Some(source.clone()), &Options::default(), &());
        assert_proved(&report);
        assert_eq!(report.whole.elements, elements, "{layout}");
        assert_eq!(report.whole.elements_differing, 0, "{layout}");
        assert_eq!(report.tied_copies_identical, head, "{layout}");
        assert!(report.notes.iter().any(|note| note.contains("quantization_config")), "{layout}");
    }
}

#[test]
fn without_a_source_nothing_is_proved() {
    let source = synthetic::source(3);
    let pack = packer::emb4(&source.tensors, &source.files, ScaleDtype::F16)
        .with_manifest(&source.source(), "f16");
    let report = verify(pack.source(), None, &Options::default(), &());
    assert_eq!(report.faults, [], "{report}");
    assert_eq!((report.verdict, report.exit_code()), (Verdict::SelfConsistent, 2));
    assert!(report.to_string().ends_with("self-consistent, not proved: no source was given"));

    let mut damaged = pack.clone();
    damaged.bytes_mut("model.norm.weight")[0] ^= 1;
    let report = verify(damaged.source(), None, &Options::default(), &());
    assert_eq!((report.verdict, report.exit_code()), (Verdict::Disproved, 1));
}

#[test]
fn field_case_01_shared_layers_have_no_keys_and_values_and_spare_ones_are_left_out() {
    let mut source = synthetic::source(4);
    let pack = packer::emb4(&source.tensors, &source.files, ScaleDtype::F16);
    for name in ["k_proj.weight", "v_proj.weight", "k_norm.weight"] {
        let owner = format!("model.language_model.layers.0.self_attn.{name}");
        let tensor = source.tensors[&owner].clone();
        source.tensors.insert(owner.replace("layers.0.", "layers.2."), tensor);
    }
    let report = report_of(&pack, &source.source());
    assert_proved(&report);
    let spare = report.left_out.iter().filter_map(|item| item.tensor.as_deref());
    assert_eq!(spare.filter(|name| name.contains("layers.2.self_attn")).count(), 3);

    let owned = "model.language_model.layers.1.self_attn.k_proj.weight";
    source.tensors.remove(owned);
    let report = report_of(&pack, &source.source());
    assert_eq!(report.exit_code(), 1);
    assert!(report.faults.iter().any(|fault| fault.tensor.as_deref() == Some(owned)));
}

/// The object of `--json`, field by field.
#[test]
fn the_json_has_the_published_shape() {
    let source = synthetic::source(5);
    let pack = packer::emb4(&source.tensors, &source.files, ScaleDtype::BF16);
    let report = report_of(&pack, &source.source());
    let json: BTreeMap<String, Value> =
        serde_json::from_str(&serde_json::to_string(&report).unwrap()).unwrap();
    let four = [
        "elements",
        "elements_differing",
        "int4_codes_disagreeing",
        "worst_diff_in_units_of_group_step",
    ];
    for key in four {
        assert!(json[key].is_number(), "{key}");
        for table in ["embed_tokens", "embed_tokens_per_layer"] {
            assert!(json["tables"][table][key].is_number(), "{table}.{key}");
        }
        assert!(json["whole"][key].is_number(), "whole.{key}");
    }
    let whole = json["whole"]["elements"].as_u64().unwrap();
    let tables = &json["tables"];
    let parts = [
        &json["elements"],
        &tables["embed_tokens"]["elements"],
        &tables["embed_tokens_per_layer"]["elements"],
    ];
    assert_eq!(parts.iter().map(|part| part.as_u64().unwrap()).sum::<u64>(), whole);
    for list in ["copied", "left_out"] {
        let items = json[list].as_array().unwrap();
        assert!(!items.is_empty());
        for item in items {
            assert!(item["sha256"].as_str().unwrap().len() == 64 && item["bytes"].is_u64());
            assert!(item["file"].is_string() && item.get("tensor").is_some());
        }
    }
    assert_eq!(json["verdict"], "proved");
    assert_eq!(json["unaccounted"], 0);
    assert_eq!(json["faults"], serde_json::json!([]));
    assert!(json["tied_copies_identical"].is_null());
    assert!(json["bytes"].is_u64() && json["seconds"].is_f64());
}
