//! What a Hub says is there.

use crate::support::*;
use serde_json::json;
use w4pack_fake_hub::wire::Answer;
use w4pack_fake_hub::{FaultKind, Port};
use w4pack_hub::HubError;

#[test]
fn a_listing_of_several_pages_is_read_to_its_end() {
    let scene = Scene::new();
    scene.fake.lists_by(2);
    let snapshot = scene.hub().resolve(&name(), "main").unwrap();
    let paths: Vec<&str> = snapshot.files.iter().map(|file| file.path.as_str()).collect();
    let all =
        [".gitattributes", "config.json", "empty.txt", "model.safetensors", "w4pack/manifest.json"];
    assert_eq!(paths, all);
    assert_eq!(snapshot.commit, scene.commit);
    assert_eq!(scene.fake.requests(Port::Api).len(), 4);
}

#[test]
fn field_case_12_a_listing_cannot_lead_outside() {
    for path in ["../evil", "/etc/passwd", "a/../../evil", "a\\b", "", "a//b"] {
        let scene = Scene::new();
        let listed = json!([{"type": "file", "path": path, "size": 1, "oid": "0".repeat(40)}]);
        scene.fake.fail("GET", "/tree/", 1, FaultKind::Answer(Answer::json(&listed)));
        let error = scene.hub().folder(&name(), "main").unwrap_err();
        assert!(matches!(error, HubError::Answer { .. }), "{path}: {error}");
    }
}

#[test]
fn answers_that_are_none_are_named() {
    let hash = "0".repeat(40);
    let twice = json!([
        {"type": "file", "path": "a", "size": 1, "oid": hash},
        {"type": "file", "path": "a", "size": 1, "oid": hash},
    ]);
    let answers = [
        ("/revision/", Answer::new(200, "<html>"), "not JSON"),
        ("/revision/", Answer::json(&json!({"sha": "main"})), "no commit"),
        ("/tree/", Answer::json(&json!({"error": "x"})), "no list"),
        ("/tree/", Answer::json(&json!([{"type": "file", "path": "a"}])), "has the line"),
        ("/tree/", Answer::json(&twice), "twice"),
    ];
    for (holds, answer, said) in answers {
        let scene = Scene::new();
        scene.fake.fail("GET", holds, 1, FaultKind::Answer(answer));
        let error = scene.hub().folder(&name(), "main").unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
}
