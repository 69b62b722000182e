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
    assert!(run(&["--tokens", "2", "--threads", "100000"]).contains("1 to 512"));
}

#[test]
fn flags_that_the_cpu_does_not_honour_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let (_, out) = pair(folder.path());
    let ask = ["run", "--model", text(&out), "--tokens", "2,120", "--max-tokens", "2"];
    let honoured = "--device cpu --ple disk --kv bf16 --prefill auto --speculate off --threads 1";
    let words = |flags: &'static str| flags.split(' ').collect::<Vec<_>>();
    succeed(&[&ask[..], &words(honoured)].concat());
    let refused = ["--gpu-memory 2560", "--ple gpu", "--kv q8", "--prefill mma", "--prefill ffma"];
    for flags in refused {
        let talk = refuse(2, &[&ask[..], &["--device", "cpu"], &words(flags)].concat());
        assert!(talk.contains(&format!("`{flags}`")) && talk.contains("hint:"), "{talk}");
    }
    let talk = refuse(2, &[&ask[..], &["--device", "cpu", "--fast", "--weights", "bf16"]].concat());
    assert!(talk.contains("`--fast`") && talk.contains("hint:"), "{talk}");
    for device in ["gpu", "cuda:", "cuda:x", "cuda1"] {
        let talk = refuse(2, &[&ask[..], &["--device", device]].concat());
        assert!(talk.contains("`cuda:N`"), "{talk}");
    }
}

#[test]
fn a_reader_that_goes_away_is_no_panic() {
    let folder = tempfile::tempdir().unwrap();
    let (source, out) = pair(folder.path());
    let (source, out) = (text(&source), text(&out));
    let commands: [&[&str]; 6] = [
        &["verify", out, "--source", source, "--json"],
        &["run", "--model", out, "--tokens", "2", "--max-tokens", "4", "--json"],
        &["run", "--model", out, "--tokens", "2", "--max-tokens", "4"],
        &["convert", source, "--plan"],
        &["completions", "bash"],
        &["demo"],
    ];
    for arguments in commands {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = std::process::Command::new(assert_cmd::cargo::cargo_bin!("w4pack"))
            .args(arguments)
            .stdout(writer)
            .stderr(std::process::Stdio::piped())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", stderr(&output));
        assert!(!stderr(&output).contains("panicked"), "{arguments:?}");
    }
}

#[test]
fn logits_never_take_the_place_of_something_else() {
    let folder = tempfile::tempdir().unwrap();
    let (_, out) = pair(folder.path());
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(out.join("model.safetensors"), &link).unwrap();
    let targets =
        [out.join("model.safetensors"), out.join("new"), link, folder.path().join("no/where")];
    for target in targets {
        let before = fs::read(out.join("model.safetensors")).unwrap();
        let run = ["run", "--model", text(&out), "--tokens", "2", "--logits", text(&target)];
        assert!(refuse(2, &run).contains("cannot write logits"));
        assert_eq!(fs::read(out.join("model.safetensors")).unwrap(), before);
    }
}

#[test]
fn an_output_folder_with_somebody_elses_files_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (source, out) = pair(folder.path());
    let convert = ["convert", text(&source), "--out", text(&out), "--quiet"];
    fs::create_dir(out.join("photos")).unwrap();
    fs::write(out.join("photos/one.jpg"), "precious").unwrap();
    let talk = refuse(2, &convert);
    assert!(talk.contains("photos/one.jpg") && talk.contains("hint:"), "{talk}");
    assert!(out.join("photos/one.jpg").exists());
    fs::remove_dir_all(out.join("photos")).unwrap();
    succeed(&convert);
    fs::write(out.join("w4pack/manifest.json"), "not a manifest").unwrap();
    assert!(refuse(2, &convert).contains("not an output of w4pack"));
    assert!(out.join("model.safetensors").exists());
}

#[test]
fn names_from_files_do_not_steer_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let (_, out) = pair(folder.path());
    let template = "{{ raise_exception('\u{1b}[2Jgone\u{202e}') }}";
    fs::write(out.join("chat_template.jinja"), template).unwrap();
    let run = ["run", "--model", text(&out), "--prompt", "hello"];
    let talk = refuse(2, &run);
    assert!(talk.contains("gone") && !talk.contains(['\u{1b}', '\u{202e}']), "{talk:?}");
}

#[test]
fn a_revision_cannot_leave_the_hub_cache() {
    for what in ["owner/name@../../x", "owner/name@/etc", "owner/name@a//b"] {
        assert!(refuse(2, &["verify", what]).contains("no branch, tag or commit"), "{what}");
    }
}

#[test]
fn a_head_that_the_config_promises_must_be_there() {
    let folder = tempfile::tempdir().unwrap();
    let (source, _) = pair(folder.path());
    let path = source.join("config.json");
    let config = fs::read_to_string(&path).unwrap();
    assert!(config.contains(r#""tie_word_embeddings": true"#));
    let untied = r#""tie_word_embeddings": false"#;
    fs::write(&path, config.replace(r#""tie_word_embeddings": true"#, untied)).unwrap();
    let again = folder.path().join("again");
    let talk = refuse(2, &["convert", text(&source), "--out", text(&again)]);
    assert!(talk.contains("lm_head.weight"), "{talk}");
}

/// Whoever asked for an object gets one, on every command that has --json.
#[test]
fn a_refusal_is_an_object_where_one_was_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let nowhere = folder.path().join("nowhere");
    let (nowhere, x) = (text(&nowhere), folder.path().join("x"));
    let commands: &[&[&str]] = &[
        &["convert", nowhere, "--out", text(&x)],
        &["convert", nowhere, "--plan"],
        &["restore", nowhere, "--out", text(&x)],
        &["verify", nowhere],
        &["inspect", nowhere],
        &["doctor", nowhere, "--for", "vllm"],
        &["run", "--model", nowhere, "--tokens", "2"],
        &["fixture", "tiny", "--out", text(folder.path()), "--threads", "0"],
        &["eval", "compare", nowhere, nowhere],
        &["verify", nowhere, "--no-such-flag"],
    ];
    for command in commands {
        let output = w4pack(&[command, &["--json"][..]].concat());
        assert_eq!(output.status.code(), Some(2), "{command:?}: {}", stderr(&output));
        let object = stdout_json(&output);
        let keys: Vec<&String> = object.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["error", "hint"], "{command:?}");
        // The same words as on stderr.
        let error = object["error"].as_str().unwrap();
        let first = error.lines().next().unwrap();
        assert!(!first.is_empty() && stderr(&output).contains(first), "{command:?}: {error}");
        if let Some(hint) = object["hint"].as_str().filter(|_| !command.contains(&"--no-such-flag"))
        {
            assert!(stderr(&output).contains(hint), "{command:?}: {hint}");
        }
        let plain = w4pack(command);
        assert_eq!(plain.stdout, b"", "{command:?}");
    }
}

/// A name that was given is a name from outside too.
#[test]
fn names_of_outputs_do_not_steer_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("a\nb\u{1b}[2J");
    let made = succeed(&["fixture", "tiny", "--out", text(&source)]);
    let out = folder.path().join("c\nd\u{1b}[2J");
    let converted = succeed(&["convert", text(&source), "--out", text(&out)]);
    let back = folder.path().join("e\u{202e}");
    let restored = succeed(&["restore", text(&out), "--out", text(&back)]);
    for output in [made, converted, restored] {
        let talk = stderr(&output);
        assert!(!talk.contains(['\u{1b}', '\u{202e}']), "{talk:?}");
        assert!(talk.lines().all(|line| !line.starts_with(['b', 'd'])), "{talk:?}");
    }
}
