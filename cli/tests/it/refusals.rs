//! Bad input from the command line: an exit code, one clear message, nothing lost.

use crate::support::*;
use std::fs;
use std::path::{Path, PathBuf};

/// A small source and its conversion.
fn pair(folder: &Path) -> (PathBuf, PathBuf) {
    let (source, out) = (folder.join("source"), folder.join("packed"));
    succeed(&["fixture", "tiny", "--out", text(&source), "--quiet"]);
    succeed(&["convert", text(&source), "--out", text(&out), "--quiet"]);
    (source, out)
}

/// Where a tensor's bytes begin in `model.safetensors`.
fn offset(folder: &Path, tensor: &str) -> usize {
    let bytes = fs::read(folder.join("model.safetensors")).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    8 + length + header[tensor]["data_offsets"][0].as_u64().unwrap() as usize
}

fn overwrite(folder: &Path, offset: usize, bytes: &[u8]) {
    let path = folder.join("model.safetensors");
    let mut content = fs::read(&path).unwrap();
    content[offset..offset + bytes.len()].copy_from_slice(bytes);
    fs::write(path, content).unwrap();
}

#[test]
fn wrong_use_exits_2_with_a_hint_where_there_is_a_next_step() {
    refuse(2, &["convert"]);
    refuse(2, &["run", "--tokens", "2", "--prompt", "both"]);
    refuse(2, &["convert", "x", "--unknown-flag"]);
    let talk = refuse(2, &["convert", "no/such-model", "--out", "x"]);
    assert!(talk.contains("`no/such-model`") && talk.contains("hf download"), "{talk}");
    let talk = refuse(2, &["verify", "nowhere at all"]);
    assert!(talk.contains("neither a folder here nor a Hub name"), "{talk}");
    let empty = tempfile::tempdir().unwrap();
    let talk = refuse(2, &["convert", text(empty.path()), "--out", "x"]);
    assert!(talk.contains("no checkpoint") && talk.contains("hint:"), "{talk}");
}

#[test]
fn a_prompt_needs_a_tokenizer_and_a_template() {
    let folder = tempfile::tempdir().unwrap();
    let (_, out) = pair(folder.path());
    let ask = ["run", "--model", text(&out), "--max-tokens", "2", "--prompt", "hello"];
    succeed(&ask);
    fs::remove_file(out.join("chat_template.jinja")).unwrap();
    let talk = refuse(2, &ask);
    assert!(talk.contains("no chat template") && talk.contains("--raw"), "{talk}");
    succeed(&[&ask[..], &["--raw"]].concat());
    fs::remove_file(out.join("tokenizer.json")).unwrap();
    let talk = refuse(2, &[&ask[..], &["--raw"]].concat());
    assert!(talk.contains("no tokenizer.json") && talk.contains("--tokens"), "{talk}");
    let ran = succeed(&[
        "run",
        "--model",
        text(&out),
        "--tokens",
        "2,120",
        "--max-tokens",
        "3",
        "--ignore-eos",
    ]);
    let ids = String::from_utf8(ran.stdout).unwrap();
    assert_eq!(ids.trim().split(',').count(), 3, "without a tokenizer the ids are printed");
}

#[test]
fn field_case_04_nan_in_a_source_or_a_scale_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let (source, out) = pair(folder.path());
    let scale = "model.layers.1.mlp.down_proj.weight_scale";
    let nan = half::f16::NAN.to_le_bytes();
    overwrite(&out, offset(&out, scale), &nan);
    let talk = refuse(2, &["run", "--model", text(&out), "--tokens", "2"]);
    assert!(talk.contains(scale) && talk.contains("row 0, group 0"), "{talk}");
    let verified = w4pack(&["verify", text(&out), "--source", text(&source)]);
    assert_eq!(verified.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&verified.stdout).contains("down_proj"));

    let weight = "model.language_model.layers.1.mlp.up_proj.weight";
    for value in [half::bf16::NAN, half::bf16::INFINITY] {
        overwrite(&source, offset(&source, weight) + 64, &value.to_le_bytes());
        let again = folder.path().join("again");
        let talk = refuse(1, &["convert", text(&source), "--out", text(&again)]);
        assert!(talk.contains(weight) && talk.contains("row 0, group 1"), "{talk}");
        assert!(!again.exists(), "nothing lies under the final name");
    }
}

#[test]
fn field_case_11_a_cut_file_is_refused_by_all_three() {
    let folder = tempfile::tempdir().unwrap();
    let (source, out) = pair(folder.path());
    for cut in [1, 4096] {
        for victim in [&source, &out] {
            let path = victim.join("model.safetensors");
            let whole = fs::read(&path).unwrap();
            fs::write(&path, &whole[..whole.len() - cut]).unwrap();
            let (source, out) = (text(&source), text(&out));
            if text(victim) == source {
                let x = folder.path().join("x");
                let talk = refuse(2, &["convert", source, "--out", text(&x)]);
                assert!(talk.contains("truncated"), "{talk}");
                assert!(!x.exists());
            } else {
                let talk = refuse(2, &["run", "--model", out, "--tokens", "2"]);
                assert!(talk.contains("truncated"), "{talk}");
            }
            let verified = w4pack(&["verify", out, "--source", source, "--json"]);
            assert_eq!(verified.status.code(), Some(2), "{}", stderr(&verified));
            assert_eq!(stdout_json(&verified)["verdict"], "unreadable");
            fs::write(&path, whole).unwrap();
        }
    }
}

#[test]
fn a_result_is_not_proved_without_its_source() {
    let folder = tempfile::tempdir().unwrap();
    let (_, out) = pair(folder.path());
    let verified = w4pack(&["verify", text(&out), "--json"]);
    assert_eq!(verified.status.code(), Some(2));
    assert_eq!(stdout_json(&verified)["verdict"], "self-consistent");
}

#[test]
fn ids_and_settings_out_of_range_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let (_, out) = pair(folder.path());
    let run = |flags: &[&str]| refuse(2, &[&["run", "--model", text(&out)][..], flags].concat());
    assert!(run(&["--tokens", "2,99999999"]).contains("99999999"));
    assert!(run(&["--tokens", "2", "--temperature", "-1"]).contains("temperature"));
    assert!(run(&["--tokens", "2", "--top-p", "0"]).contains("top_p"));
    assert!(run(&["--tokens", "2", "--max-tokens", "0"]).contains("max_tokens"));
    assert!(run(&["--tokens", "2", "--context", "0"]).contains("context"));
    assert!(run(&["--tokens", "2,120,121", "--context", "2"]).contains("context"));
    assert!(run(&["--tokens", "2", "--threads", "0"]).contains("threads"));
}
