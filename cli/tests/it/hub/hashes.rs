//! `verify --hashes NAME`: the Hub's own listing proves a pack, and no weights are fetched for it.

use super::*;
use std::fs;
use w4pack_fake_hub::wire::Answer;
use w4pack_fake_hub::{FaultKind, Port};

/// The conversion of the source's folder, which knows nothing of the Hub.
fn packed(scene: &Scene, flags: &[&str]) -> PathBuf {
    let out = scene.path("packed");
    let source = scene.source();
    let convert = ["convert", text(&source), "--out", text(&out), "--quiet"];
    scene.succeed(&[&convert[..], flags].concat());
    scene.fake.forget();
    out
}

fn weights_sent(scene: &Scene) -> usize {
    scene.fake.requests(Port::Storage).iter().map(|logged| logged.sent).sum()
}

#[test]
fn the_hubs_listing_proves_a_pack_with_its_towers_and_nothing_else_is_read() {
    let scene = Scene::sharded();
    let out = packed(&scene, &["--towers", "keep"]);
    // As a published pack has them: a card of its own, and another .gitattributes.
    fs::write(out.join("README.md"), "what somebody says of this pack").unwrap();
    fs::write(out.join(".gitattributes"), "*.safetensors filter=lfs").unwrap();
    let statement = scene.path("statement.json");
    let verify = ["verify", text(&out), "--hashes", SOURCE, "--json"];
    let proved = scene.succeed(&[&verify[..], &["--write-statement", text(&statement)]].concat());
    let report = stdout_json(&proved);
    assert_eq!((&report["verdict"], &report["unaccounted"]), (&"proved".into(), &0.into()));
    assert_eq!(weights_sent(&scene), 0);
    let files = scene.fake.requests(Port::Api);
    assert!(
        files.iter().all(|logged| !logged.request.path.contains("/resolve/")),
        "a listing only"
    );
    let statement: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(statement).unwrap()).unwrap();
    let source = &statement["predicate"]["source"];
    assert_eq!((&source["name"], &source["revision"]), (&SOURCE.into(), &(*scene.commit).into()));
}

#[test]
fn what_a_text_only_pack_lacks_is_fetched_from_a_name_by_ranges() {
    let scene = Scene::sharded();
    let out = packed(&scene, &[]);
    let verify = ["verify", text(&out), "--hashes", SOURCE];
    let alone = scene.run(&verify);
    assert_eq!(alone.status.code(), Some(2), "{}", words(&alone));
    assert!(words(&alone).contains("--towers-from"), "{}", words(&alone));

    scene.succeed(&[&verify[..], &["--towers-from", SOURCE]].concat());
    let towers = w4pack_format::checkpoint::Checkpoint::open(std::sync::Arc::new(
        w4pack_format::source::FolderSource::open(&scene.source()).unwrap(),
    ));
    let towers = towers.unwrap();
    let is_tower = |name: &&str| w4pack_format::names::is_tower(name);
    let bytes = |name: &str| towers.tensor(name).unwrap().info.bytes();
    let towers: u64 = towers.names().filter(is_tower).map(bytes).sum();
    let all: u64 = scene.fake.files(SOURCE, "main").iter().map(|(_, bytes, _)| bytes).sum();
    let sent = weights_sent(&scene) as u64;
    assert!(sent >= towers && sent < towers + all / 4, "{sent} bytes for {towers} of {all}");
    assert!(!scene.path("huggingface").exists(), "nothing is stored");
}

#[test]
fn another_commit_or_a_damaged_pack_is_disproved() {
    let scene = Scene::sharded();
    let out = packed(&scene, &["--towers", "keep"]);
    let first = format!("{SOURCE}@{}", scene.commit);
    let shard = scene.source().join("model-00001-of-00003.safetensors");
    let mut content = fs::read(&shard).unwrap();
    *content.last_mut().unwrap() ^= 1;
    fs::write(&shard, content).unwrap();
    scene.fake.publish(SOURCE, &scene.source(), Access::Public);
    let newest = scene.run(&["verify", text(&out), "--hashes", SOURCE]);
    assert_eq!(newest.status.code(), Some(1), "{}", words(&newest));
    assert!(words(&newest).contains("model-00001-of-00003"), "{}", words(&newest));
    scene.succeed(&["verify", text(&out), "--hashes", &first]);

    let weights = out.join("model.safetensors");
    let mut content = fs::read(&weights).unwrap();
    let middle = content.len() / 2;
    content[middle] ^= 0x30;
    fs::write(&weights, content).unwrap();
    assert_eq!(scene.run(&["verify", text(&out), "--hashes", &first]).status.code(), Some(1));
}

#[test]
fn a_listing_that_cannot_be_had_or_used_proves_nothing() {
    let scene = Scene::sharded();
    let out = packed(&scene, &["--towers", "keep"]);
    let refused = |what: &str, flags: &[&str], said: [&str; 2]| {
        let verify = ["verify", text(&out), "--hashes", what];
        let output = scene.run(&[&verify[..], flags].concat());
        let talk = words(&output);
        assert_eq!(output.status.code(), Some(2), "{talk}");
        assert!(said.iter().all(|said| talk.contains(said)), "{talk}");
    };
    refused("tree.json", &[], ["`tree.json` is neither a file here nor a Hub name", "owner/name"]);
    refused("google/nothing", &[], ["could not look up `google/nothing`", "hint: "]);
    refused(&format!("{SOURCE}@v9"), &[], ["no such branch, tag or commit", "hint: "]);
    let asked = scene.fake.requests(Port::Api).len();
    refused(SOURCE, &["--offline"], ["this is offline", "leave out --offline"]);
    assert_eq!(scene.fake.requests(Port::Api).len(), asked, "offline opens no connection");

    // Weights that Git itself holds have no SHA-256 in a listing.
    let hash = "0".repeat(40);
    let listed = |path: &str| serde_json::json!([{"path": path, "size": 9, "oid": hash}]);
    for (path, said) in [("model.safetensors", "gives no SHA-256 of"), ("a.txt", "no weight file")]
    {
        let answer = FaultKind::Answer(Answer::json(&listed(path)));
        scene.fake.fail("GET", "/tree/", 1, answer);
        refused(SOURCE, &[], ["the Hub's file list of google/small", said]);
    }
}
