//! What each layout and `--towers keep` make of a checkpoint.

use std::fs;

use serde_json::json;
use w4pack_convert::{ConvertError, Layout, Options, Reason, Report, Towers};
use w4pack_format::checkpoint::Checkpoint;
use w4pack_format::config::Config;
use w4pack_format::manifest::{Fate, MANIFEST_FILE, Manifest};
use w4pack_format::names::{NameLayout, Role, is_tower, text_tensors};
use w4pack_format::quantization::ModuleClass;
use w4pack_format::scale::ScaleDtype;

use crate::end_to_end::assert_restored;
use crate::support::small::{Small, group};
use crate::support::{names_in, open, options, run};

fn keep_towers() -> Options {
    Options { towers: Towers::Keep, ..options(ScaleDtype::F16) }
}

#[test]
fn kept_towers_are_copied_under_googles_names() {
    let folder = tempfile::tempdir().unwrap();
    let (source, out) = (folder.path().join("source"), folder.path().join("out"));
    for shards in [1, 3] {
        Small::google(20).write(&source, shards);
        let report = run(&source, &out, &keep_towers()).unwrap();
        assert_restored(&source, &out);
        let (source, out) = (open(&source), open(&out));
        let towers: Vec<&str> = source.names().filter(|name| is_tower(name)).collect();
        assert_eq!(towers.len(), 3);
        for name in towers {
            let (theirs, ours) = (source.tensor(name).unwrap(), out.tensor(name).unwrap());
            assert_eq!(
                (theirs.info.dtype, &theirs.info.shape),
                (ours.info.dtype, &ours.info.shape)
            );
            assert!(source.read(name).unwrap() == out.read(name).unwrap(), "{name}");
            assert!(report.copied_tensors.iter().any(|copied| copied == name));
        }
        assert!(report.left_out.is_empty());
        assert!(
            out.names().all(|name| is_tower(name) || name.starts_with("model.language_model."))
        );
        let manifest = out.source().read_file(MANIFEST_FILE).unwrap();
        let manifest = Manifest::parse(&manifest).unwrap();
        assert_eq!(manifest.options.towers, "keep");
        assert!(manifest.source.tensors.iter().all(|tensor| tensor.fate != Fate::LeftOut));
        fs::remove_dir_all(folder.path().join("source")).unwrap();
    }
}

/// Field case 8: exact module names in `ignore` broke when a reader put another prefix in front.
#[test]
fn with_towers_the_config_is_googles_and_readers_leave_the_towers_alone() {
    let folder = tempfile::tempdir().unwrap();
    let (source, out) = (folder.path().join("source"), folder.path().join("out"));
    let small = Small::google(21);
    small.write(&source, 1);
    run(&source, &out, &keep_towers()).unwrap();
    let config = Config::load(&**open(&out).source()).unwrap();
    assert_eq!(config.layout, NameLayout::Multimodal);
    let mut raw = config.raw.clone();
    assert_eq!(raw["text_config"]["tie_word_embeddings"], json!(true));
    raw.as_object_mut().unwrap().shift_remove("quantization_config").unwrap();
    assert_eq!(raw, small.config, "nothing else changes");
    let quantization = config.quantization.unwrap();
    for prefix in ["model.language_model.", "language_model.model.", "model."] {
        let linear = format!("{prefix}layers.0.mlp.up_proj");
        assert!(quantization.covers(&linear, ModuleClass::Linear), "{linear}");
        let table = format!("{prefix}embed_tokens");
        assert!(quantization.covers(&table, ModuleClass::Embedding), "{table}");
    }
    for prefix in ["", "model.", "language_model."] {
        assert!(!quantization.covers(&format!("{prefix}lm_head"), ModuleClass::Linear));
        for tower in [
            "vision_tower.encoder.layers.0.self_attn.q_proj.linear",
            "audio_tower.layers.0.feed_forward1.ffw_layer_1",
            "embed_vision.embedding_projection",
            "embed_audio.embedding_projection",
        ] {
            let tower = format!("{prefix}{tower}");
            assert!(!quantization.covers(&tower, ModuleClass::Linear), "{tower}");
        }
    }
}

#[test]
fn a_tie_flag_that_the_source_leaves_out_is_written_on_both_levels() {
    let folder = tempfile::tempdir().unwrap();
    let (source, out) = (folder.path().join("source"), folder.path().join("out"));
    let mut small = Small::google(22);
    small.config.as_object_mut().unwrap().shift_remove("tie_word_embeddings").unwrap();
    let text = small.config["text_config"].as_object_mut().unwrap();
    text.shift_remove("tie_word_embeddings").unwrap();
    small.write(&source, 1);
    run(&source, &out, &keep_towers()).unwrap();
    let config = Config::load(&**open(&out).source()).unwrap();
    assert_eq!(config.raw["tie_word_embeddings"], json!(true));
    assert_eq!(config.raw["text_config"]["tie_word_embeddings"], json!(true));
}

#[test]
fn keys_that_nothing_reads_stay_out_even_with_towers() {
    let mut small = Small::google(23);
    for part in ["k_proj", "v_proj"] {
        let spare = small.tensor(&format!("layers.1.self_attn.{part}.weight")).clone();
        let name = format!("model.language_model.layers.3.self_attn.{part}.weight");
        small.tensors.insert(name, spare);
    }
    let folder = tempfile::tempdir().unwrap();
    let (source, out) = (folder.path().join("source"), folder.path().join("out"));
    small.write(&source, 1);
    let report = run(&source, &out, &keep_towers()).unwrap();
    assert_eq!(report.left_out.len(), 2);
    assert!(report.left_out.iter().all(|tensor| tensor.reason == Reason::UnusedSharedKv));
}

/// Older names, without the `model.` in front: the same bytes come out.
#[test]
fn older_names_make_no_difference() {
    let small = Small::google(25);
    let mut older = small.clone();
    older.tensors = small
        .tensors
        .iter()
        .map(|(name, tensor)| {
            let name = match name.strip_prefix("model.language_model.") {
                Some(rest) => format!("language_model.model.{rest}"),
                None => name.strip_prefix("model.").unwrap_or(name).into(),
            };
            (name, tensor.clone())
        })
        .collect();
    let folder = tempfile::tempdir().unwrap();
    let weights = |small: &Small, name: &str| {
        let (source, out) = (folder.path().join(name), folder.path().join(format!("{name}-out")));
        small.write(&source, 1);
        run(&source, &out, &options(ScaleDtype::F16)).unwrap();
        std::fs::read(out.join("model.safetensors")).unwrap()
    };
    assert!(weights(&small, "small") == weights(&older, "older"));
    let out = folder.path().join("kept");
    let error = run(&folder.path().join("older"), &out, &keep_towers()).unwrap_err();
    assert!(error.to_string().contains("older names"), "{error}");
}

#[test]
fn towers_that_are_not_there_cannot_be_kept() {
    let mut without = Small::google(24);
    without.tensors.retain(|name, _| !is_tower(name));
    for (small, words) in [(Small::text_only(24), "text-only"), (without, "none of its tensors")] {
        let folder = tempfile::tempdir().unwrap();
        let (source, out) = (folder.path().join("source"), folder.path().join("out"));
        small.write(&source, 1);
        let error = run(&source, &out, &keep_towers()).unwrap_err();
        assert!(matches!(error, ConvertError::NoTowers { .. }));
        assert!(error.to_string().contains(words), "{error}");
        assert!(error.hint().unwrap().contains("--towers"));
        assert_eq!(names_in(folder.path()), ["source"]);
    }
}

const EMBED: &str = "embed_tokens";
const PLE: &str = "embed_tokens_per_layer";

/// Every layout of safetensors, with and without the towers.
fn all_options() -> impl Iterator<Item = Options> {
    let layouts = Layout::ALL.into_iter().filter(|layout| *layout != Layout::Gguf);
    layouts.flat_map(|layout| {
        [Towers::Drop, Towers::Keep].map(|towers| Options {
            layout,
            towers,
            ..options(ScaleDtype::F16)
        })
    })
}

fn converted(small: &Small, options: &Options) -> (tempfile::TempDir, Report) {
    let folder = tempfile::tempdir().unwrap();
    small.write(&folder.path().join("source"), 1);
    let report = run(&folder.path().join("source"), &folder.path().join("out"), options).unwrap();
    assert_restored(&folder.path().join("source"), &folder.path().join("out"));
    (folder, report)
}

/// config.json must say of every matrix, and of the head, what the file holds; whatever prefix a
/// reader puts in front.
pub fn assert_config_tells_the_truth(output: &Checkpoint) {
    let config = Config::load(&**output.source()).unwrap();
    let quantization = config.quantization.unwrap();
    let prefixes = ["model.language_model.", "language_model.model.", "model."];
    for tensor in text_tensors(&config.text).iter().filter(|tensor| tensor.is_matrix()) {
        let module = config.layout.full_name(tensor.module());
        let packed = output.tensor(&format!("{module}.weight_packed")).is_some();
        let class = match tensor.role {
            Role::Linear => ModuleClass::Linear,
            _ => ModuleClass::Embedding,
        };
        for prefix in prefixes {
            let seen = format!("{prefix}{}", tensor.module());
            assert_eq!(quantization.covers(&seen, class), packed, "{seen}");
        }
    }
    let head = output.tensor("lm_head.weight_packed").is_some();
    assert_eq!(config.tie_word_embeddings, !head);
    for prefix in ["", "model.", "language_model."] {
        let seen = format!("{prefix}lm_head");
        assert_eq!(quantization.covers(&seen, ModuleClass::Linear), head, "{seen}");
    }
    if config.layout == NameLayout::Multimodal {
        assert_eq!(config.raw["text_config"]["tie_word_embeddings"], json!(!head));
        let tower = "model.vision_tower.encoder.layers.0.q_proj.linear";
        assert!(!quantization.covers(tower, ModuleClass::Linear));
    }
}

#[test]
fn each_layout_packs_what_it_names_and_says_so() {
    for options in all_options() {
        let (folder, report) = converted(&Small::google(30), &options);
        let output = open(&folder.path().join("out"));
        assert_config_tells_the_truth(&output);
        let prefix = Config::load(&**output.source()).unwrap().layout.prefix();
        let packed = |module: &str| {
            let name = format!("{prefix}{module}");
            let stored = output.tensor(&format!("{name}.weight_packed")).is_some();
            assert_ne!(stored, output.tensor(&format!("{name}.weight")).is_some(), "{name}");
            assert_eq!(stored, report.packed.iter().any(|packed| packed.module == name));
            stored
        };
        let tables = (packed(EMBED), packed(PLE));
        assert!(packed("layers.0.mlp.up_proj"));
        let dequantize = Config::load(&**output.source()).unwrap().quantization.unwrap().dequantize;
        assert!(dequantize, "f16 scales would be cast to bf16 without it");
        match options.layout {
            Layout::Emb4 | Layout::Emb4Untied => assert_eq!(tables, (true, true)),
            Layout::LinearPle4 => assert_eq!(tables, (false, true)),
            Layout::Linear => assert_eq!(tables, (false, false)),
            Layout::Gguf => unreachable!("it is none of safetensors"),
        }
        let manifest = output.source().read_file(MANIFEST_FILE).unwrap();
        assert_eq!(Manifest::parse(&manifest).unwrap().options.layout, options.layout.name());
        assert_eq!(report.layout, options.layout.name());
        assert_eq!(options.layout.name().parse::<Layout>(), Ok(options.layout));
    }
    assert!("emb5".parse::<Layout>().unwrap_err().contains("linear-ple4"));
}

/// Field case 6: the table is stored once unless asked for twice; then both are the same bytes.
#[test]
fn field_case_06_one_table_or_two_identical_ones() {
    for options in all_options() {
        let mut small = Small::google(31);
        let head = small.tensor("embed_tokens.weight").clone();
        small.tensors.insert("lm_head.weight".into(), head);
        for with_head in [true, false] {
            if !with_head {
                small.tensors.remove("lm_head.weight").unwrap();
            }
            let (folder, report) = converted(&small, &options);
            let output = open(&folder.path().join("out"));
            assert_config_tells_the_truth(&output);
            let heads: Vec<&str> =
                output.names().filter(|name| name.starts_with("lm_head")).collect();
            if options.layout == Layout::Emb4Untied {
                let parts = ["weight_packed", "weight_scale", "weight_shape"];
                assert_eq!(heads, parts.map(|part| format!("lm_head.{part}")));
                let table = Config::load(&**output.source()).unwrap().layout.full_name(EMBED);
                for part in parts {
                    let (one, other) = (format!("lm_head.{part}"), format!("{table}.{part}"));
                    assert!(output.read(&one).unwrap() == output.read(&other).unwrap(), "{part}");
                }
            } else {
                assert!(heads.is_empty());
            }
            let copies = report.left_out.iter().filter(|left| left.reason == Reason::TiedCopy);
            assert_eq!(copies.count(), usize::from(with_head));
        }
    }
}

#[test]
fn only_bf16_scales_everywhere_make_dequantize_needless() {
    let dequantize = |small: &Small, layout, scale_dtype| {
        let options = Options { layout, ..options(scale_dtype) };
        let (folder, _) = converted(small, &options);
        let output = open(&folder.path().join("out"));
        let config = Config::load(&**output.source()).unwrap();
        config.raw["quantization_config"].get("dequantize").cloned()
    };
    let small = Small::google(32);
    assert_eq!(dequantize(&small, Layout::Linear, ScaleDtype::BF16), None);
    for scale_dtype in [ScaleDtype::F16, ScaleDtype::F32] {
        assert_eq!(dequantize(&small, Layout::Linear, scale_dtype), Some(json!(true)));
    }
    for layout in [Layout::Emb4, Layout::Emb4Untied, Layout::LinearPle4] {
        assert_eq!(dequantize(&small, layout, ScaleDtype::BF16), Some(json!(true)));
    }
    // A step between two bf16 subnormals gives one tensor f32 scales.
    let mut subnormal = Small::google(32);
    let codes = std::array::from_fn(|i| (i % 16) as i8 - 8);
    subnormal.set_group(5, 1, &group(codes, 1.5 * 2.0_f64.powi(-133)));
    assert_eq!(dequantize(&subnormal, Layout::Linear, ScaleDtype::BF16), Some(json!(true)));
}

/// One value of a matrix's first group that no step reaches.
fn off_grid(small: &mut Small, text_name: &str) {
    let mut bits = group(std::array::from_fn(|i| (i % 16) as i8 - 8), 0.004);
    bits[5] += 40;
    let bytes: Vec<u8> = bits.iter().flat_map(|bits| bits.to_le_bytes()).collect();
    small.tensor(text_name).bytes[..64].copy_from_slice(&bytes);
}

#[test]
fn tensors_off_the_grid_stay_in_bf16_in_every_layout() {
    for options in all_options() {
        for tensor in
            ["layers.0.mlp.up_proj.weight", "embed_tokens.weight", &format!("{PLE}.weight")]
        {
            let mut small = Small::google(33);
            off_grid(&mut small, tensor);
            let role = text_role(tensor);
            if options.layout.packs(role) {
                let folder = tempfile::tempdir().unwrap();
                small.write(&folder.path().join("source"), 1);
                let (source, out) = (folder.path().join("source"), folder.path().join("out"));
                let error = run(&source, &out, &options).unwrap_err().to_string();
                assert!(error.contains(tensor) && error.contains("row 0, group 0"), "{error}");
                assert_eq!(names_in(folder.path()), ["source"]);
            }
            let allowed = Options { allow_off_grid: true, ..options };
            let (folder, report) = converted(&small, &allowed);
            let output = open(&folder.path().join("out"));
            assert_config_tells_the_truth(&output);
            // A table that the layout leaves in bf16 anyway is not looked at.
            let kept: Vec<&str> =
                report.off_grid.iter().map(|kept| kept.source_name.as_str()).collect();
            let expected = format!("model.language_model.{tensor}");
            assert_eq!(kept, if options.layout.packs(role) { vec![&expected[..]] } else { vec![] });
            // An off-grid table serves as the head, in bf16: there is nothing to store twice.
            let own_head = output.names().any(|name| name.starts_with("lm_head"));
            let untied = options.layout == Layout::Emb4Untied;
            assert_eq!(own_head, untied && role != Role::EmbedTokens);
        }
    }
}

fn text_role(text_name: &str) -> Role {
    match text_name {
        "embed_tokens.weight" => Role::EmbedTokens,
        "embed_tokens_per_layer.weight" => Role::EmbedTokensPerLayer,
        _ => Role::Linear,
    }
}
