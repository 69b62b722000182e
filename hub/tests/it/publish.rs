//! Publishing: everything in one commit, or nothing.

use crate::support::*;
use std::fs;
use w4pack_fake_hub::repository::{Access, Entry};
use w4pack_fake_hub::wire::Answer;
use w4pack_fake_hub::{FakeHub, FaultKind, Port, TOKEN, Transfer};
use w4pack_hub::HubError;
use w4pack_hub::publish::{Publication, Published};

const NEW: &str = "somebody/new";

/// Publishes the scene's folder under a new name.
fn publish(scene: &Scene) -> Result<Published, HubError> {
    scene.hub_as(Some(TOKEN)).publish(&publication(scene.folder.path(), NEW))
}

/// What the repository has of the publication.
fn there(fake: &FakeHub, branch: &str) -> Vec<(String, u64, String)> {
    let mut files = fake.files(NEW, branch);
    files.retain(|(path, ..)| path != ".gitattributes");
    files
}

fn sent(scene: &Scene) -> Vec<(String, u64, String)> {
    let publication = publication(scene.folder.path(), NEW);
    let file =
        |file: &w4pack_hub::publish::Outgoing| (file.path.clone(), file.bytes, file.sha256.clone());
    let mut files: Vec<_> = publication.files.iter().map(file).collect();
    files.sort();
    files
}

fn puts(scene: &Scene) -> usize {
    let requests = scene.fake.requests(Port::Storage);
    requests.iter().filter(|logged| logged.request.method == "PUT").count()
}

fn without_chunk_store(scene: &Scene) -> Publication {
    Publication { without_chunk_store: true, ..publication(scene.folder.path(), NEW) }
}

#[test]
fn a_folder_becomes_one_commit_and_publishing_again_sends_nothing() {
    let part = 1_000_000;
    for (transfer, times) in [(Transfer::Basic, 1), (Transfer::Multipart(part), 4)] {
        let scene = Scene::new();
        scene.fake.takes_by(transfer);
        let published = publish(&scene).unwrap();
        assert_eq!(there(&scene.fake, "main"), sent(&scene));
        assert!(published.created && published.transfer == "LFS");
        assert_eq!((published.sent.len(), published.left), (4, vec![".gitattributes".to_string()]));
        assert!(published.url.contains(&published.commit), "{}", published.url);
        assert_eq!(puts(&scene), times);
        let commits = scene.fake.state().repositories[NEW].commits.len();
        assert_eq!(commits, 2, "the one that made it, and ours");
        // The large file never lies in the commit itself, and no token goes to the storage.
        let api = scene.fake.requests(Port::Api);
        let commit = api.iter().find(|logged| logged.request.path.contains("/commit/")).unwrap();
        assert!(commit.request.body.len() < 2000, "{}", commit.request.body.len());
        for logged in scene.fake.requests(Port::Storage) {
            assert!(!format!("{:?}", logged.request.headers).contains(TOKEN));
        }

        scene.fake.forget();
        let again = publish(&scene).unwrap();
        assert!(!again.created && puts(&scene) == 0);
        assert_eq!((again.sent.len(), again.unchanged.len(), again.transfer), (0, 4, "none"));
        assert_eq!(again.commit, published.commit, "there is nothing to commit");
    }
}

#[test]
fn a_fault_on_the_second_part_is_sent_again_and_hashed_once() {
    let scene = Scene::new();
    scene.fake.takes_by(Transfer::Multipart(1_000_000));
    let fault = Answer::new(500, "try again");
    scene.fake.fail_after(1, "PUT", "/upload/", 1, FaultKind::Answer(fault));
    publish(&scene).unwrap();
    assert_eq!(there(&scene.fake, "main"), sent(&scene));
    assert_eq!(puts(&scene), 5);
}

#[test]
fn a_publication_that_broke_off_is_taken_up() {
    let scene = Scene::new();
    let refusal = FaultKind::Answer(Answer::error(400, "", "not today"));
    scene.fake.fail("POST", "/commit/", 1, refusal);
    assert!(matches!(publish(&scene), Err(HubError::Status { status: 400, .. })));
    assert!(there(&scene.fake, "main").is_empty());
    scene.fake.forget();
    publish(&scene).unwrap();
    assert_eq!(puts(&scene), 0, "the large file is there already");
    assert_eq!(there(&scene.fake, "main"), sent(&scene));
}

#[test]
fn a_head_that_moved_is_not_followed() {
    let scene = Scene::new();
    publish(&scene).unwrap();
    fs::write(scene.folder.path().join("config.json"), "{}").unwrap();
    scene.fake.fail("POST", "/commit/", 1, FaultKind::Overtaken(NEW.into()));
    let error = publish(&scene).unwrap_err();
    assert!(matches!(error, HubError::Moved { .. }), "{error}");
    assert!(error.hint().unwrap().contains("--pr"));
    assert_ne!(there(&scene.fake, "main"), sent(&scene));
    // Some servers say so with 409.
    scene.fake.fail("POST", "/commit/", 1, FaultKind::Answer(Answer::error(409, "", "conflict")));
    assert!(matches!(publish(&scene), Err(HubError::Moved { .. })));
}

#[test]
fn a_request_that_is_too_large_is_named() {
    let scene = Scene::new();
    for (method, holds) in [("POST", "/commit/"), ("PUT", "/upload/")] {
        scene.fake.fail(method, holds, 1, FaultKind::Answer(Answer::new(413, "")));
        scene.fake.state().objects.clear();
        let error = publish(&scene).unwrap_err();
        assert!(matches!(error, HubError::TooLarge { .. }), "{error}");
        assert!(error.hint().unwrap().contains("hf upload"));
    }
}

#[test]
fn a_commit_whose_answer_is_lost_is_found() {
    let scene = Scene::new();
    scene.fake.fail("POST", "/commit/", 1, FaultKind::Cut(0));
    let published = publish(&scene).unwrap();
    let made = scene.fake.requests(Port::Api);
    assert_eq!(made.iter().filter(|l| l.request.path.contains("/commit/")).count(), 1);
    assert_eq!(there(&scene.fake, &published.commit), sent(&scene));
}

#[test]
fn a_file_that_changed_after_the_proof_stops_everything() {
    for path in ["model.safetensors", "config.json"] {
        let scene = Scene::new();
        let publication = publication(scene.folder.path(), NEW);
        let file = scene.folder.path().join(path);
        let mut content = fs::read(&file).unwrap();
        content[7] ^= 1;
        fs::write(&file, content).unwrap();
        let error = scene.hub_as(Some(TOKEN)).publish(&publication).unwrap_err();
        assert!(
            matches!(&error, HubError::Changed { path: named, .. } if named == path),
            "{error}"
        );
        assert!(there(&scene.fake, "main").is_empty());
    }
}

#[test]
fn large_files_never_lie_in_the_commit_whatever_the_server_says() {
    let scene = Scene::new();
    let file = scene.folder.path().join("config.json");
    fs::write(&file, vec![b' '; 6 << 20]).unwrap();
    scene.fake.state().large_from_now_on(usize::MAX);
    publish(&scene).unwrap();
    assert_eq!(puts(&scene), 2);
    let state = scene.fake.state();
    assert!(state.repositories[NEW].find("main").unwrap().files["config.json"].large);
}

#[test]
fn weights_that_would_stay_beside_ours_are_refused() {
    let scene = Scene::new();
    let entry = Entry { content: std::sync::Arc::new(noise(10)), large: true };
    let files = [("model-00001-of-00002.safetensors".to_string(), entry)].into();
    scene.fake.commit(NEW, files, Access::Public);
    let error = publish(&scene).unwrap_err();
    assert!(matches!(error, HubError::Leftover { .. }), "{error}");
    assert_eq!(puts(&scene), 0);
}

#[test]
fn what_the_hub_holds_afterwards_is_compared() {
    let scene = Scene::new();
    scene.fake.fail("GET", "/config.json", 1, FaultKind::Damaged(2));
    let error = publish(&scene).unwrap_err();
    assert!(matches!(&error, HubError::ReadBack { file, .. } if file == "config.json"), "{error}");
    assert!(!error.is_input());
}

#[test]
fn pull_requests_and_private_repositories() {
    let scene = Scene::new();
    let hub = scene.hub_as(Some(TOKEN));
    let private = Publication { private: true, ..without_chunk_store(&scene) };
    hub.publish(&private).unwrap();
    assert!(scene.fake.state().repositories[NEW].access == Access::Private);

    fs::write(scene.folder.path().join("config.json"), "{\"a\": 1}").unwrap();
    let request = Publication { pull_request: true, ..without_chunk_store(&scene) };
    let published = hub.publish(&request).unwrap();
    assert!(published.url.ends_with("/discussions/1"), "{}", published.url);
    assert_eq!(there(&scene.fake, "refs/pr/1"), sent(&scene));
    assert_ne!(there(&scene.fake, "main"), sent(&scene));

    // A public repository does not become private by a flag.
    let mut private = private;
    private.name = name();
    assert!(matches!(hub.publish(&private), Err(HubError::Forbidden { .. })));
}

#[test]
fn nobody_publishes_without_a_token() {
    let scene = Scene::new();
    let error = scene.hub().publish(&publication(scene.folder.path(), NEW)).unwrap_err();
    assert!(matches!(error, HubError::NoToken { .. }), "{error}");
    assert!(scene.fake.requests(Port::Api).is_empty());
}
