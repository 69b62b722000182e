//! Whole conversions of a small checkpoint.

use std::fs;
use std::path::Path;

use crate::support::restore::{Sidecar, packed, restore};
use crate::support::small::{MATRIX, Small, group};
use crate::support::{bf16_bits, names_in, open, options, run};
use w4pack_convert::{Reason, Report};
use w4pack_format::config::Config;
use w4pack_format::digest;
use w4pack_format::exact::Part;
use w4pack_format::manifest::{Fate, MANIFEST_FILE, Manifest};
use w4pack_format::names::{NameLayout, text_tensors};
use w4pack_format::quantization::ModuleClass;
use w4pack_format::scale::ScaleDtype;

const MODULE: &str = "model.layers.0.mlp.up_proj";

/// Every bf16 value of the source's text model comes back from the output, bit for bit.
pub fn assert_restored(source: &Path, out: &Path) {
    let (source, out) = (open(source), open(out));
    let config = Config::load(&**source.source()).unwrap();
    let names = Config::load(&**out.source()).unwrap().layout;
    for tensor in text_tensors(&config.text) {
        let bytes = source.read(&config.layout.full_name(&tensor.name)).unwrap();
        let name = names.full_name(&tensor.name);
        if out.tensor(&name).is_some() {
            assert!(out.read(&name).unwrap() == bytes, "{name}");
        } else {
            let restored = restore(&out, &names.full_name(tensor.module()));
            assert!(restored.concat() == bf16_bits(&bytes), "{name}");
        }
    }
}

fn convert_small(small: &Small, folder: &Path, scale_dtype: ScaleDtype) -> Report {
    small.write(&folder.join("source"), 1);
    run(&folder.join("source"), &folder.join("out"), &options(scale_dtype)).unwrap()
}

#[test]
fn every_bf16_value_comes_back_from_codes_steps_and_sidecar() {
    for scale_dtype in ScaleDtype::ALL {
        for small in [Small::google(1), Small::text_only(2)] {
            let folder = tempfile::tempdir().unwrap();
            let report = convert_small(&small, folder.path(), scale_dtype);
            assert_restored(&folder.path().join("source"), &folder.path().join("out"));
            assert_eq!(report.passes, 1);
            for tensor in &report.packed {
                assert_eq!(tensor.scale_dtype, scale_dtype.name());
            }
            let differing = report.total.values_differing;
            let groups = report.total.groups;
            assert_eq!(report.total.peak_levels.iter().sum::<u64>(), groups);
            assert_eq!(report.total.positive + report.total.negative + report.total.zero, groups);
            assert_eq!(differing == 0, scale_dtype == ScaleDtype::F32, "{differing}");
        }
    }
}

#[test]
fn signs_of_zeros_come_back_under_each_rule() {
    // Under a negative step +8 times the step is the only way to say a positive peak.
    let signed = |step: f64, zero: u16| {
        let mut bits = group(std::array::from_fn(|i| [-8, 0, 3, 0][i % 4]), step);
        bits[1] = zero;
        bits[3] = zero;
        bits
    };
    let all_zeros = |zero: u16, step: f64| {
        let mut bits = group(std::array::from_fn(|i| [-8, 0, 3, 0][i % 4]), step);
        bits.iter_mut().filter(|bits| **bits & 0x7fff == 0).for_each(|bits| *bits = zero);
        bits
    };
    /// The rule to be chosen, and the group with each number.
    type Groups<'a> = (u8, &'a dyn Fn(usize) -> [u16; 32]);
    let rules: [Groups<'_>; 3] = [
        (0, &|number| if number == 70 { signed(0.01, 0x8000) } else { all_zeros(0, 0.01) }),
        (1, &|number| match number {
            33 => signed(-0.01, 0),
            number if number % 2 == 1 => all_zeros(0x8000, -0.01),
            _ => all_zeros(0, 0.01),
        }),
        (2, &|number| {
            let mut bits = all_zeros(0, if number % 3 == 0 { -0.01 } else { 0.01 });
            for (element, bits) in bits.iter_mut().enumerate() {
                *bits |= if *bits == 0 && (number * 7 + element * 5) % 3 == 0 { 0x8000 } else { 0 };
            }
            bits
        }),
    ];
    for (rule, groups) in rules {
        let mut small = Small::text_only(3);
        for number in 0..128 {
            small.set_group(number / 2, number % 2, &groups(number));
        }
        let folder = tempfile::tempdir().unwrap();
        convert_small(&small, folder.path(), ScaleDtype::F16);
        assert_restored(&folder.path().join("source"), &folder.path().join("out"));
        let sidecar = Sidecar::open(&open(&folder.path().join("out")));
        let written = sidecar.tensor(&Part::ZeroRule.tensor_name(MODULE));
        assert_eq!(written.first().copied().unwrap_or(0), rule);
    }
}

#[test]
fn the_same_bytes_from_any_number_of_threads_and_shards() {
    let folder = tempfile::tempdir().unwrap();
    let small = Small::google(4);
    small.write(&folder.path().join("one"), 1);
    small.write(&folder.path().join("three"), 3);
    let mut outputs = Vec::new();
    for (source, threads) in [("one", 1), ("one", 2), ("one", 7), ("three", 2)] {
        let out = folder.path().join(format!("out-{source}-{threads}"));
        let options = w4pack_convert::Options { threads, ..options(ScaleDtype::F16) };
        run(&folder.path().join(source), &out, &options).unwrap();
        let names = names_in(&out);
        let files: Vec<Vec<u8>> = names
            .iter()
            .filter(|name| *name != "w4pack")
            .map(|name| fs::read(out.join(name)).unwrap())
            .chain([fs::read(out.join("w4pack/exact.safetensors")).unwrap()])
            .collect();
        let mut manifest = Manifest::parse(&fs::read(out.join(MANIFEST_FILE)).unwrap()).unwrap();
        manifest.created.clear();
        outputs.push((names, files, manifest));
    }
    assert!(outputs[0] == outputs[1] && outputs[1] == outputs[2]);
    assert!(outputs[0].0 == outputs[3].0 && outputs[0].1 == outputs[3].1);
}

#[test]
fn other_readers_open_the_output() {
    let folder = tempfile::tempdir().unwrap();
    convert_small(&Small::google(5), folder.path(), ScaleDtype::F16);
    for file in ["model.safetensors", "w4pack/exact.safetensors"] {
        let bytes = fs::read(folder.path().join("out").join(file)).unwrap();
        let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let (_, metadata) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
        let entries = metadata.metadata().as_ref().unwrap();
        assert_eq!(entries.get("format").map(String::as_str), Some("pt"));
        if file == "model.safetensors" {
            let shape = tensors.tensor(&format!("{MODULE}.weight_shape")).unwrap();
            assert_eq!(shape.dtype(), safetensors::Dtype::I64);
            let words = tensors.tensor(&format!("{MODULE}.weight_packed")).unwrap();
            assert_eq!((words.dtype(), words.shape()), (safetensors::Dtype::I32, &[64, 8][..]));
            assert_eq!(words.data().as_ptr() as usize % 4, bytes.as_ptr() as usize % 4);
        }
    }
}

#[test]
fn the_config_is_text_only_and_says_what_is_packed() {
    for small in [Small::google(6), Small::text_only(6)] {
        let folder = tempfile::tempdir().unwrap();
        convert_small(&small, folder.path(), ScaleDtype::F16);
        let output = open(&folder.path().join("out"));
        let config = Config::load(&**output.source()).unwrap();
        assert_eq!(config.layout, NameLayout::TextOnly);
        assert_eq!(config.raw["architectures"], serde_json::json!(["Gemma4ForCausalLM"]));
        assert_eq!(config.raw["eos_token_id"], serde_json::json!([1, 106]));
        assert_eq!(config.raw["tie_word_embeddings"], true);
        let quantization = config.quantization.unwrap();
        assert!(quantization.dequantize);
        for (module, class) in [
            ("model.embed_tokens", ModuleClass::Embedding),
            ("model.embed_tokens_per_layer", ModuleClass::Embedding),
            (MODULE, ModuleClass::Linear),
        ] {
            assert!(quantization.covers(module, class), "{module}");
        }
        assert!(!quantization.covers("lm_head", ModuleClass::Linear));
        let before = Config::parse("config.json", small.config.to_string().as_bytes()).unwrap();
        assert_eq!(config.text, before.text);
        let keys: Vec<&String> = config.raw.as_object().unwrap().keys().collect();
        assert_eq!(keys.last().unwrap().as_str(), "quantization_config");
    }
}

#[test]
fn manifest_and_report_account_for_the_whole_source() {
    let folder = tempfile::tempdir().unwrap();
    let mut small = Small::google(7);
    small.files.insert("README.md".into(), b"the source's card".to_vec());
    small.files.insert("training.log".into(), b"?".to_vec());
    let report = convert_small(&small, folder.path(), ScaleDtype::F16);
    let out = folder.path().join("out");
    let manifest = Manifest::parse(&fs::read(out.join(MANIFEST_FILE)).unwrap()).unwrap();

    let source = open(&folder.path().join("source"));
    let names: Vec<&str> = source.source().files().iter().map(|file| file.path.as_str()).collect();
    let recorded: Vec<&str> = manifest.source.files.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(recorded, names);
    for file in manifest.source.files.iter().chain(&manifest.files) {
        let root = if manifest.source.files.contains(file) { "source" } else { "out" };
        let bytes = fs::read(folder.path().join(root).join(&file.path)).unwrap();
        assert_eq!(file.sha256, digest::sha256(&bytes), "{}", file.path);
    }
    for tensor in &manifest.source.tensors {
        let bytes = source.read(&tensor.name).unwrap();
        assert_eq!(tensor.blake3, digest::blake3(&bytes), "{}", tensor.name);
        let sha256 = (tensor.fate != Fate::Packed).then(|| digest::sha256(&bytes));
        assert_eq!(tensor.sha256, sha256, "{}", tensor.name);
    }
    assert_eq!(manifest.source.headers[0].text.as_bytes(), source.shards()[0].header.text);
    let towers = manifest.source.tensors.iter().filter(|tensor| tensor.fate == Fate::LeftOut);
    assert_eq!(towers.count(), 3);
    assert_eq!(report.left_out.len(), 3);
    assert!(report.left_out.iter().all(|tensor| tensor.reason == Reason::Tower));

    let not_copied: Vec<&str> = report.not_copied.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(not_copied, ["README.md", "training.log"]);
    assert!(!names_in(&out).contains(&"README.md".to_string()));
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["packed"].as_array().unwrap().len(), report.packed.len());
}

#[test]
fn a_group_off_the_grid_is_refused_or_keeps_its_tensor_in_bf16() {
    let mut small = Small::google(8);
    let mut bits = group(std::array::from_fn(|i| (i % 16) as i8 - 8), 0.004);
    bits[5] += 40;
    small.set_group(17, 1, &bits);
    let folder = tempfile::tempdir().unwrap();
    let (source, out) = (folder.path().join("source"), folder.path().join("out"));
    small.write(&source, 2);

    let error = run(&source, &out, &options(ScaleDtype::F16)).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("layers.0.mlp.up_proj.weight`"), "{text}");
    assert!(text.contains("model-0000") && text.contains("row 17, group 1"), "{text}");
    assert!(text.contains("element 5") && text.contains("nearest grid"), "{text}");
    assert!(error.hint().unwrap().contains("--allow-off-grid"));
    assert_eq!(names_in(folder.path()), ["source"]);

    let allowed = w4pack_convert::Options { allow_off_grid: true, ..options(ScaleDtype::F16) };
    let report = run(&source, &out, &allowed).unwrap();
    assert_restored(&source, &out);
    assert_eq!(report.off_grid.len(), 1);
    assert_eq!((report.off_grid[0].row, report.off_grid[0].group), (17, 1));
    assert_eq!(report.passes, 2);
    assert!(report.warnings.iter().any(|warning| warning.contains("vLLM refuses")));
    let output = open(&out);
    assert!(output.tensor(&format!("model.{MATRIX}")).is_some());
    assert!(output.tensor(&format!("{MODULE}.weight_packed")).is_none());
    let quantization = Config::load(&**output.source()).unwrap().quantization.unwrap();
    assert!(!quantization.covers(MODULE, ModuleClass::Linear));
    assert!(quantization.covers("model.layers.1.mlp.up_proj", ModuleClass::Linear));
}

#[test]
fn an_off_grid_table_stays_in_bf16_and_serves_as_head() {
    let mut small = Small::text_only(9);
    let table = &mut small.tensor("embed_tokens.weight").bytes;
    for (element, byte) in table[..64].iter_mut().enumerate() {
        *byte = if element % 2 == 1 { 0x3f } else { (element * 37) as u8 };
    }
    let folder = tempfile::tempdir().unwrap();
    let (source, out) = (folder.path().join("source"), folder.path().join("out"));
    small.write(&source, 1);
    let allowed = w4pack_convert::Options { allow_off_grid: true, ..options(ScaleDtype::F16) };
    run(&source, &out, &allowed).unwrap();
    assert_restored(&source, &out);
    let config = Config::load(&**open(&out).source()).unwrap();
    let quantization = config.quantization.unwrap();
    assert!(!quantization.covers("model.embed_tokens", ModuleClass::Embedding));
    assert!(quantization.covers("model.embed_tokens_per_layer", ModuleClass::Embedding));
    assert!(config.tie_word_embeddings);
}

#[test]
fn steps_beyond_f16_give_the_whole_tensor_f32_scales() {
    let mut small = Small::text_only(10);
    small.set_group(3, 0, &group(std::array::from_fn(|i| (i % 16) as i8 - 8), 2.0_f64.powi(-30)));
    let folder = tempfile::tempdir().unwrap();
    let report = convert_small(&small, folder.path(), ScaleDtype::F16);
    assert_restored(&folder.path().join("source"), &folder.path().join("out"));
    assert_eq!(report.passes, 2);
    let fallen: Vec<_> = report.packed.iter().filter(|tensor| tensor.fell_back.is_some()).collect();
    assert_eq!(fallen.len(), 1);
    assert_eq!((fallen[0].module.as_str(), fallen[0].scale_dtype), (MODULE, "f32"));
    let reason = fallen[0].fell_back.as_ref().unwrap();
    assert_eq!((reason.row, reason.group, reason.narrow_step), (3, 0, 2.0_f32.powi(-24)));
    assert!((reason.step * 2.0_f32.powi(30) - 1.0).abs() < 2.0_f32.powi(-8));
    let output = open(&folder.path().join("out"));
    assert_eq!(packed(&output, MODULE).scale_dtype, ScaleDtype::F32);
    assert_eq!(packed(&output, "model.layers.1.mlp.up_proj").scale_dtype, ScaleDtype::F16);
}
