//! A server that offers its chunk store. The transfer itself cannot be had on loopback: what is shown
//! is the way there, and that nothing else happens where it fails.

#![cfg(feature = "chunk-store")]

use crate::support::*;
use serde_json::json;
use w4pack_fake_hub::wire::Answer;
use w4pack_fake_hub::{FaultKind, Port, TOKEN, Transfer};
use w4pack_hub::HubError;
use w4pack_hub::publish::Publication;

const NEW: &str = "somebody/new";

#[test]
fn where_it_is_offered_it_is_taken_and_where_it_fails_nothing_is_committed() {
    let scene = Scene::new();
    scene.fake.takes_by(Transfer::ChunkStore);
    let publication = publication(scene.folder.path(), NEW);
    let error = scene.hub_as(Some(TOKEN)).publish(&publication).unwrap_err();
    assert!(matches!(error, HubError::ChunkStore { .. }), "{error}");
    assert!(!error.to_string().contains(TOKEN), "{error}");
    let requests = scene.fake.requests(Port::Api);
    let asked = |holds: &str| requests.iter().any(|l| l.request.path.contains(holds));
    assert!(asked("/xet-write-token/"), "the store's door was knocked at");
    assert!(!asked("/commit/"), "and nothing was committed");
    assert_eq!(scene.fake.files(NEW, "main").len(), 1);

    // The LFS protocol goes on where it is asked for.
    let publication = Publication { without_chunk_store: true, ..publication };
    let published = scene.hub_as(Some(TOKEN)).publish(&publication).unwrap();
    assert_eq!(published.transfer, "LFS");
}

/// The Hub answers 412 to a commit whose parent is no longer the head. hf-hub has no word for it. For
/// once the server has it take the files into the commit, so that it comes that far without a store.
#[test]
fn a_head_that_moved_is_named_there_too() {
    let scene = Scene::new();
    scene.fake.takes_by(Transfer::ChunkStore);
    let publication = publication(scene.folder.path(), NEW);
    let inline = |path: &str| json!({"path": path, "uploadMode": "regular", "shouldIgnore": false});
    let files: Vec<_> = publication.files.iter().map(|file| inline(&file.path)).collect();
    let answer = FaultKind::Answer(Answer::json(&json!({"files": files})));
    scene.fake.fail_after(1, "POST", "/preupload/", 1, answer);
    scene.fake.fail("POST", "/commit/", 1, FaultKind::Overtaken(NEW.into()));
    let error = scene.hub_as(Some(TOKEN)).publish(&publication).unwrap_err();
    assert!(matches!(error, HubError::Moved { .. }), "{error}");
}
