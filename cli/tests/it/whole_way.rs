//! Convert, verify and run from the command line, on checkpoints this project did not make.

use crate::support::*;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Both reference models in both layouts; `None` where the sets are not at hand.
fn reference_sources() -> Option<Vec<(&'static str, PathBuf)>> {
    let mut sources = Vec::new();
    for set in ["tiny-a", "tiny-c"] {
        for layout in ["google", "text"] {
            sources.push((set, conformance(&format!("conformance/{set}/{layout}"))?));
        }
    }
    Some(sources)
}

fn reference(set: &str) -> Value {
    let path = conformance(&format!("conformance/{set}/reference/reference.json")).unwrap();
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn every_reference_checkpoint_is_converted_proved_and_run() {
    let Some(sources) = reference_sources() else { return };
    for (_, source) in sources {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("packed");
        let converted = succeed(&["convert", text(&source), "--out", text(&out), "--json"]);
        assert!(stdout_json(&converted)["packed"].as_array().unwrap().len() > 50);

        let verified = succeed(&["verify", text(&out), "--source", text(&source), "--json"]);
        let report = stdout_json(&verified);
        assert_eq!(report["verdict"], "proved");
        assert_eq!(report["unaccounted"], 0);
        assert_eq!(report["whole"]["int4_codes_disagreeing"], 0);
        assert_eq!(report["faults"], serde_json::json!([]));

        let model = ["run", "--model", text(&out)];
        let tokens = ["--tokens", "2,10,11,12", "--max-tokens", "32", "--temperature", "0"];
        let flags = ["--ignore-eos", "--json"];
        let ran = succeed(&[&model[..], &tokens, &flags].concat());
        let answer = stdout_json(&ran);
        assert_eq!(answer["tokens"].as_array().unwrap().len(), 32);
        assert_eq!(answer["completion_tokens"], 32);
        assert_eq!(answer["prompt_tokens"], 4);
        assert_eq!(answer["finish_reason"], "length");

        let prompt = ["--prompt", "hello there", "--raw", "--max-tokens", "16", "--seed", "1"];
        let ran = succeed(&[&model[..], &prompt].concat());
        assert!(ran.stdout.ends_with(b"\n") && ran.stdout.len() > 1);
    }
}

/// With f32 steps and products rounded to bf16 the packed words are Google's values: logits and
/// greedy tokens must be those of transformers on the bf16 checkpoint.
#[test]
fn rounded_products_give_the_reference_logits_and_tokens() {
    let Some(sources) = reference_sources() else { return };
    for (set, source) in sources {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("packed");
        let f32_steps = ["--scale-dtype", "f32", "--quiet"];
        succeed(&[&["convert", text(&source), "--out", text(&out)][..], &f32_steps].concat());
        let reference = reference(set);
        let expected =
            conformance(&format!("conformance/{set}/reference/logits.safetensors")).unwrap();
        for (name, prompt) in reference["prompts"].as_object().unwrap() {
            let ids = comma_separated(prompt);
            let file = folder.path().join("logits.safetensors");
            let ran = succeed(&[
                "run",
                "--model",
                text(&out),
                "--tokens",
                &ids,
                "--max-tokens",
                "32",
                "--temperature",
                "0",
                "--ignore-eos",
                "--weights",
                "bf16",
                "--kv",
                "f32",
                "--chunk",
                "5",
                "--logits",
                text(&file),
                "--json",
            ]);
            let greedy = &reference["runs"]["f32"][name]["greedy_cached"];
            assert_eq!(&stdout_json(&ran)["tokens"], greedy, "{set} {name}");
            let mut wanted = floats(&expected, &format!("f32|{name}|prompt_logits"));
            let decoded = floats(&expected, &format!("f32|{name}|decode_logits_cached"));
            // The last prompt position chose the first token; the file holds it once.
            let vocabulary = decoded.len() / 32;
            wanted.extend_from_slice(&decoded[vocabulary..]);
            let far = distance(&floats(&file, "logits"), &wanted);
            assert!(far <= 1e-3, "{set} {name}: {far}");
        }
    }
}

#[test]
fn field_case_05_converting_three_shards_leaves_no_index_and_no_leftovers() {
    let folder = tempfile::tempdir().unwrap();
    let (source, out) = (folder.path().join("source"), folder.path().join("packed"));
    succeed(&["fixture", "tiny", "--shards", "3", "--out", text(&source), "--quiet"]);
    assert!(source.join("model.safetensors.index.json").exists());
    // An older run of ours lies in place, with leftovers of a sharded one.
    succeed(&["convert", text(&source), "--out", text(&out), "--quiet"]);
    std::fs::write(out.join("model.safetensors.index.json"), "{}").unwrap();
    std::fs::write(out.join("model-00001-of-00003.safetensors"), "old").unwrap();
    succeed(&["convert", text(&source), "--out", text(&out), "--quiet"]);
    let weights: Vec<_> = std::fs::read_dir(&out)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.contains("safetensors"))
        .collect();
    assert_eq!(weights, ["model.safetensors"]);
    succeed(&["verify", text(&out), "--source", text(&source), "--quiet"]);
}

/// Files of names that nobody knows may be part of a tokenizer or a template: they are carried over,
/// and what is left out for another reason does not stand against the proof.
#[test]
fn files_of_unknown_names_are_carried_over_and_proved() {
    let folder = tempfile::tempdir().unwrap();
    let (source, out) = (folder.path().join("source"), folder.path().join("packed"));
    succeed(&["fixture", "tiny", "--out", text(&source), "--quiet"]);
    for (name, content) in [
        ("reference_answers.json", "[1]"),
        ("vision.jinja", "{{ x }}"),
        ("spiece.model", "\u{0}"),
        ("pytorch_model.bin.index.json", "{}"),
        ("pytorch_model.bin", "old"),
        ("training.log", "loss 0"),
    ] {
        std::fs::write(source.join(name), content).unwrap();
    }
    let converted = succeed(&["convert", text(&source), "--out", text(&out), "--json"]);
    let converted = stdout_json(&converted);
    let names = |key: &str| converted[key].to_string();
    for name in ["reference_answers.json", "vision.jinja", "spiece.model"] {
        assert!(names("copied_files").contains(name), "{converted}");
    }
    for name in ["pytorch_model.bin.index.json", "pytorch_model.bin\"", "training.log"] {
        assert!(!out.join(name.trim_matches('"')).exists() && converted.to_string().contains(name));
    }
    let verified = succeed(&["verify", text(&out), "--source", text(&source), "--json"]);
    assert_eq!(stdout_json(&verified)["unaccounted"], 0);
}

#[test]
fn field_case_01_shared_layers_need_no_keys_and_surplus_ones_are_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let (lean, full) = (folder.path().join("lean"), folder.path().join("full"));
    succeed(&["fixture", "tiny", "--out", text(&lean), "--quiet"]);
    succeed(&["fixture", "tiny", "--all-kv", "--out", text(&full), "--quiet"]);
    let mut answers = Vec::new();
    for source in [&lean, &full] {
        let out = folder.path().join("packed");
        let converted = succeed(&["convert", text(source), "--out", text(&out), "--json"]);
        let left_out = stdout_json(&converted)["left_out"].to_string();
        assert_eq!(left_out.contains("language_model"), source == &full);
        let verified = succeed(&["verify", text(&out), "--source", text(source), "--json"]);
        assert_eq!(stdout_json(&verified)["unaccounted"], 0);
        let ran = succeed(&[
            "run",
            "--model",
            text(&out),
            "--tokens",
            "2,120,130",
            "--max-tokens",
            "8",
            "--temperature",
            "0",
            "--ignore-eos",
            "--json",
        ]);
        answers.push(stdout_json(&ran)["tokens"].clone());
    }
    assert_eq!(answers[0], answers[1], "the surplus tensors change nothing");
}

#[test]
fn the_newest_conversion_is_the_default_model() {
    let folder = tempfile::tempdir().unwrap();
    let (home, source) = (folder.path().join("home"), folder.path().join("my-model"));
    let none = w4pack_at(&home, &["run", "--tokens", "2"]);
    assert_eq!(none.status.code(), Some(2));
    assert!(stderr(&none).contains("hint:"), "{}", stderr(&none));
    succeed(&["fixture", "tiny", "--out", text(&source), "--quiet"]);
    let converted = w4pack_at(&home, &["convert", text(&source), "--quiet"]);
    assert_eq!(converted.status.code(), Some(0), "{}", stderr(&converted));
    let ran = w4pack_at(&home, &["run", "--tokens", "2", "--max-tokens", "2", "--json"]);
    assert_eq!(ran.status.code(), Some(0), "{}", stderr(&ran));
    let model = stdout_json(&ran)["model"].as_str().unwrap().to_string();
    assert_eq!(Path::new(&model), home.join("my-model-w4a16-emb4"));
}

/// The demo's checkpoints answer through `run` too: the prompt must end where the model's turn
/// begins, and the answer at the token that ends it.
#[test]
fn the_demo_holds_and_its_model_answers() {
    let folder = tempfile::tempdir().unwrap();
    let output = succeed(&["demo", "--out", text(folder.path())]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("All five steps held."), "{said}");
    for checkpoint in ["google", "packed", "packed-f32"] {
        let model = folder.path().join(checkpoint);
        let ask = ["run", "--model", text(&model), "--prompt", "What's 17+25?"];
        let answer = stdout_json(&succeed(&[&ask[..], &["--temperature", "0", "--json"]].concat()));
        assert_eq!(answer["text"], "42");
        assert_eq!(answer["finish_reason"], "stop");
        assert_eq!(answer["prompt_tokens"], 19);
    }
}

#[test]
fn completions_are_printed_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        assert!(succeed(&["completions", shell]).stdout.len() > 1000, "{shell}");
    }
}
