//! What must not depend on threads, place or time: the bytes, and the memory.

use crate::support::*;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Anonymous memory that a conversion may take, in KiB.
const MEMORY_LIMIT: u64 = 300 << 10;

/// All files of an output by path; the manifest without its time.
fn content(out: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    for folder in ["", "w4pack"] {
        for entry in fs::read_dir(out.join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.is_file() {
                let name = path.strip_prefix(out).unwrap().to_str().unwrap().to_string();
                files.insert(name, fs::read(path).unwrap());
            }
        }
    }
    let mut manifest: Value = serde_json::from_slice(&files["w4pack/manifest.json"]).unwrap();
    manifest["created"] = Value::Null;
    files.insert("w4pack/manifest.json".into(), manifest.to_string().into_bytes());
    files
}

#[test]
fn the_same_input_gives_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("source");
    let hard = ["--hard", "--all-kv", "--signed-zeros", "random"];
    succeed(&[&["fixture", "tiny", "--out", text(&source), "--quiet"][..], &hard].concat());
    let memory = Some(Path::new("/dev/shm")).filter(|disk| disk.is_dir());
    let in_memory = memory.map(|disk| tempfile::tempdir_in(disk).unwrap());
    let mut first = None;
    for threads in ["1", "2", "7", "2"] {
        let places = [Some(folder.path()), in_memory.as_ref().map(|disk| disk.path())];
        for place in places.into_iter().flatten() {
            let out = place.join(format!("out-{threads}"));
            let convert = ["convert", text(&source), "--out", text(&out), "--quiet"];
            succeed(&[&convert[..], &["--threads", threads]].concat());
            let found = content(&out);
            let first = first.get_or_insert_with(|| found.clone());
            assert!(first.keys().eq(found.keys()));
            for (name, bytes) in &found {
                assert!(
                    first[name] == *bytes,
                    "{name} in {} with {threads} threads",
                    place.display()
                );
            }
        }
    }
}

/// Peak of RssAnon in KiB, asked every `pause`.
fn peak_memory(arguments: &[&str], pause: Duration) -> u64 {
    let mut child = Command::new(assert_cmd::cargo::cargo_bin!("w4pack"))
        .args(arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let status = format!("/proc/{}/status", child.id());
    let mut peak = 0;
    loop {
        let text = fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        let kibibytes = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok());
        peak = peak.max(kibibytes.unwrap_or(0));
        if let Some(ended) = child.try_wait().unwrap() {
            assert!(ended.success(), "{arguments:?}");
            return peak;
        }
        std::thread::sleep(pause);
    }
}

/// What a run holds beside weights, keys and values: work space, tokenizer, the program itself.
const RUN_LIMIT: u64 = 200 << 10;

/// Resident memory while a model answers is what the plan on stderr says, and no copy of the weights
/// is made on the way. `W4PACK_MEMORY_MODEL` names a larger model than the tiny one.
#[test]
fn a_run_holds_the_weights_once_and_little_more() {
    let folder = tempfile::tempdir().unwrap();
    let model = match std::env::var_os("W4PACK_MEMORY_MODEL") {
        Some(model) => PathBuf::from(model),
        None => {
            let model = folder.path().join("packed");
            succeed(&["fixture", "tiny", "--packed", "--out", text(&model), "--quiet"]);
            model
        }
    };
    let file = fs::metadata(model.join("model.safetensors")).unwrap().len() >> 10;
    let header = fs::read(model.join("config.json")).unwrap();
    let config: Value = serde_json::from_slice(&header).unwrap();
    let text_config = config.get("text_config").unwrap_or(&config);
    let table = |divisor: u64| {
        let number = |key: &str| text_config[key].as_u64().unwrap();
        let width = number("num_hidden_layers") * number("hidden_size_per_layer_input");
        // Codes of 4 bits and an f16 step for every 32.
        number("vocab_size_per_layer_input") * width * 9 / 16 / divisor
    };
    let ask = ["run", "--model", text(&model), "--device", "cpu", "--tokens", "2,120,121"];
    let ask = [&ask[..], &["--max-tokens", "40", "--ignore-eos", "--quiet"]].concat();
    let pause = Duration::from_millis(2);
    let whole = peak_memory(&ask, pause);
    println!("RssAnon at most {whole} KiB, the file has {file} KiB");
    assert!(whole <= file + RUN_LIMIT, "{whole} KiB");
    let without = peak_memory(&[&ask[..], &["--ple", "disk"]].concat(), pause);
    println!("with --ple disk at most {without} KiB, the table has {} KiB", table(1024));
    assert!(without <= file - table(1024) + RUN_LIMIT, "{without} KiB");
}

/// `W4PACK_MEMORY_SOURCE` names a larger source than the tiny one; `.ci/long` takes a full-size one.
#[test]
fn memory_stays_small_whatever_the_number_of_threads() {
    let folder = tempfile::tempdir().unwrap();
    let (source, pause) = match std::env::var_os("W4PACK_MEMORY_SOURCE") {
        Some(source) => (PathBuf::from(source), Duration::from_millis(10)),
        None => {
            let source = folder.path().join("source");
            let hard = ["--hard", "--all-kv", "--signed-zeros", "random"];
            let fixture = ["fixture", "tiny", "--out", text(&source), "--quiet"];
            succeed(&[&fixture[..], &hard].concat());
            (source, Duration::from_millis(1))
        }
    };
    for threads in ["1", "2", "16", "128"] {
        let out = folder.path().join("out");
        let convert = ["convert", text(&source), "--out", text(&out), "--threads", threads];
        let peak = peak_memory(&convert, pause);
        println!("{threads} threads: RssAnon at most {peak} KiB");
        assert!(peak <= MEMORY_LIMIT, "{threads} threads: {peak} KiB");
        let back = folder.path().join("back");
        let restore = ["restore", text(&out), "--out", text(&back), "--threads", threads];
        let peak = peak_memory(&restore, pause);
        println!("{threads} threads, restoring: RssAnon at most {peak} KiB");
        assert!(peak <= MEMORY_LIMIT, "restoring with {threads} threads: {peak} KiB");
        fs::remove_dir_all(back).unwrap();
    }
}

/// The plan is made without touching a file, and the result is what it said.
#[test]
fn the_plan_foretells_every_tensor_and_every_size() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let (source, out) = (path("source"), path("deep/out"));
    let all_kv = ["fixture", "tiny", "--all-kv", "--out", text(&source), "--quiet"];
    succeed(&all_kv);
    let convert = ["convert", text(&source), "--out", text(&out), "--json"];
    let plan = stdout_json(&succeed(&[&convert[..], &["--plan"]].concat()));
    assert!(!path("deep").exists());
    assert_eq!(plan["destination"], text(&out));
    for number in ["memory_bytes", "free_bytes"] {
        assert!(plan[number].as_u64().unwrap() > 0, "{number}");
    }
    assert!(plan["seconds"].as_f64().unwrap() > 0.0);
    assert!(plan["probe"]["gigabytes_per_second"].as_f64().unwrap() > 0.0);
    let report = stdout_json(&succeed(&convert));
    let tensors = plan["tensors"].as_array().unwrap();
    let becoming = |what: &str| tensors.iter().filter(|tensor| tensor["becomes"] == what).count();
    assert_eq!(becoming("packed"), report["packed"].as_array().unwrap().len());
    assert_eq!(becoming("copied"), report["copied_tensors"].as_array().unwrap().len());
    assert_eq!(becoming("left-out"), report["left_out"].as_array().unwrap().len());
    assert_eq!(becoming("packed") + becoming("copied") + becoming("left-out"), tensors.len());
    let weights = fs::metadata(out.join("model.safetensors")).unwrap().len();
    assert_eq!(plan["weight_bytes"].as_u64().unwrap(), weights);
    let peak = peak_memory(&convert, Duration::from_millis(1)) << 10;
    assert!(peak <= plan["memory_bytes"].as_u64().unwrap(), "{peak} of {}", plan["memory_bytes"]);
    let people = succeed(&["convert", text(&source), "--out", text(&out), "--plan"]);
    let people = String::from_utf8(people.stdout).unwrap();
    assert!(people.contains(text(&out)) && people.contains("probe"), "{people}");
}
