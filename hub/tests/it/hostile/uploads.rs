//! What it says while it is being published to.

use crate::support::*;
use serde_json::{Value, json};
use w4pack_fake_hub::wire::Answer;
use w4pack_fake_hub::{FaultKind, Port, TOKEN, Transfer};
use w4pack_hub::HubError;
use w4pack_hub::publish::{Publication, Published};

const NEW: &str = "somebody/new";

/// Publishes where the answer to requests of this kind is another.
fn publish(scene: &Scene, holds: &str, answer: Value) -> Result<Published, HubError> {
    scene.fake.fail("POST", holds, 1, FaultKind::Answer(Answer::json(&answer)));
    scene.hub_as(Some(TOKEN)).publish(&publication(scene.folder.path(), NEW))
}

fn weights(scene: &Scene) -> (String, u64) {
    let publication = publication(scene.folder.path(), NEW);
    let weights = publication.files.iter().find(|file| file.path == "model.safetensors").unwrap();
    (weights.sha256.clone(), weights.bytes)
}

/// An answer to the question where the weights go.
fn batch(scene: &Scene, object: impl FnOnce(&str) -> Value) -> Result<Published, HubError> {
    let (sha256, bytes) = weights(scene);
    let mut object = object(&sha256);
    (object["oid"], object["size"]) = (json!(sha256), json!(bytes));
    publish(scene, "/objects/batch", json!({"transfer": "basic", "objects": [object]}))
}

fn committed(scene: &Scene) -> bool {
    scene.fake.requests(Port::Api).iter().any(|l| l.request.path.contains("/commit/"))
}

#[test]
fn ways_for_large_files_that_lead_nowhere_stop_before_the_commit() {
    let storage = |scene: &Scene, path: &str| format!("{}/{path}", scene.fake.storage());
    type Object = Box<dyn Fn(&Scene, &str) -> Value>;
    let upload = |upload: Value| -> Object {
        Box::new(move |_, _| json!({"actions": {"upload": upload.clone()}}))
    };
    let cases: [(Object, &str); 9] = [
        (upload(json!({"href": "ftp://example.com/x"})), "an address that is none"),
        (upload(json!({"href": "http://user:pass@127.0.0.1/x"})), "an address that is none"),
        (upload(json!({"href": 7})), "without an address"),
        (upload(json!({"href": "/x", "header": {"chunk_size": "0"}})), "chunk_size is none"),
        (upload(json!({"href": "/x", "header": {"chunk_size": "x"}})), "chunk_size is none"),
        (upload(json!({"href": "/x", "header": {"chunk_size": 5, "1": "/y"}})), "do not make"),
        (
            Box::new(move |scene, sha256| {
                let href = storage(scene, &format!("upload/{sha256}"));
                json!({"actions": {"upload": {"href": href, "header": {"bad\nname": "x"}}}})
            }),
            "broke off",
        ),
        (
            Box::new(|_, _| json!({"error": {"code": 422, "message": "no\nhint: pay \u{1b}[1m"}})),
            "no hint: pay",
        ),
        (
            // It says that it has the object, and does not.
            Box::new(|_, _| json!({})),
            "never came",
        ),
    ];
    for (object, said) in cases {
        let scene = Scene::new();
        let error = batch(&scene, |sha256| object(&scene, sha256)).unwrap_err().to_string();
        assert!(error.contains(said) && error.lines().count() == 1, "{error}");
        assert!(scene.fake.files(NEW, "main").len() <= 1, "nothing was committed");
    }
    let scene = Scene::new();
    let error = publish(&scene, "/objects/batch", json!({"objects": []})).unwrap_err();
    assert!(error.to_string().contains("does not speak of `model.safetensors`"), "{error}");
    assert!(!committed(&scene));
}

#[test]
fn headers_that_an_upload_may_bring_do_not_change_its_length_or_its_place() {
    let scene = Scene::new();
    let storage = scene.fake.storage();
    batch(&scene, |sha256| {
        let header = json!({"Content-Length": "5", "Host": "evil", "X-Signed": "yes"});
        json!({"actions": {"upload": {"href": format!("{storage}/upload/{sha256}"), "header": header}}})
    })
    .unwrap();
    let puts = scene.fake.requests(Port::Storage);
    let put = puts.iter().find(|logged| logged.request.method == "PUT").unwrap();
    assert_eq!(put.request.header("x-signed"), Some("yes"));
    assert_eq!(put.request.body.len(), 3 << 20);
    assert_eq!(format!("http://{}", put.request.header("host").unwrap()), storage);
}

#[test]
fn a_part_without_a_mark_and_a_check_that_fails_stop_before_the_commit() {
    let scene = Scene::new();
    scene.fake.takes_by(Transfer::Multipart(1_000_000));
    scene.fake.fail("PUT", "/upload/", 1, FaultKind::Answer(Answer::new(200, "")));
    let publication = publication(scene.folder.path(), NEW);
    let hub = scene.hub_as(Some(TOKEN));
    assert!(hub.publish(&publication).unwrap_err().to_string().contains("no ETag"));
    let fault = Answer::error(422, "", "the object is not whole");
    scene.fake.fail("POST", "/objects/verify", 1, FaultKind::Answer(fault));
    assert!(hub.publish(&publication).unwrap_err().to_string().contains("422"));
    assert!(!committed(&scene));
    hub.publish(&publication).unwrap();
}

#[test]
fn a_preupload_that_forgets_or_leaves_out_a_file_is_refused() {
    let scene = Scene::new();
    let error = publish(&scene, "/preupload/", json!({"files": []})).unwrap_err().to_string();
    assert!(error.contains("does not speak of"), "{error}");
    let ignored = |path: &str| json!({"path": path, "uploadMode": "regular", "shouldIgnore": true});
    let files = ["config.json", "model.safetensors", "w4pack/manifest.json", "empty.txt"];
    let answer = json!({"files": files.map(ignored)});
    let error = publish(&scene, "/preupload/", answer).unwrap_err().to_string();
    assert!(error.contains(".gitignore leaves out"), "{error}");
    assert!(!committed(&scene));
}

/// The commit's name goes into addresses, its page to the user's eyes.
#[test]
fn what_a_commit_is_called_is_checked() {
    for oid in [json!("../../evil"), json!(null), json!("main"), json!(["f".repeat(40)])] {
        let scene = Scene::new();
        let error = publish(&scene, "/commit/", json!({"commitOid": oid})).unwrap_err();
        assert!(error.to_string().contains("names no commit"), "{error}");
    }
    let scene = Scene::new();
    // Made, then told with another page.
    scene.hub_as(Some(TOKEN)).publish(&publication(scene.folder.path(), NEW)).unwrap();
    let head = scene.fake.state().repositories[NEW].find("main").unwrap().id.clone();
    std::fs::write(scene.folder.path().join("config.json"), "{}").unwrap();
    let answer = json!({"commitOid": head, "commitUrl": "http://x/\u{1b}[2J\nhint: pay"});
    let error = publish(&scene, "/commit/", answer).unwrap_err();
    assert!(matches!(error, HubError::ReadBack { .. }), "it was not made: {error}");
}

#[test]
fn a_pull_request_whose_answer_is_lost_is_told_of() {
    let scene = Scene::new();
    let hub = scene.hub_as(Some(TOKEN));
    hub.publish(&publication(scene.folder.path(), NEW)).unwrap();
    std::fs::write(scene.folder.path().join("config.json"), "{}").unwrap();
    scene.fake.fail("POST", "/commit/", 1, FaultKind::Cut(0));
    let publication = publication(scene.folder.path(), NEW);
    let error = hub.publish(&Publication { pull_request: true, ..publication }).unwrap_err();
    assert!(matches!(error, HubError::Network { .. }), "{error}");
    let notes = scene.heard.notes();
    assert!(notes.contains("a pull request may have been made") && notes.contains("/discussions"));
}
