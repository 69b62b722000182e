//! `verify` beyond --source: the source's hashes, statements, the self-test.

use crate::support::*;
use std::fs;
use std::path::{Path, PathBuf};

/// A small source and its conversion.
fn pair(folder: &Path, flags: &[&str]) -> (PathBuf, PathBuf) {
    let (source, out) = (folder.join("source"), folder.join("packed"));
    let random = ["--signed-zeros", "random", "--quiet"];
    succeed(&[&["fixture", "tiny", "--hard", "--out", text(&source)][..], &random].concat());
    succeed(&[&["convert", text(&source), "--out", text(&out), "--quiet"][..], flags].concat());
    (source, out)
}

/// What the Hub's tree listing says: SHA-256 of large files, Git's own hash of small ones.
fn listing(source: &Path) -> String {
    let mut entries = Vec::new();
    for entry in fs::read_dir(source).unwrap() {
        let path = entry.unwrap().path();
        let content = fs::read(&path).unwrap();
        let name = path.file_name().unwrap().to_str().unwrap();
        let sha256 = w4pack_format::digest::sha256(&content);
        entries.push(serde_json::json!({
            "type": "file", "path": name, "size": content.len(), "oid": "0".repeat(40),
            "lfs": {"oid": sha256, "size": content.len(), "pointerSize": 135}
        }));
    }
    serde_json::Value::from(entries).to_string()
}

#[test]
fn hashes_of_the_source_prove_a_pack_without_the_source() {
    let folder = tempfile::tempdir().unwrap();
    let (source, out) = pair(folder.path(), &[]);
    let file = folder.path().join("tree.json");
    fs::write(&file, listing(&source)).unwrap();
    let verify = ["verify", text(&out), "--hashes", text(&file)];
    let talk = w4pack(&verify);
    assert_eq!(talk.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&talk.stdout).contains("--towers-from"));
    let with_towers = [&verify[..], &["--towers-from", text(&source), "--json"]].concat();
    let report = stdout_json(&succeed(&with_towers));
    assert_eq!((&report["verdict"], &report["unaccounted"]), (&"proved".into(), &0.into()));

    let weights = source.join("model.safetensors");
    let hash = w4pack_format::digest::sha256(&fs::read(weights).unwrap());
    fs::write(&file, listing(&source).replace(&hash, &"0".repeat(64))).unwrap();
    let output = w4pack(&with_towers);
    assert_eq!(
        (output.status.code(), &stdout_json(&output)["verdict"]),
        (Some(1), &"disproved".into())
    );
}

/// With the towers in the pack nothing else is needed, not even the source's config.json.
#[test]
fn a_pack_with_its_towers_is_proved_by_hashes_alone() {
    let folder = tempfile::tempdir().unwrap();
    let (source, out) = pair(folder.path(), &["--towers", "keep"]);
    let file = folder.path().join("tree.json");
    fs::write(&file, listing(&source)).unwrap();
    succeed(&["verify", text(&out), "--hashes", text(&file), "--quiet"]);
}

#[test]
fn a_statement_is_written_after_a_proof_and_checked() {
    let folder = tempfile::tempdir().unwrap();
    let (source, out) = pair(folder.path(), &[]);
    let file = folder.path().join("statement.json");
    let prove = ["verify", text(&out), "--source", text(&source), "--write-statement"];
    let inside = out.join("statement.json");
    refuse(2, &[&prove[..], &[text(&inside)]].concat());
    succeed(&[&prove[..], &[text(&file)]].concat());
    let work = folder.path().join("work");
    fs::create_dir(&work).unwrap();
    if let Some(said) = python("sign_statement.py", &[text(&file), text(&out), text(&work)]) {
        assert_eq!(said.trim(), "signed and verified");
    }

    let check = ["verify", text(&out), "--statement", text(&file)];
    let matches = w4pack(&check);
    assert_eq!(matches.status.code(), Some(2));
    let words = String::from_utf8(matches.stdout).unwrap();
    assert!(words.contains("matches the statement, not proved"), "{words}");
    fs::write(out.join("tokenizer.json"), "{}").unwrap();
    assert_eq!(w4pack(&check).status.code(), Some(1));

    let none = folder.path().join("none.json");
    let output = w4pack(&[&prove[..], &[text(&none)]].concat());
    assert_eq!((output.status.code(), none.exists()), (Some(1), false));
    let talk = stderr(&output);
    assert!(talk.contains("none.json` was not written") && talk.contains("disproved"), "{talk}");
    let alone = w4pack(&["verify", text(&source), "--write-statement", text(&none)]);
    let talk = stderr(&alone);
    assert!(talk.contains("was not written") && !none.exists(), "{talk}");
}

#[test]
fn the_self_test_finds_every_damage() {
    let output = succeed(&["verify", "--self-test", "300", "--json"]);
    let table = stdout_json(&output);
    let rows = table["rows"].as_array().unwrap();
    assert!(rows.len() > 30);
    for row in rows {
        assert_eq!(row["trials"], row["right"], "{row}");
    }
    let folder = tempfile::tempdir().unwrap();
    let (source, out) = pair(folder.path(), &["--layout", "emb4-untied"]);
    let talk = refuse(2, &["verify", text(&out), "--self-test", "3"]);
    assert!(talk.contains("--source"), "{talk}");
    // With a head of its own every kind of damage is damage too.
    let test = ["verify", text(&out), "--source", text(&source), "--self-test", "165", "--json"];
    for row in stdout_json(&succeed(&test))["rows"].as_array().unwrap() {
        assert_eq!(row["trials"], row["right"], "{row}");
    }
}

/// Our own GGUF layout holds the source's codes under canonical steps; a changed nibble is counted.
#[test]
fn a_gguf_file_is_held_against_the_source() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("source");
    succeed(&["fixture", "tiny", "--out", text(&source), "--quiet"]);
    let out = folder.path().join("gguf");
    let flags = ["--layout", "gguf", "--quiet"];
    succeed(&[&["convert", text(&source), "--out", text(&out)][..], &flags].concat());
    let verify = ["verify", text(&out), "--source", text(&source), "--json"];
    let output = w4pack(&verify);
    let report = stdout_json(&output);
    assert_eq!(report["verdict"], "codes-proved", "{report}");
    assert_eq!(
        (&report["faults"], &report["step_rule"]),
        (&serde_json::json!([]), &"canonical".into())
    );
    assert_eq!(report["whole"]["int4_codes_disagreeing"], 0);
    succeed(&[&verify[..], &["--allow-step-rounding"]].concat());

    let notes = report["notes"].to_string();
    assert!(notes.contains("vocabulary, merges and chat template are the source's"), "{notes}");

    // Beyond codes: the source's texts are changed one by one, and each shows.
    let other = folder.path().join("other");
    type Change = (&'static str, fn(String) -> String, &'static str);
    let changes: [Change; 4] = [
        (
            "config.json",
            |text| text.replace("\"sliding_window\": ", "\"sliding_window\": 1"),
            "sliding_window",
        ),
        ("chat_template.jinja", |text| text + " ", "chat template"),
        ("tokenizer.json", |text| text.replacen("\"vocab\":{", "\"vocab\":{\"w4\":77,", 1), "`w4`"),
        (
            "tokenizer.json",
            |text| text.replacen("\"merges\":[", "\"merges\":[[\"a\",\"b\"],", 1),
            "merges",
        ),
    ];
    for (name, change, words) in changes {
        let _ = fs::remove_dir_all(&other);
        fs::create_dir(&other).unwrap();
        for entry in fs::read_dir(&source).unwrap() {
            let path = entry.unwrap().path();
            fs::copy(&path, other.join(path.file_name().unwrap())).unwrap();
        }
        let text = fs::read_to_string(other.join(name)).unwrap();
        let changed = change(text.clone());
        assert_ne!(changed, text, "{name}");
        fs::write(other.join(name), changed).unwrap();
        let output =
            w4pack(&["verify", self::text(&out), "--source", self::text(&other), "--json"]);
        let report = stdout_json(&output);
        assert_eq!(output.status.code(), Some(1), "{report}");
        assert_eq!(report["verdict"], "disproved", "{name}");
        assert!(report["faults"].to_string().contains(words), "{name}: {}", report["faults"]);
        assert!(report["faults"].to_string().contains("manifest"), "its hash is another");
    }

    let file = out.join("model-Q4_0.gguf");
    let mut content = fs::read(&file).unwrap();
    let last = content.len() - 200;
    content[last] ^= 0x10;
    fs::write(&file, &content).unwrap();
    let changed = ["verify", text(&file), "--source", text(&source), "--json"];
    let output = w4pack(&changed);
    assert_eq!(output.status.code(), Some(1));
    assert!(!stdout_json(&output)["faults"].as_array().unwrap().is_empty());
    assert!(refuse(2, &["verify", text(&file)]).contains("--source"));
}

#[test]
fn inspect_shows_the_grid_and_draws_it() {
    let folder = tempfile::tempdir().unwrap();
    let (source, out) = pair(folder.path(), &[]);
    let picture = folder.path().join("grid.PNG");
    succeed(&["inspect", text(&source), "--plot", text(&picture)]);
    assert!(fs::read(&picture).unwrap().starts_with(b"\x89PNG\r\n"));
    let plot = folder.path().join("grid.svg");
    let found = stdout_json(&succeed(&["inspect", text(&source), "--plot", text(&plot), "--json"]));
    assert!(found["grid"].as_str().unwrap().contains("steps"), "{found}");
    assert!(fs::read_to_string(&plot).unwrap().starts_with("<svg "));
    let packed = succeed(&["inspect", text(&out)]);
    assert!(String::from_utf8(packed.stdout).unwrap().contains("packed by: "));
    refuse(2, &["inspect", text(&out), "--plot", "grid.jpg"]);
}

/// A statement never takes the place of a source's file, nor of anything but a statement.
#[test]
fn a_statement_overwrites_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let (source, packed) = (folder.path().join("source"), folder.path().join("packed"));
    succeed(&["fixture", "tiny", "--out", text(&source), "--quiet"]);
    succeed(&["convert", text(&source), "--out", text(&packed), "--quiet"]);
    let prove = ["verify", text(&packed), "--source", text(&source), "--write-statement"];
    let config = source.join("config.json");
    let before = std::fs::read(&config).unwrap();
    refuse(2, &[&prove[..], &[text(&config)]].concat());
    refuse(2, &[&prove[..], &[text(&source.join("new.json"))]].concat());
    assert_eq!(std::fs::read(&config).unwrap(), before);
    let mine = folder.path().join("mine.json");
    std::fs::write(&mine, "{}").unwrap();
    let talk = refuse(2, &[&prove[..], &[text(&mine)]].concat());
    assert!(talk.contains("is no statement") && talk.contains("hint:"), "{talk}");
    assert_eq!(std::fs::read(&mine).unwrap(), b"{}");
    let statement = folder.path().join("statement.json");
    succeed(&[&prove[..], &[text(&statement)]].concat());
    succeed(&[&prove[..], &[text(&statement)]].concat());
}
