//! Files read by ranges: each byte once, through cuts, and checked at the end.

use crate::support::*;
use std::fs;
use std::sync::Arc;
use w4pack_fake_hub::{FaultKind, Port};
use w4pack_format::source::Source;

const LARGE: &str = "model.safetensors";
const SIZE: u64 = 3 << 20;

fn open(scene: &Scene) -> Arc<dyn Source> {
    scene.hub().open(&name(), "main").unwrap()
}

/// As a checkpoint is read: length, header, then blocks.
fn read_in_order(source: &dyn Source, path: &str) -> w4pack_format::Result<Vec<u8>> {
    let mut content = vec![0; source.size(path).unwrap() as usize];
    let mut at = 0;
    for length in [8, 992].into_iter().chain(std::iter::repeat(300_000)) {
        let end = (at + length).min(content.len());
        source.read_at(path, at as u64, &mut content[at..end])?;
        at = end;
        if at == content.len() {
            break;
        }
    }
    Ok(content)
}

#[test]
fn reading_in_order_asks_for_each_byte_once() {
    let scene = Scene::new();
    let source = open(&scene);
    assert_eq!(read_in_order(&*source, LARGE).unwrap(), noise(SIZE as usize));
    // More and more at a time, and each byte once.
    let wanted = ["0-7", "8-999", "1000-300999", "301000-1504999", "1505000-3145727"];
    let asked = scene.ranges(Port::Storage, "/blobs/");
    assert_eq!(asked, wanted.map(|range| format!("bytes={range}")));
    assert_eq!((source.name(), source.revision()), (NAME, Some(&*scene.commit)));
    let kept = fs::read_dir(scene.cache.path()).unwrap().count();
    assert_eq!(kept, 0, "nothing is stored");
}

#[test]
fn a_cut_connection_is_asked_for_the_rest() {
    let scene = Scene::new();
    scene.fake.fail_after(2, "GET", "/blobs/", 2, FaultKind::Cut(100_000));
    let source = open(&scene);
    assert_eq!(read_in_order(&*source, LARGE).unwrap(), noise(SIZE as usize));
    let asked = scene.ranges(Port::Storage, "/blobs/");
    let wanted = ["1000-300999", "101000-300999", "201000-300999", "301000-1504999"];
    assert_eq!(asked[2..6], wanted.map(|range| format!("bytes={range}")));
}

/// Short reads one behind the other, as of many small tensors, do not fetch what follows them.
#[test]
fn what_is_read_ahead_is_in_proportion_to_what_was_read() {
    let scene = Scene::new();
    let source = open(&scene);
    for at in 0..300 {
        source.read_at(LARGE, 5000 + 16 * at, &mut [0; 16]).unwrap();
    }
    let requests = scene.fake.requests(Port::Storage);
    let sent: usize = requests.iter().map(|logged| logged.sent).sum();
    assert!(requests.len() < 5 && sent < 70_000, "{} requests, {sent} bytes", requests.len());
}

#[test]
fn reads_here_and_there_ask_for_exactly_their_bytes_and_for_the_way_once() {
    let scene = Scene::new();
    let source = open(&scene);
    scene.fake.fail_after(1, "GET", "/blobs/", 1, FaultKind::Cut(3));
    let all = noise(SIZE as usize);
    for at in [5usize, 2_000_000, 777, 1_000_000] {
        let mut bytes = [0; 64];
        source.read_at(LARGE, at as u64, &mut bytes).unwrap();
        assert_eq!(bytes[..], all[at..at + 64]);
    }
    let asked = scene.ranges(Port::Storage, "/blobs/");
    let wanted = ["5-68", "2000000-2000063", "2000003-2000063", "777-840", "1000000-1000063"];
    assert_eq!(asked, wanted.map(|range| format!("bytes={range}")));
    assert_eq!(scene.ranges(Port::Api, LARGE).len(), 1, "the redirect is remembered");
}

#[test]
fn a_way_that_has_expired_is_asked_for_again() {
    let scene = Scene::new();
    let source = open(&scene);
    let mut bytes = [0; 64];
    source.read_at(LARGE, 0, &mut bytes).unwrap();
    let expired = w4pack_fake_hub::wire::Answer::new(403, "Request has expired");
    scene.fake.fail("GET", "/blobs/", 1, FaultKind::Answer(expired));
    source.read_at(LARGE, 1000, &mut bytes).unwrap();
    assert_eq!(scene.ranges(Port::Api, LARGE).len(), 2);
}

#[test]
fn small_files_are_fetched_once_and_checked() {
    let scene = Scene::new();
    let source = open(&scene);
    for _ in 0..3 {
        assert_eq!(source.read_file("w4pack/manifest.json").unwrap(), b"{}\n");
        assert_eq!(source.read_file("empty.txt").unwrap(), b"");
    }
    assert_eq!(scene.ranges(Port::Api, "/resolve/").len(), 1);
    scene.fake.fail("GET", "config.json", 1, FaultKind::Damaged(3));
    let error = source.read_file("config.json").unwrap_err().to_string();
    assert!(error.contains("config.json") && error.contains("the Hub lists"), "{error}");
}

#[test]
fn the_read_that_ends_a_file_fails_if_its_bytes_are_not_the_listed_ones() {
    let scene = Scene::new();
    scene.fake.fail_after(2, "GET", "/blobs/", 1, FaultKind::Damaged(200_000));
    let error = read_in_order(&*open(&scene), LARGE).unwrap_err().to_string();
    assert!(error.contains(LARGE) && error.contains("SHA-256"), "{error}");
}

#[test]
fn another_part_than_the_asked_one_is_refused() {
    let scene = Scene::new();
    let source = open(&scene);
    scene.fake.fail("GET", "/blobs/", 9, FaultKind::Whole);
    let error = source.read_at(LARGE, 10, &mut [0; 64]).unwrap_err().to_string();
    assert!(error.contains("asked for bytes 10-"), "{error}");
    assert!(source.read_at(LARGE, SIZE - 1, &mut [0; 2]).is_err());
    assert!(source.read_at("nothing", 0, &mut [0; 2]).is_err());
}

#[test]
fn a_checkpoint_is_the_same_files_in_a_folder_and_on_the_hub() {
    let scene = Scene::new();
    fs::create_dir(scene.folder.path().join(".cache")).unwrap();
    fs::write(scene.folder.path().join(".cache/lock"), "x").unwrap();
    scene.fake.publish(NAME, scene.folder.path(), w4pack_fake_hub::repository::Access::Public);
    let by_ranges = open(&scene).files().to_vec();
    let folder = scene.hub().folder(&name(), "main").unwrap();
    let folder = w4pack_format::source::FolderSource::open(&folder).unwrap();
    assert_eq!(folder.files(), by_ranges);
    assert_eq!(by_ranges.len(), 5);
}

#[test]
fn a_copy_in_the_cache_goes_before() {
    let scene = Scene::new();
    scene.hub().folder(&name(), "main").unwrap();
    scene.fake.forget();
    assert_eq!(read_in_order(&*open(&scene), LARGE).unwrap(), noise(SIZE as usize));
    assert!(scene.fake.requests(Port::Storage).is_empty());
}
