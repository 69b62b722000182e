//! What lies in the cache, and what the machine allows.

use crate::support::*;
use std::fs;
use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use w4pack_fake_hub::{FaultKind, Port};
use w4pack_hub::{Hub, HubError, Settings};

fn offline(scene: &Scene) -> std::sync::Arc<Hub> {
    let settings = Settings { offline: true, ..scene.settings() };
    Hub::new(settings, scene.heard.clone()).unwrap()
}

#[test]
fn a_link_in_place_of_a_part_leads_to_no_file_of_the_users() {
    let scene = Scene::new();
    let precious = scene.folder.path().join("precious");
    fs::write(&precious, "a user's own").unwrap();
    let part = scene.blob("model.safetensors").with_extension("incomplete");
    fs::create_dir_all(part.parent().unwrap()).unwrap();
    symlink(&precious, &part).unwrap();
    let error = scene.hub().folder(&name(), "main").unwrap_err();
    assert!(matches!(error, HubError::Io { attempt: "open", .. }), "{error}");
    assert_eq!(fs::read_to_string(&precious).unwrap(), "a user's own");
}

/// A folder of links is there when all files are, and not before.
#[test]
fn half_a_download_is_not_taken_for_a_whole_one() {
    let scene = Scene::new();
    scene.fake.fail("GET", "/blobs/", 99, FaultKind::Cut(0));
    scene.hub().folder(&name(), "main").unwrap_err();
    for revision in ["main", &*scene.commit] {
        let error = offline(&scene).folder(&name(), revision).unwrap_err();
        assert!(matches!(error, HubError::NotCached { .. }), "{error}");
    }
    scene.fake.state().forget_faults();
    let folder = scene.hub().folder(&name(), "main").unwrap();
    let mut names: Vec<_> =
        fs::read_dir(&folder).unwrap().flatten().map(|e| e.file_name()).collect();
    names.sort();
    let files = [".gitattributes", "config.json", "empty.txt", "model.safetensors", "w4pack"];
    assert_eq!(names, files.map(std::ffi::OsString::from));
}

#[test]
fn what_stands_in_the_caches_own_files_leads_nowhere() {
    let scene = Scene::new();
    scene.hub().folder(&name(), "main").unwrap();
    let reference = scene.cache.path().join("models--somebody--model/refs/main");
    for wrong in ["../../../..", "/etc", "a\nb", "", "\u{0}"] {
        fs::write(&reference, wrong).unwrap();
        let error = offline(&scene).folder(&name(), "main").unwrap_err();
        assert!(matches!(error, HubError::NotCached { .. }), "{wrong:?}: {error}");
    }
}

#[test]
fn a_cache_that_cannot_be_written_is_named_with_the_way_out() {
    let scene = Scene::new();
    let file = scene.folder.path().join("a-file");
    fs::write(&file, "").unwrap();
    let settings = Settings { cache: file.join("hub"), ..scene.settings() };
    let hub = Hub::new(settings, scene.heard.clone()).unwrap();
    let error = hub.folder(&name(), "main").unwrap_err();
    assert!(error.to_string().contains("a-file/hub"), "{error}");
    assert!(error.hint().unwrap().contains("HF_HUB_CACHE"), "{error}");
    assert!(scene.fake.requests(Port::Storage).is_empty());
}

#[test]
fn whoever_waits_for_anothers_download_is_told() {
    let scene = Scene::new();
    // The first one gets no further before the second one has said that it waits.
    let go_on = Arc::new(AtomicBool::new(false));
    scene.fake.fail("GET", "/blobs/", 1, FaultKind::Held(100_000, go_on.clone()));
    let is_told =
        || scene.heard.notes().contains("another process is downloading `model.safetensors`");
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| scene.hub().folder(&name(), "main").unwrap());
        }
        let begin = Instant::now();
        while !is_told() && begin.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(5));
        }
        go_on.store(true, Ordering::Relaxed);
    });
    assert!(is_told(), "{}", scene.heard.notes());
    assert_eq!(scene.ranges(Port::Storage, "/blobs/"), ["all"]);
}

/// Damage in the cache is another matter than damage on the way: a blob of the right size is taken, as
/// Python's library takes it; one of another size is fetched anew.
#[test]
fn a_blob_that_was_cut_is_fetched_anew() {
    let scene = Scene::new();
    let folder = scene.hub().folder(&name(), "main").unwrap();
    let blob = scene.blob("model.safetensors");
    fs::write(&blob, "short").unwrap();
    scene.hub().folder(&name(), "main").unwrap();
    assert!(fs::read(folder.join("model.safetensors")).unwrap() == noise(3 << 20));
}
