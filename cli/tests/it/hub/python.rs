//! Python's own client, and transformers, on the same Hub.

use super::*;
use std::fs;

/// Runs Python as a user of the scene's Hub; `None`, with a line that says so, without one.
fn python(scene: &Scene, arguments: &[&str], variables: &[(&str, &str)]) -> Option<String> {
    let Some(python) = std::env::var_os("W4PACK_PYTHON") else {
        eprintln!("skipped: W4PACK_PYTHON is not set, {arguments:?} is not run");
        return None;
    };
    let output = std::process::Command::new(python)
        .args(arguments)
        .env("HF_HOME", scene.path("huggingface"))
        .env("HF_ENDPOINT", scene.fake.endpoint())
        .env("HF_HUB_DISABLE_TELEMETRY", "1")
        .env("HF_HUB_DISABLE_XET", "1")
        // It gives up after 10 s otherwise, which a machine with other work may stand still.
        .env("HF_HUB_ETAG_TIMEOUT", "120")
        .env("HF_HUB_DOWNLOAD_TIMEOUT", "120")
        .env_remove("HF_HUB_OFFLINE")
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", words(&output));
    Some(String::from_utf8(output.stdout).unwrap())
}

fn script() -> String {
    format!("{}/../oracle/hub.py", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn pythons_upload_of_the_same_folder_leaves_the_same_repository() {
    let scene = Scene::new();
    let packed = scene.packed();
    scene.succeed_as_owner(&["publish", text(&packed), "somebody/ours"]);
    // The card names its repository; the folder is the same one.
    let upload = [&*script(), "upload", text(&packed), "somebody/pythons"];
    if python(&scene, &upload, &[("HF_TOKEN", TOKEN)]).is_none() {
        return;
    }
    let ours = scene.fake.files("somebody/ours", "main");
    assert!(ours.len() > 8);
    assert_eq!(scene.fake.files("somebody/pythons", "main"), ours);
    let state = scene.fake.state();
    let large = |name: &str| -> Vec<bool> {
        let commit = state.repositories[name].find("main").unwrap();
        commit.files.values().map(|entry| entry.large).collect()
    };
    assert_eq!(large("somebody/ours"), large("somebody/pythons"));
}

#[test]
fn either_finds_what_the_other_has_downloaded() {
    let scene = Scene::new();
    scene.succeed(&["inspect", SOURCE]);
    let Some(folder) = python(&scene, &[&*script(), "cached", SOURCE], &[]) else { return };
    let config = Path::new(folder.trim()).join("config.json");
    assert_eq!(fs::read(config).unwrap(), fs::read(scene.source().join("config.json")).unwrap());

    fs::remove_dir_all(scene.path("huggingface")).unwrap();
    python(&scene, &[&*script(), "download", SOURCE], &[]);
    scene.fake.forget();
    scene.succeed(&["inspect", SOURCE]);
    assert!(scene.fake.requests(w4pack_fake_hub::Port::Storage).is_empty(), "all was there");
    scene.succeed(&["inspect", SOURCE, "--offline"]);
}

#[test]
fn the_cards_lines_for_transformers_run_as_they_stand() {
    let scene = Scene::new();
    let packed = scene.packed();
    scene.succeed_as_owner(&["publish", text(&packed), "somebody/small"]);
    let card = fs::read_to_string(packed.join("README.md")).unwrap();
    let lines = card.split("```python\n").nth(1).unwrap().split("```").next().unwrap();
    let lines = lines.replace("max_new_tokens=200", "max_new_tokens=8");
    let Some(said) = python(&scene, &["-c", &lines], &[]) else { return };
    let ask = ["run", "--model", "somebody/small", "--prompt", "Why is the sky blue?"];
    let flags = ["--max-tokens", "8", "--temperature", "0", "--device", "cpu"];
    let ours = scene.succeed(&[&ask[..], &flags].concat());
    assert_eq!(said.trim(), String::from_utf8_lossy(&ours.stdout).trim());
}
