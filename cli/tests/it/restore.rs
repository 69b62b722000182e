//! From packed words back to the source, from the command line.

use crate::support::*;
use std::fs;
use std::path::{Path, PathBuf};

/// Reference models, a fixture of everything difficult, and the trained model, which has zeros of
/// both signs.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut sources = Vec::new();
    for set in ["tiny-a", "tiny-c"] {
        for layout in ["google", "text"] {
            sources.extend(conformance(&format!("conformance/{set}/{layout}")));
        }
    }
    let hard = folder.join("hard");
    let everything = ["--hard", "--all-kv", "--signed-zeros", "random", "--shards", "3"];
    let fixture = ["fixture", "tiny", "--out", text(&hard), "--quiet"];
    succeed(&[&fixture[..], &everything].concat());
    sources.push(hard);
    let trained = folder.join("trained");
    w4pack_fixtures::trained::write(&trained).unwrap();
    sources.push(trained);
    sources
}

#[test]
fn every_source_comes_back_with_its_own_hashes() {
    let folder = tempfile::tempdir().unwrap();
    for source in sources(folder.path()) {
        let work = tempfile::tempdir().unwrap();
        let (packed, back) = (work.path().join("packed"), work.path().join("back"));
        for scale_dtype in ["f16", "bf16"] {
            let convert = ["convert", text(&source), "--out", text(&packed), "--quiet"];
            succeed(&[&convert[..], &["--scale-dtype", scale_dtype]].concat());
            let restore = ["restore", text(&packed), "--out", text(&back)];
            let towers = ["--towers-from", text(&source), "--json"];
            let report = stdout_json(&succeed(&[&restore[..], &towers].concat()));
            assert_eq!(report["complete"], true, "{report}");
            for entry in fs::read_dir(&back).unwrap() {
                let name = entry.unwrap().file_name();
                let [one, other] = [&source, &back].map(|root| fs::read(root.join(&name)).unwrap());
                assert!(one == other, "{}: {name:?}", source.display());
            }
            let identical = report["identical_files"].as_array().unwrap();
            assert_eq!(identical.len(), fs::read_dir(&back).unwrap().count());
            fs::remove_dir_all(&back).unwrap();
        }
    }
}

/// With the towers kept nothing else is needed, and the layout makes no difference.
#[test]
fn packed_with_its_towers_it_restores_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let source = path("source");
    let everything = ["--hard", "--all-kv", "--signed-zeros", "by-step", "--shards", "2"];
    succeed(&[&["fixture", "tiny", "--out", text(&source), "--quiet"][..], &everything].concat());
    for layout in ["emb4", "emb4-untied", "linear", "linear-ple4"] {
        let (packed, back) = (path(&format!("packed-{layout}")), path(&format!("back-{layout}")));
        let convert = ["convert", text(&source), "--out", text(&packed), "--layout", layout];
        succeed(&[&convert[..], &["--towers", "keep", "--quiet"]].concat());
        let restore = ["restore", text(&packed), "--out", text(&back), "--json"];
        let report = stdout_json(&succeed(&restore));
        // Keys and values that nothing reads are left out by every layout.
        let missing = report["missing"].as_array().unwrap();
        assert!(
            missing.iter().all(|tensor| tensor["tensor"].as_str().unwrap().contains("self_attn"))
        );
        assert!(!missing.is_empty());
        fs::remove_dir_all(&back).unwrap();
        let towers = ["--towers-from", text(&source)];
        assert_eq!(stdout_json(&succeed(&[&restore[..], &towers].concat()))["complete"], true);
    }
    let lean = path("lean");
    succeed(&["fixture", "tiny", "--hard", "--shards", "2", "--out", text(&lean), "--quiet"]);
    let (packed, back) = (path("packed"), path("back"));
    succeed(&["convert", text(&lean), "--out", text(&packed), "--towers", "keep", "--quiet"]);
    succeed(&["restore", text(&packed), "--out", text(&back), "--quiet"]);
    for entry in fs::read_dir(&lean).unwrap() {
        let name = entry.unwrap().file_name();
        let [one, other] = [&lean, &back].map(|root| fs::read(root.join(&name)).unwrap());
        assert!(one == other, "{name:?}");
    }
}

#[test]
fn what_is_missing_is_said_in_words() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let (source, packed, back) = (path("source"), path("packed"), path("back"));
    succeed(&["fixture", "tiny", "--out", text(&source), "--quiet"]);
    succeed(&["convert", text(&source), "--out", text(&packed), "--quiet"]);
    let output = succeed(&["restore", text(&packed), "--out", text(&back)]);
    let talk = stderr(&output);
    assert!(talk.contains("not the whole source") && talk.contains("--towers-from"), "{talk}");
    // The text model that came back is a checkpoint: converting it gives the same words.
    let again = path("again");
    succeed(&["convert", text(&back), "--out", text(&again), "--quiet"]);
    let weights = |folder: &Path| fs::read(folder.join("model.safetensors")).unwrap();
    assert!(weights(&packed) == weights(&again));
    let talk = refuse(2, &["restore", text(&source), "--out", text(&path("x"))]);
    assert!(talk.contains("cannot be restored") && talk.contains("manifest"), "{talk}");
    let talk = refuse(2, &["restore", text(&packed), "--out", text(&back)]);
    assert!(talk.contains("it is not empty"), "{talk}");
}

/// A manifest may come from anybody: its paths never lead out of the folder that is written.
#[test]
fn paths_of_a_manifest_do_not_leave_the_output() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    succeed(&["fixture", "tiny", "--out", text(&path("source")), "--quiet"]);
    let (source, packed) = (path("source"), path("packed"));
    let convert = ["convert", text(&source), "--out", text(&packed)];
    succeed(&[&convert[..], &["--towers", "keep", "--quiet"]].concat());
    let file = packed.join("w4pack/manifest.json");
    let good: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    for evil in ["../evil.txt", "/tmp/w4pack-evil.txt", "a/../../evil.txt", "..", ""] {
        let mut manifest = good.clone();
        let text_record = serde_json::json!({"path": evil, "text": "evil"});
        manifest["source"]["texts"].as_array_mut().unwrap().push(text_record);
        fs::write(&file, manifest.to_string()).unwrap();
        let talk = refuse(2, &["restore", text(&path("packed")), "--out", text(&path("back"))]);
        assert!(talk.contains("manifest.json") && talk.contains(evil), "{talk}");
        let mut left: Vec<_> = fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(left, ["packed", "source"]);
    }
}

/// Whoever is named to complete a pack must be the release that it was made of.
#[test]
fn towers_of_another_release_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let (source, packed, back) = (path("source"), path("packed"), path("back"));
    succeed(&["fixture", "tiny", "--out", text(&source), "--quiet"]);
    succeed(&["convert", text(&source), "--out", text(&packed), "--quiet"]);
    let restore = |towers: &Path| {
        let flags = ["--out", text(&back), "--towers-from", text(towers)];
        [&["restore", text(&packed)][..], &flags].concat().iter().map(ToString::to_string).collect()
    };
    let refused = |towers: &Path| {
        let arguments: Vec<String> = restore(towers);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let output = w4pack(&arguments);
        let talk = stderr(&output);
        assert_ne!(output.status.code(), Some(0), "{talk}");
        assert!(talk.contains(text(towers)) && talk.contains("the very release"), "{talk}");
        assert!(!back.exists());
        talk
    };
    // Other shapes; none of the towers at all; the same shapes with other values.
    succeed(&["fixture", "tiny-e4b", "--out", text(&path("e4b")), "--quiet"]);
    let talk = refused(&path("e4b"));
    assert!(talk.contains("BF16 [") || talk.contains("not there"), "{talk}");
    let talk = refused(&packed);
    assert!(talk.contains("not there"), "{talk}");
    succeed(&["fixture", "tiny", "--seed", "7", "--out", text(&path("other")), "--quiet"]);
    let talk = refused(&path("other"));
    assert!(talk.contains("BLAKE3"), "{talk}");
}

#[test]
fn towers_that_nobody_needs_are_mentioned() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let (source, packed) = (path("source"), path("packed"));
    succeed(&["fixture", "tiny", "--out", text(&source), "--quiet"]);
    let convert = ["convert", text(&source), "--out", text(&packed)];
    succeed(&[&convert[..], &["--towers", "keep", "--quiet"]].concat());
    let restore = ["restore", text(&packed), "--towers-from", text(&source), "--out"];
    let talk = stderr(&succeed(&[&restore[..], &[text(&path("one"))]].concat()));
    assert!(talk.contains("--towers-from was not needed"), "{talk}");
    let report = succeed(&[&restore[..], &[text(&path("two")), "--json"]].concat());
    let report = stdout_json(&report);
    assert_eq!(report["towers_from"], text(&source));
    assert_eq!(report["tensors_from_towers"], 0);
}

/// Without config.json, or with an index that is nowhere, nothing would come back that a loader takes.
#[test]
fn a_manifest_that_lacks_a_text_of_the_source_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let (source, packed) = (path("source"), path("packed"));
    succeed(&["fixture", "tiny", "--shards", "2", "--out", text(&source), "--quiet"]);
    let convert = ["convert", text(&source), "--out", text(&packed)];
    succeed(&[&convert[..], &["--towers", "keep", "--quiet"]].concat());
    let file = packed.join("w4pack/manifest.json");
    let good: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    for name in ["config.json", "model.safetensors.index.json"] {
        for renamed in [Some("other.json"), None] {
            let mut manifest = good.clone();
            let texts = manifest["source"]["texts"].as_array_mut().unwrap();
            let place = texts.iter().position(|text| text["path"] == name).unwrap();
            match renamed {
                Some(renamed) => texts[place]["path"] = renamed.into(),
                None => drop(texts.remove(place)),
            }
            fs::write(&file, manifest.to_string()).unwrap();
            let talk = refuse(2, &["restore", text(&packed), "--out", text(&path("back"))]);
            let named = talk.contains(name) || talk.contains("`other.json`");
            assert!(talk.contains("contradicts itself") && named, "{talk}");
            assert!(!path("back").exists());
        }
    }
}
