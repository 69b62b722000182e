//! What it says is there.

use crate::support::*;
use serde_json::{Value, json};
use w4pack_fake_hub::wire::Answer;
use w4pack_fake_hub::{FaultKind, Port};
use w4pack_hub::HubError;

fn file(path: &str, bytes: u64) -> Value {
    json!({"type": "file", "path": path, "size": bytes, "oid": "0".repeat(40)})
}

/// What a fetch ends with whose list of files is this.
fn error_of(list: &Value) -> HubError {
    let scene = Scene::new();
    scene.fake.fail("GET", "/tree/", 1, FaultKind::Answer(Answer::json(list)));
    scene.hub().folder(&name(), "main").unwrap_err()
}

#[test]
fn names_that_could_steer_a_terminal_or_forge_a_line_are_refused() {
    for path in ["a\nerror: forged", "\u{1b}[2Jx", "a\0b", "a\u{85}b", "tab\there"] {
        let error = error_of(&json!([file(path, 1)]));
        assert!(matches!(error, HubError::Answer { .. }), "{path:?}: {error}");
        assert_eq!(error.to_string().lines().count(), 1, "{error}");
    }
    let long = "x".repeat(100_000);
    let error = error_of(&json!([{"path": 7, "size": long}])).to_string();
    assert!(error.len() < 1000 && error.contains("`path` is no text"), "{error}");
}

#[test]
fn sizes_that_no_file_has_are_refused() {
    let sums = [file("a", u64::MAX), file("b", 1 << 63), json!({"path": "a", "size": -1})];
    for entry in sums.into_iter().chain([json!({"path": "a", "size": 1.5})]) {
        let error = error_of(&json!([entry])).to_string();
        assert!(error.contains("`size` is no size"), "{error}");
    }
    let mut two = file("a", 7);
    two["lfs"] = json!({"oid": "1".repeat(64), "size": 8});
    assert!(error_of(&json!([two])).to_string().contains("`size` and `lfs.size` differ"));
    two["lfs"] = json!({"oid": "short", "size": 7});
    assert!(error_of(&json!([two])).to_string().contains("`lfs.oid` is no hash"));
}

/// Small files are read whole, so that memory is taken for what the list says.
#[test]
fn a_file_to_be_read_whole_may_not_be_huge() {
    let scene = Scene::new();
    let listed = json!([file("config.json", 1 << 45)]);
    scene.fake.fail("GET", "/tree/", 1, FaultKind::Answer(Answer::json(&listed)));
    let source = scene.hub().open(&name(), "main").unwrap();
    let error = source.read_file("config.json").unwrap_err().to_string();
    assert!(error.contains("config.json") && error.contains("35184372088832 bytes"), "{error}");
}

#[test]
fn a_list_without_an_end_is_left() {
    let here = |scene: &Scene| format!("{}/api/models/{NAME}/tree/x", scene.fake.endpoint());
    // Folders only, nothing at all, and the same page for ever.
    let folders = json!([{"type": "directory", "path": "a"}]);
    for page in [&folders, &json!([]), &json!([file("a", 1)])] {
        let scene = Scene::new();
        let link = format!("<{}>; rel=\"next\"", here(&scene));
        let answer = Answer::json(page).header("Link", link);
        scene.fake.fail("GET", "/tree/", usize::MAX, FaultKind::Answer(answer));
        let error = scene.hub().folder(&name(), "main").unwrap_err();
        assert!(matches!(error, HubError::Answer { .. }), "{error}");
        assert!(scene.fake.requests(Port::Api).len() <= 1001);
    }
}

#[test]
fn the_next_page_may_be_a_path_and_none_is_an_address_of_another_kind() {
    let scene = Scene::new();
    let path = format!("/api/models/{NAME}/tree/{}?recursive=true&cursor=1", scene.commit);
    let first = json!([file("zzz", 0)]);
    let next = |to: &str| {
        let link = format!("<{to}>; rel=\"next\"");
        FaultKind::Answer(Answer::json(&first).header("Link", link))
    };
    scene.fake.fail("GET", "/tree/", 1, next(&path));
    let files = scene.hub().resolve(&name(), "main").unwrap().files;
    assert_eq!(files.len(), 5, "one of the first page, four of the second");
    for to in ["file:///etc/passwd", "javascript:alert(1)", "http://user@127.0.0.1/", "x"] {
        scene.fake.fail("GET", "/tree/", 1, next(to));
        let error = scene.hub().resolve(&name(), "main").unwrap_err().to_string();
        assert!(error.contains("next page"), "{to}: {error}");
    }
}

#[test]
fn a_commit_that_was_asked_for_is_the_commit_that_is_given() {
    let scene = Scene::new();
    let other = Answer::json(&json!({"sha": "f".repeat(40)}));
    scene.fake.fail("GET", "/revision/", 1, FaultKind::Answer(other));
    let error = scene.hub().folder(&name(), &scene.commit).unwrap_err().to_string();
    assert!(error.contains("it names another commit"), "{error}");
}

#[test]
fn a_list_that_breaks_off_is_asked_for_again() {
    let scene = Scene::new();
    scene.fake.fail("GET", "/tree/", 2, FaultKind::Cut(30));
    assert_eq!(scene.hub().resolve(&name(), "main").unwrap().files.len(), 5);
    scene.fake.fail("GET", "/tree/", 99, FaultKind::Cut(30));
    let error = scene.hub().resolve(&name(), "main").unwrap_err();
    assert!(matches!(error, HubError::Network { .. }), "{error}");
}

#[test]
fn a_file_and_a_folder_of_one_name_and_names_too_long_for_a_disk_are_errors() {
    let listed = json!([file("a", 0), file("a/b", 0)]);
    let error = error_of(&listed);
    assert!(!matches!(error, HubError::Network { .. }), "{error}");
    let long = "n".repeat(300);
    let error = error_of(&json!([file(&long, 0)]));
    assert!(!error.to_string().is_empty(), "{error}");
}

#[test]
fn an_empty_repository_has_no_files() {
    let scene = Scene::new();
    scene.fake.fail("GET", "/tree/", 1, FaultKind::Answer(Answer::json(&json!([]))));
    let folder = scene.hub().folder(&name(), "main").unwrap();
    assert_eq!(std::fs::read_dir(folder).unwrap().count(), 0);
}

#[test]
fn answers_that_grow_without_end_are_cut_off() {
    let scene = Scene::new();
    for (body, said) in [
        (vec![b'['; 200_000], "not JSON"),
        (vec![b' '; (64 << 20) + 2], "more than"),
        (b"null".to_vec(), "no list"),
        (vec![0xff; 10], "not JSON"),
    ] {
        scene.fake.fail("GET", "/tree/", 1, FaultKind::Answer(Answer::new(200, body)));
        let error = scene.hub().resolve(&name(), "main").unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
}
