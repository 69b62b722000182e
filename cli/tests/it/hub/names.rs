//! convert, verify, run, inspect: a name where a folder may stand.

use super::*;
use std::fs;
use w4pack_fake_hub::Port;

#[test]
fn a_model_is_converted_proved_looked_through_and_asked_by_its_name() {
    let scene = Scene::new();
    let converted = scene.succeed(&["convert", SOURCE, "--json"]);
    let out = scene.path("home/google--small-w4a16-emb4");
    assert_eq!(stdout_json(&converted)["out"], text(&out.canonicalize().unwrap()));
    let manifest = fs::read_to_string(out.join("w4pack/manifest.json")).unwrap();
    let manifest: serde_json::Value = serde_json::from_str(&manifest).unwrap();
    assert_eq!(manifest["source"]["name"], SOURCE);
    assert_eq!(manifest["source"]["revision"], *scene.commit);

    let at = format!("{SOURCE}@{}", scene.commit);
    let verified = scene.succeed(&["verify", text(&out), "--source", &at, "--json"]);
    assert_eq!(stdout_json(&verified)["verdict"], "proved");
    let inspected = scene.succeed(&["inspect", SOURCE, "--json"]);
    assert!(stdout_json(&inspected)["dense"]["groups"].as_u64().unwrap() > 1000);

    scene.fake.publish("somebody/packed", &out, Access::Public);
    let ask = [
        "--prompt",
        "hello",
        "--max-tokens",
        "4",
        "--temperature",
        "0",
        "--json",
        "--device",
        "cpu",
    ];
    let by_name = scene.succeed(&[&["run", "--model", "somebody/packed"], &ask[..]].concat());
    let by_path = scene.succeed(&[&["run", "--model", text(&out)], &ask[..]].concat());
    assert_eq!(stdout_json(&by_name)["tokens"], stdout_json(&by_path)["tokens"]);

    // The second time nothing is fetched.
    scene.fake.forget();
    scene.succeed(&["verify", "somebody/packed", "--source", SOURCE]);
    assert!(scene.fake.requests(Port::Storage).is_empty());
}

/// Headers, what its probe of a second reads of the weights, and what is asked for ahead of that.
#[test]
fn a_plan_of_a_name_stores_nothing() {
    let scene = Scene::sharded();
    let plan = scene.succeed(&["convert", SOURCE, "--plan", "--json"]);
    assert!(stdout_json(&plan)["output_bytes"].as_u64().unwrap() > 1_000_000);
    let sent: usize = scene.fake.requests(Port::Storage).iter().map(|logged| logged.sent).sum();
    let all: u64 = scene.fake.files(SOURCE, "main").iter().map(|(_, bytes, _)| bytes).sum();
    assert!(sent as u64 <= 2 * all, "{sent} of {all} bytes for a plan");
    assert!(!scene.path("huggingface").exists(), "nothing is stored");
}

#[test]
fn a_revision_is_a_branch_or_a_commit_and_is_resolved_once() {
    let scene = Scene::new();
    let first = scene.commit.clone();
    fs::write(scene.source().join("NOTICE"), "a second commit").unwrap();
    let second = scene.fake.publish(SOURCE, &scene.source(), Access::Public);
    for (flags, commit) in [(&[][..], &second), (&["--revision", &first], &first)] {
        let out = scene.path(commit);
        let convert = ["convert", SOURCE, "--out", text(&out), "--quiet"];
        scene.succeed(&[&convert[..], flags].concat());
        let manifest = fs::read_to_string(out.join("w4pack/manifest.json")).unwrap();
        assert!(manifest.contains(commit.as_str()));
        assert_eq!(out.join("NOTICE").exists(), *commit == second);
    }
    let both = format!("{SOURCE}@main");
    let talk = words(&scene.run(&["convert", &both, "--revision", &first, "--plan"]));
    assert!(talk.contains("disagree"), "{talk}");
}

#[test]
fn restore_takes_only_the_towers_bytes_from_a_name() {
    let scene = Scene::sharded();
    let out = scene.packed();
    scene.fake.forget();
    let back = scene.path("back");
    let restore = ["restore", text(&out), "--out", text(&back), "--towers-from", SOURCE];
    scene.succeed(&restore);
    for (name, content) in files(&scene.source()) {
        if name.ends_with(".safetensors") {
            assert!(fs::read(back.join(&name)).unwrap() == content, "{name}");
        }
    }
    let asked = scene.fake.requests(Port::Storage);
    assert!(!asked.is_empty() && asked.iter().all(|l| l.request.header("range").is_some()));
}
