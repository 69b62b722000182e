//! Downloads: whole or not at all, continued where they broke off, in Python's cache layout.

use crate::support::*;
use std::fs;
use std::sync::atomic::Ordering;
use w4pack_fake_hub::{FaultKind, Port};
use w4pack_hub::{Hub, HubError, Settings};

const FILES: [&str; 4] = ["config.json", "model.safetensors", "w4pack/manifest.json", "empty.txt"];

#[test]
fn a_repository_lands_in_pythons_layout_and_is_fetched_once() {
    let scene = Scene::new();
    let hub = scene.hub();
    let folder = hub.folder(&name(), "main").unwrap();
    let place = scene.cache.path().join("models--somebody--model");
    assert_eq!(folder, place.join("snapshots").join(&scene.commit));
    assert_eq!(contents(&folder, &FILES), contents(scene.folder.path(), &FILES));
    assert_eq!(fs::read_to_string(place.join("refs/main")).unwrap(), scene.commit);
    // Links within the entry, so that the cache can be moved.
    let target = fs::read_link(folder.join("w4pack/manifest.json")).unwrap();
    assert!(target.starts_with("../../../blobs"), "{target:?}");
    assert!(scene.blob("model.safetensors").is_file());
    let (stages, bytes) = (scene.heard.stages.lock().unwrap(), &scene.heard.bytes);
    let all = fs::read_dir(place.join("blobs")).unwrap().flatten();
    let all: u64 = all.map(|entry| entry.metadata().unwrap().len()).sum();
    assert_eq!(*stages, [("downloading", all)]);
    assert_eq!(bytes.load(Ordering::Relaxed), all);

    scene.fake.forget();
    assert_eq!(hub.folder(&name(), &scene.commit).unwrap(), folder);
    assert_eq!(scene.fake.requests(Port::Api).len(), 2, "which commit, and which files");
    assert!(scene.fake.requests(Port::Storage).is_empty());
}

#[test]
fn a_cut_download_continues_where_it_stopped() {
    let scene = Scene::new();
    scene.fake.fail("GET", "/blobs/", 2, FaultKind::Cut(1_000_000));
    let folder = scene.hub().folder(&name(), "main").unwrap();
    assert_eq!(contents(&folder, &FILES), contents(scene.folder.path(), &FILES));
    let asked = scene.ranges(Port::Storage, "/blobs/");
    assert_eq!(asked, ["all", "bytes=1000000-", "bytes=2000000-"]);
    assert!(scene.heard.notes().contains("going on from there"), "{}", scene.heard.notes());
}

#[test]
fn a_connection_that_never_gives_a_byte_is_given_up_and_nothing_passes() {
    let scene = Scene::new();
    scene.fake.fail("GET", "/blobs/", 99, FaultKind::Cut(0));
    let error = scene.hub().folder(&name(), "main").unwrap_err();
    assert!(matches!(error, HubError::Network { .. }), "{error}");
    assert!(!scene.blob("model.safetensors").exists());
}

#[test]
fn what_an_earlier_run_left_is_continued_if_it_is_right_and_replaced_if_not() {
    for (right, asked) in [(true, &["bytes=70000-"][..]), (false, &["bytes=70000-", "all"])] {
        let scene = Scene::new();
        let blob = scene.blob("model.safetensors");
        let mut part = fs::read(scene.folder.path().join("model.safetensors")).unwrap();
        part.truncate(70_000);
        part[100] ^= u8::from(!right);
        fs::create_dir_all(blob.parent().unwrap()).unwrap();
        fs::write(blob.with_extension("incomplete"), part).unwrap();
        let folder = scene.hub().folder(&name(), "main").unwrap();
        assert_eq!(contents(&folder, &FILES), contents(scene.folder.path(), &FILES));
        assert_eq!(scene.ranges(Port::Storage, "/blobs/"), asked);
        assert!(!blob.with_extension("incomplete").exists());
    }
}

#[test]
fn a_server_without_ranges_is_read_from_the_beginning() {
    let scene = Scene::new();
    scene.fake.fail("GET", "/blobs/", 1, FaultKind::Cut(50_000));
    scene.fake.fail("GET", "/blobs/", 1, FaultKind::Whole);
    let folder = scene.hub().folder(&name(), "main").unwrap();
    assert_eq!(contents(&folder, &FILES), contents(scene.folder.path(), &FILES));
}

#[test]
fn wrong_bytes_are_fetched_once_more_and_then_refused() {
    for holds in ["/blobs/", "/config.json"] {
        let scene = Scene::new();
        scene.fake.fail("GET", holds, 99, FaultKind::Damaged(5));
        let error = scene.hub().folder(&name(), "main").unwrap_err();
        assert!(matches!(error, HubError::WrongHash { .. }), "{error}");
        assert!(error.hint().is_some());
        let asked = [scene.ranges(Port::Storage, holds), scene.ranges(Port::Api, holds)].concat();
        assert_eq!(asked, ["all", "all"]);
        let blobs = scene.cache.path().join("models--somebody--model/blobs");
        let left = fs::read_dir(blobs).unwrap().flatten().map(|entry| entry.file_name());
        let incomplete = |name: &std::ffi::OsString| name.to_string_lossy().contains("incomplete");
        assert_eq!(left.filter(incomplete).count(), 0, "nothing half right stays");

        let scene = Scene::new();
        scene.fake.fail("GET", holds, 1, FaultKind::Damaged(5));
        scene.hub().folder(&name(), "main").unwrap();
    }
}

#[test]
fn a_short_body_is_named_and_never_passes() {
    let scene = Scene::new();
    scene.fake.fail("GET", "/blobs/", 99, FaultKind::Short(1000));
    let error = scene.hub().folder(&name(), "main").unwrap_err().to_string();
    assert!(error.contains("1000 bytes") && error.contains("3145728"), "{error}");
    assert!(!scene.blob("model.safetensors").exists());
}

#[test]
fn room_on_the_disk_is_looked_at_first() {
    let scene = Scene::new();
    let listed = serde_json::json!([{
        "type": "file", "path": "model.safetensors", "size": 1u64 << 45, "oid": "0".repeat(40),
        "lfs": {"oid": "1".repeat(64), "size": 1u64 << 45},
    }]);
    scene.fake.fail(
        "GET",
        "/tree/",
        1,
        FaultKind::Answer(w4pack_fake_hub::wire::Answer::json(&listed)),
    );
    let error = scene.hub().folder(&name(), "main").unwrap_err();
    assert!(matches!(error, HubError::NoSpace { needed, .. } if needed == 1 << 45), "{error}");
    assert!(error.hint().unwrap().contains("--stream"));
    assert!(scene.fake.requests(Port::Storage).is_empty());
}

#[test]
fn field_case_27_offline_opens_no_connection() {
    let scene = Scene::new();
    let offline = |scene: &Scene| {
        let settings = Settings { offline: true, ..scene.settings() };
        Hub::new(settings, scene.heard.clone()).unwrap()
    };
    let error = offline(&scene).folder(&name(), "main").unwrap_err();
    assert!(matches!(error, HubError::NotCached { .. }), "{error}");
    assert!(offline(&scene).open(&name(), "main").is_err());
    let publication = publication(scene.folder.path(), NAME);
    assert!(offline(&scene).publish(&publication).is_err());
    assert!(scene.fake.requests(Port::Api).is_empty());

    let folder = scene.hub().folder(&name(), "main").unwrap();
    scene.fake.forget();
    assert_eq!(offline(&scene).folder(&name(), "main").unwrap(), folder);
    assert_eq!(offline(&scene).open(&name(), "main").unwrap().revision(), Some(&*scene.commit));
    assert!(scene.fake.requests(Port::Api).is_empty());
}

#[test]
fn without_a_network_the_cache_answers_and_says_so() {
    let scene = Scene::new();
    let folder = scene.hub().folder(&name(), "main").unwrap();
    let nobody = Nobody::new();
    let endpoint = format!("http://{}", nobody.address());
    let hub = Hub::new(Settings { endpoint, ..scene.settings() }, scene.heard.clone()).unwrap();
    assert_eq!(hub.folder(&name(), "main").unwrap(), folder);
    assert!(scene.heard.notes().contains("going on with what is at hand"));
    let other = "somebody/other".parse().unwrap();
    let error = hub.folder(&other, "main").unwrap_err();
    assert!(error.to_string().contains("takes no connection"), "{error}");
    assert!(error.hint().unwrap().contains("network"));
}

#[test]
fn two_downloads_at_once_fetch_a_file_once() {
    let scene = Scene::new();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| scene.hub().folder(&name(), "main").unwrap());
        }
    });
    assert_eq!(scene.ranges(Port::Storage, "/blobs/"), ["all"]);
}
