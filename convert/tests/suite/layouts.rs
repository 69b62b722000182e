//! What each layout and `--towers keep` make of a checkpoint.

use std::fs;

use serde_json::json;
use w4pack_convert::{ConvertError, Options, Reason, Towers};
use w4pack_format::config::Config;
use w4pack_format::manifest::{Fate, MANIFEST_FILE, Manifest};
use w4pack_format::names::{NameLayout, is_tower};
use w4pack_format::quantization::ModuleClass;
use w4pack_format::scale::ScaleDtype;

use crate::end_to_end::assert_restored;
use crate::support::small::Small;
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
