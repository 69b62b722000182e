//! `convert --stream`: each byte of the source once, none of it stored, the same output.

use super::*;
use serde_json::Value;
use std::fs;
use w4pack_fake_hub::{FaultKind, Port};

/// A conversion's files, without the time it was made and where the source came from.
fn conversion(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files = files(folder);
    for (name, content) in &mut files {
        if name == "w4pack/manifest.json" {
            let mut manifest: Value = serde_json::from_slice(content).unwrap();
            manifest["created"] = Value::Null;
            manifest["source"]["name"] = Value::Null;
            manifest["source"]["revision"] = Value::Null;
            // The Hub adds this file to every repository.
            let list = manifest["source"]["files"].as_array_mut().unwrap();
            list.retain(|file| file["path"] != ".gitattributes");
            *content = manifest.to_string().into_bytes();
        }
    }
    files
}

fn same_conversion(one: &Path, other: &Path) {
    let (one, other) = (conversion(one), conversion(other));
    let names = |files: &[(String, Vec<u8>)]| -> Vec<String> {
        files.iter().map(|(name, _)| name.clone()).collect()
    };
    assert_eq!(names(&one), names(&other));
    for ((name, one), (_, other)) in one.iter().zip(&other) {
        assert!(one == other, "{name} differs");
    }
}

#[test]
fn a_stream_gives_the_same_bytes_as_a_folder_through_cuts() {
    let scene = Scene::hard();
    let (by_folder, by_stream) = (scene.path("by-folder"), scene.path("by-stream"));
    for layout in ["emb4", "linear"] {
        let convert = ["convert", "--layout", layout, "--towers", "keep", "--quiet"];
        let source = scene.source();
        scene.succeed(&[&convert[..], &[text(&source), "--out", text(&by_folder)]].concat());
        scene.fake.forget();
        for after in [2, 5, 9] {
            scene.fake.fail_after(after, "GET", "/blobs/", 1, FaultKind::Cut(123_457));
        }
        let streamed = [SOURCE, "--stream", "--out", text(&by_stream)];
        scene.succeed(&[&convert[..], &streamed].concat());
        same_conversion(&by_folder, &by_stream);
        assert!(!scene.path("huggingface").exists(), "nothing is stored");
    }
    let verified = scene.succeed(&["verify", text(&by_stream), "--source", SOURCE, "--json"]);
    assert_eq!(stdout_json(&verified)["verdict"], "proved");
    assert!(!scene.path("huggingface").exists(), "nothing is stored by verify either");
}

/// Where no connection breaks off, the requests for a weight file tile it, first to last.
#[test]
fn each_weight_file_is_read_once_in_its_order() {
    let scene = Scene::sharded();
    scene.packed();
    let requests = scene.fake.requests(Port::Storage);
    let shards: Vec<_> = scene.fake.files(SOURCE, "main");
    let mut order = Vec::new();
    for (path, bytes, sha256) in shards.iter().filter(|(path, ..)| path.ends_with(".safetensors")) {
        let mut at = 0;
        for logged in requests.iter().filter(|logged| logged.request.path.contains(sha256)) {
            let (first, last) = logged.request.range(*bytes).unwrap();
            assert_eq!(first, at, "{path}");
            at = last + 1;
        }
        assert_eq!(at, *bytes, "{path}");
        let last = requests.iter().rposition(|logged| logged.request.path.contains(sha256));
        order.push(last.unwrap());
    }
    assert!(order.len() == 3 && order.is_sorted(), "{order:?}");
}

/// A header right below the 100,000 bytes that some readers fetch at first.
#[test]
fn a_header_of_99995_bytes_is_read_like_any_other() {
    let scene = Scene::new();
    let path = scene.source().join("model.safetensors");
    let bytes = fs::read(&path).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let mut header = bytes[8..8 + length].to_vec();
    assert!(length < 99_995);
    header.resize(99_995, b' ');
    let padded = [&99_995u64.to_le_bytes()[..], &header, &bytes[8 + length..]].concat();
    fs::write(&path, padded).unwrap();
    scene.fake.publish(SOURCE, &scene.source(), Access::Public);
    let (by_folder, by_stream) = (scene.path("by-folder"), scene.path("by-stream"));
    let source = scene.source();
    scene.succeed(&["convert", text(&source), "--out", text(&by_folder), "--quiet"]);
    scene.succeed(&["convert", SOURCE, "--stream", "--out", text(&by_stream), "--quiet"]);
    same_conversion(&by_folder, &by_stream);
}

#[test]
fn bytes_that_are_not_the_listed_ones_leave_no_output() {
    let scene = Scene::new();
    scene.fake.fail_after(2, "GET", "/blobs/", 1, FaultKind::Damaged(1_000_003));
    let out = scene.path("out");
    let output = scene.run(&["convert", SOURCE, "--stream", "--out", text(&out)]);
    let talk = words(&output);
    assert!(output.status.code() != Some(0) && talk.contains("model.safetensors"), "{talk}");
    assert!(!out.exists());
}

#[test]
fn field_case_12_an_index_cannot_lead_outside() {
    let scene = Scene::sharded();
    let index = scene.source().join("model.safetensors.index.json");
    let content = fs::read_to_string(&index).unwrap();
    for evil in ["../../evil.safetensors", "/etc/passwd", "a\\\\b.safetensors"] {
        let shard = "model-00001-of-00003.safetensors";
        fs::write(&index, content.replace(shard, evil)).unwrap();
        scene.fake.publish(SOURCE, &scene.source(), Access::Public);
        for flags in [&["--stream"][..], &[]] {
            let out = scene.path("out");
            let convert = ["convert", SOURCE, "--out", text(&out)];
            let output = scene.run(&[&convert[..], flags].concat());
            let talk = words(&output);
            assert_eq!(output.status.code(), Some(2), "{talk}");
            assert!(
                talk.contains("weight_map") || talk.contains("refusing the file name"),
                "{talk}"
            );
            assert!(!out.exists());
        }
    }
}

#[test]
fn a_folder_is_no_stream() {
    let scene = Scene::new();
    let source = scene.source();
    let output = scene.run(&["convert", text(&source), "--stream", "--plan"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(words(&output).contains("--stream is for names on the Hub"));
}
