//! Faults that people reported against other converters, each by its number in the list that the
//! project keeps.

use std::fs;
use std::path::Path;

use half::bf16;
use serde_json::json;
use w4pack_convert::{ConvertError, Reason, Report};
use w4pack_format::config::Config;
use w4pack_format::dtype::Dtype;
use w4pack_format::names::text_tensors;
use w4pack_format::scale::ScaleDtype;

use crate::end_to_end::assert_restored;
use crate::support::restore::packed;
use crate::support::small::{MATRIX, Small, Tensor, group};
use crate::support::{names_in, open, options, run};

const MODULE: &str = "model.layers.0.mlp.up_proj";

struct Case {
    folder: tempfile::TempDir,
}

impl Case {
    fn new(small: &Small, shards: usize) -> Case {
        let folder = tempfile::tempdir().unwrap();
        small.write(&folder.path().join("source"), shards);
        Case { folder }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    fn convert(&self) -> Result<Report, ConvertError> {
        run(&self.path("source"), &self.path("out"), &options(ScaleDtype::F16))
    }

    /// Refused with these words, and nothing left behind.
    fn refused(&self, words: &[&str]) {
        let text = self.convert().unwrap_err().to_string();
        for words in words {
            assert!(text.contains(words), "`{words}` is not in: {text}");
        }
        assert_eq!(names_in(self.folder.path()), ["source"]);
    }
}

#[test]
fn field_case_01_layers_that_share_keys_and_values() {
    let small = Small::google(1);
    let case = Case::new(&small, 1);
    let report = case.convert().unwrap();
    let config = Config::load(&**open(&case.path("source")).source()).unwrap();
    let demanded = text_tensors(&config.text).len();
    assert_eq!(report.packed.len() + report.copied_tensors.len(), demanded);
    assert!(report.left_out.iter().all(|tensor| tensor.reason == Reason::Tower));

    // Releases before the QAT ones carry keys and values that nothing reads.
    let mut all_kv = small.clone();
    for part in ["k_proj", "v_proj"] {
        let spare = all_kv.tensor(&format!("layers.1.self_attn.{part}.weight")).clone();
        let name = format!("model.language_model.layers.3.self_attn.{part}.weight");
        all_kv.tensors.insert(name, spare);
    }
    let with_spares = Case::new(&all_kv, 1);
    let report = with_spares.convert().unwrap();
    let unused = report.left_out.iter().filter(|tensor| tensor.reason == Reason::UnusedSharedKv);
    assert_eq!(unused.count(), 2);
    let weights = |case: &Case| fs::read(case.path("out/model.safetensors")).unwrap();
    assert!(weights(&case) == weights(&with_spares));

    let mut missing = small;
    missing.tensors.remove("model.language_model.layers.1.self_attn.k_proj.weight").unwrap();
    Case::new(&missing, 1).refused(&["no tensor", "layers.1.self_attn.k_proj.weight", "[64, 64]"]);
}

#[test]
fn field_case_02_groups_whose_peak_is_not_minus_eight() {
    for step in [2.0_f64.powi(-14), 0.0137, 0.5] {
        let step = bf16::from_f64(step).to_f64();
        let shapes: [[i8; 32]; 5] = [
            std::array::from_fn(|i| (i % 9) as i8 - 3),
            std::array::from_fn(|i| -1 - (i % 8) as i8),
            std::array::from_fn(|i| i8::from(i == 9)),
            std::array::from_fn(|i| -i8::from(i == 20)),
            [5; 32],
        ];
        let mut small = Small::text_only(2);
        for (row, codes) in shapes.iter().enumerate() {
            small.set_group(row, 0, &group(*codes, step));
        }
        let case = Case::new(&small, 1);
        case.convert().unwrap();
        assert_restored(&case.path("source"), &case.path("out"));
        let packed = packed(&open(&case.path("out")), MODULE);
        assert_eq!(packed.shape, [64, 64]);
        for (row, codes) in shapes.iter().enumerate() {
            // An all-equal group has no grid of its own; the convention makes it one level.
            let expected = if row == 4 { [1; 32] } else { *codes };
            assert_eq!(packed.codes[2 * row], expected, "row {row}, step {step}");
            assert!(packed.steps[2 * row] > 0.0);
        }
    }
}

#[test]
fn field_case_03_zero_groups_and_subnormals() {
    let mut small = Small::text_only(3);
    small.set_group(0, 0, &[0; 32]);
    let case = Case::new(&small, 1);
    let report = case.convert().unwrap();
    let found = packed(&open(&case.path("out")), MODULE);
    assert_eq!((found.codes[0], found.steps[0]), ([0; 32], 1.0));
    assert_eq!((found.scale_dtype, report.total.zero), (ScaleDtype::F16, 1));

    small.set_group(5, 1, &std::array::from_fn(|i| [1, 3, 0x8002, 0][i % 4]));
    let case = Case::new(&small, 1);
    let report = case.convert().unwrap();
    assert_restored(&case.path("source"), &case.path("out"));
    let found = packed(&open(&case.path("out")), MODULE);
    assert_eq!(found.scale_dtype, ScaleDtype::F32);
    assert!(found.steps.iter().all(|step| step.is_finite() && *step != 0.0));
    let fallen: Vec<_> = report.packed.iter().filter(|tensor| tensor.fell_back.is_some()).collect();
    assert_eq!(fallen.len(), 1);
    assert_eq!((fallen[0].module.as_str(), fallen[0].tally.values_differing), (MODULE, 0));
}

#[test]
fn field_case_04_nan_and_infinity_in_a_weight() {
    for (bits, name) in [(0x7fc0, "NaN"), (0x7f80, "inf"), (0xff80, "-inf")] {
        let mut small = Small::google(4);
        let mut values = group(std::array::from_fn(|i| (i % 8) as i8), 0.01);
        values[30] = bits;
        small.set_group(40, 1, &values);
        let case = Case::new(&small, 1);
        case.refused(&[MATRIX, "row 40, group 1", &format!("element 30 is {name}")]);
        let allowed = w4pack_convert::Options { allow_off_grid: true, ..options(ScaleDtype::F16) };
        assert!(run(&case.path("source"), &case.path("out"), &allowed).is_err());
    }
}

#[test]
fn field_case_05_no_stale_index_or_shard() {
    let case = Case::new(&Small::google(5), 3);
    case.convert().unwrap();
    // An older run that left shards and an index of its own.
    fs::copy(
        case.path("source/model-00001-of-00003.safetensors"),
        case.path("out/model-00001-of-00003.safetensors"),
    )
    .unwrap();
    fs::write(case.path("out/model.safetensors.index.json"), "{}").unwrap();
    let report = case.convert().unwrap();
    let weights: Vec<String> =
        names_in(&case.path("out")).into_iter().filter(|name| name.starts_with("model")).collect();
    assert_eq!(weights, ["model.safetensors"]);
    assert!(report.not_copied.iter().any(|file| file.path.ends_with("index.json")));
    assert_restored(&case.path("source"), &case.path("out"));
}

#[test]
fn field_case_06_tied_tables_are_stored_once() {
    let mut small = Small::google(6);
    let head = small.tensor("embed_tokens.weight").clone();
    small.tensors.insert("lm_head.weight".into(), head);
    let case = Case::new(&small, 1);
    let report = case.convert().unwrap();
    let output = open(&case.path("out"));
    assert!(output.names().all(|name| !name.starts_with("lm_head")));
    let copies = report.left_out.iter().filter(|tensor| tensor.reason == Reason::TiedCopy);
    assert_eq!(copies.map(|tensor| tensor.tensor.as_str()).collect::<Vec<_>>(), ["lm_head.weight"]);
    assert!(Config::load(&**output.source()).unwrap().tie_word_embeddings);

    small.tensors.get_mut("lm_head.weight").unwrap().bytes[300] ^= 1;
    Case::new(&small, 1).refused(&["lm_head.weight", "differs", "row 2"]);
}

#[test]
fn field_case_07_templates_and_settings_in_files_of_their_own() {
    let mut small = Small::google(7);
    small.files.insert("tokenizer_config.json".into(), b"{}".to_vec());
    let case = Case::new(&small, 1);
    let report = case.convert().unwrap();
    assert!(report.warnings.iter().any(|warning| warning.contains("no chat template")));

    let names = ["chat_template.jinja", "processor_config.json", "preprocessor_config.json"];
    for name in names {
        small.files.insert(name.into(), format!("{{# {name} \u{e9} #}}\r\n").into_bytes());
    }
    let case = Case::new(&small, 1);
    let report = case.convert().unwrap();
    assert!(!report.warnings.iter().any(|warning| warning.contains("template")));
    for (name, bytes) in &small.files {
        assert!(&fs::read(case.path("out").join(name)).unwrap() == bytes, "{name}");
        assert!(report.copied_files.contains(name));
    }

    small.files.clear();
    let report = Case::new(&small, 1).convert().unwrap();
    assert!(report.warnings.iter().any(|warning| warning.contains("no tokenizer.json")));
}

#[test]
fn field_case_11_a_shard_that_is_too_short() {
    for cut in [1, 4096] {
        let case = Case::new(&Small::google(11), 2);
        let last = case.path("source/model-00002-of-00002.safetensors");
        let bytes = fs::read(&last).unwrap();
        fs::write(&last, &bytes[..bytes.len() - cut]).unwrap();
        case.refused(&["model-00002-of-00002.safetensors", "truncated"]);
    }
}

#[test]
fn field_case_12_an_index_that_leads_outside() {
    let hostile = ["../../x.safetensors", "/etc/passwd", "..\\x.safetensors"];
    for path in hostile {
        let case = Case::new(&Small::google(12), 2);
        let index = case.path("source/model.safetensors.index.json");
        let mut value: serde_json::Value =
            serde_json::from_slice(&fs::read(&index).unwrap()).unwrap();
        value["weight_map"]["model.language_model.norm.weight"] = json!(path);
        fs::write(&index, value.to_string()).unwrap();
        case.refused(&["model.language_model.norm.weight", path]);
    }
    let case = Case::new(&Small::google(12), 2);
    let shard = case.path("source/model-00002-of-00002.safetensors");
    let outside = tempfile::tempdir().unwrap();
    fs::rename(&shard, outside.path().join("x.safetensors")).unwrap();
    std::os::unix::fs::symlink(outside.path().join("x.safetensors"), &shard).unwrap();
    case.refused(&["model-00002-of-00002.safetensors", "outside"]);
}

#[test]
fn sources_that_do_not_fit_their_config_are_refused_by_name() {
    let norm = "model.language_model.norm.weight";
    type Tampering<'a> = (&'a dyn Fn(&mut Small), &'a [&'a str]);
    let tamper: [Tampering<'_>; 7] = [
        (&|small| small.tensors.get_mut(norm).unwrap().dtype = Dtype::F16, &[norm, "F16"]),
        (&|small| small.tensors.get_mut(norm).unwrap().shape = vec![1, 64], &[norm, "[1, 64]"]),
        (&|small| unknown(small, "model.language_model.layers.0.extra.weight"), &["extra.weight"]),
        (&|small| unknown(small, "score.weight"), &["score.weight", "account"]),
        (&|small| small.config["quantization_config"] = packed_already(), &["no tensor is packed"]),
        (
            &|small| small.config["text_config"]["enable_moe_block"] = json!(true),
            &["num_experts", "missing"],
        ),
        (
            &|small| small.config["text_config"]["attention_k_eq_v"] = json!(true),
            &["v_proj.weight", "account"],
        ),
    ];
    for (tamper, words) in tamper {
        let mut small = Small::google(13);
        tamper(&mut small);
        Case::new(&small, 1).refused(words);
    }
}

fn unknown(small: &mut Small, name: &str) {
    let tensor = Tensor { dtype: Dtype::BF16, shape: vec![32], bytes: vec![0; 64] };
    small.tensors.insert(name.into(), tensor);
}

fn packed_already() -> serde_json::Value {
    json!({
        "quant_method": "compressed-tensors", "format": "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
            "num_bits": 4, "type": "int", "symmetric": true, "strategy": "group", "group_size": 32
        }}}
    })
}

/// The plan is what the conversion does, and a person can read it.
#[test]
fn the_plan_counts_everything_before_a_weight_is_read() {
    let case = Case::new(&Small::google(14), 2);
    let source = open(&case.path("source"));
    let plan = w4pack_convert::plan(&source, &options(ScaleDtype::F16)).unwrap();
    let text = plan.to_string();
    for line in ["pack  linears: ", "copy  tokenizer.json", "vision or audio side: 3 tensors"] {
        assert!(text.contains(line), "`{line}` is not in:\n{text}");
    }
    assert_eq!(plan.tensors().count(), source.names().count());
    assert!(!Path::new(&case.path("out")).exists());
}
