//! Processes that are killed, that find no room, and that meet each other.

use super::*;
use std::fs;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use w4pack_fake_hub::{FaultKind, Port};

const CACHED: &str = "huggingface/hub/models--google--small";

/// Waits for something that a process of its own brings about.
fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < Duration::from_secs(120), "it never came to this: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn start(scene: &Scene, arguments: &[&str]) -> Child {
    let mut command = scene.command(assert_cmd::cargo::cargo_bin!("w4pack"));
    command.args(arguments).env("HF_TOKEN", TOKEN);
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// Bytes of the file that is on its way.
fn part(scene: &Scene) -> u64 {
    let blobs = fs::read_dir(scene.path(CACHED).join("blobs")).into_iter().flatten().flatten();
    let parts = blobs.filter(|entry| entry.file_name().to_string_lossy().contains(".incomplete"));
    parts.map(|part| part.metadata().map_or(0, |found| found.len())).max().unwrap_or(0)
}

/// What was asked for of the storage: where each request began.
fn asked(scene: &Scene) -> Vec<String> {
    let requests = scene.fake.requests(Port::Storage);
    let range =
        |logged: &w4pack_fake_hub::Logged| logged.request.header("range").map(str::to_string);
    requests.iter().map(|logged| range(logged).unwrap_or_else(|| "all".into())).collect()
}

#[test]
fn a_killed_download_goes_on_in_the_next_run() {
    let scene = Scene::new();
    // The rest stays away, so that it is in the middle however late it is killed.
    scene.fake.fail("GET", "/blobs/", 1, FaultKind::Held(400_000, Arc::default()));
    let mut child = start(&scene, &["inspect", SOURCE]);
    wait_for("a part on the disk", || part(&scene) > 300_000);
    child.kill().unwrap();
    child.wait().unwrap();
    let have = part(&scene);
    let offline = scene.run(&["inspect", &format!("{SOURCE}@{}", scene.commit), "--offline"]);
    assert_eq!(offline.status.code(), Some(2), "half a download is none: {}", words(&offline));

    scene.fake.forget();
    scene.succeed(&["inspect", SOURCE]);
    assert_eq!(asked(&scene), [format!("bytes={have}-")]);
    assert_eq!(part(&scene), 0);
    scene.succeed(&["inspect", &format!("{SOURCE}@{}", scene.commit), "--offline"]);
}

#[test]
fn a_disk_without_room_is_named_and_the_next_run_goes_on() {
    let scene = Scene::new();
    let program = assert_cmd::cargo::cargo_bin!("w4pack");
    let mut shell = scene.command("sh");
    // The system's own limit for a file's size stands for a disk that is full.
    let line = format!("ulimit -f 1000; exec '{}' inspect {SOURCE}", text(program));
    let output = shell.args(["-c", &line]).output().unwrap();
    let talk = words(&output);
    assert_eq!(output.status.code(), Some(1), "{talk}");
    assert!(talk.contains("error: could not write") && talk.contains("hint: free some"), "{talk}");
    let have = part(&scene);
    assert!(have > 0);
    scene.fake.forget();
    scene.succeed(&["inspect", SOURCE]);
    assert_eq!(asked(&scene), [format!("bytes={have}-")]);
}

#[test]
fn several_processes_at_once_fetch_a_file_once() {
    let scene = Scene::new();
    let slow = FaultKind::Drip(400_000, Duration::from_millis(20));
    scene.fake.fail("GET", "/blobs/", 1, slow);
    let children: Vec<Child> = (0..4).map(|_| start(&scene, &["inspect", SOURCE])).collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(asked(&scene), ["all"]);
}

#[test]
fn a_killed_upload_leaves_no_commit_and_what_arrived_is_not_sent_again() {
    let scene = Scene::new();
    let packed = scene.packed();
    let name = "somebody/packed";
    let publish = ["publish", text(&packed), name, "--quiet"];
    // It hears no word of that, however late it is killed.
    scene.fake.fail("PUT", "/upload/", 1, FaultKind::Held(0, Arc::default()));
    let mut child = start(&scene, &publish);
    wait_for("an upload", || !scene.fake.state().objects.is_empty());
    child.kill().unwrap();
    child.wait().unwrap();
    let arrived: Vec<String> = scene.fake.state().objects.keys().cloned().collect();
    let files = |scene: &Scene| scene.fake.files(name, "main").len();
    assert!(files(&scene) <= 1, "nothing was committed");

    // The request of the killed process is written down behind what it brought.
    let is_of = |path: &str, object: &String| path.contains(object.as_str());
    wait_for("its request", || {
        let requests = scene.fake.requests(Port::Storage);
        let mut paths = requests.iter().map(|logged| &logged.request.path);
        paths.any(|path| arrived.iter().any(|object| is_of(path, object)))
    });
    scene.fake.forget();
    scene.succeed_as_owner(&publish);
    assert!(files(&scene) > 5);
    let requests = scene.fake.requests(Port::Storage);
    let puts = requests.iter().filter(|logged| logged.request.method == "PUT");
    let mut paths = puts.map(|logged| &logged.request.path);
    let again = paths.find(|path| arrived.iter().any(|object| is_of(path, object)));
    assert_eq!((arrived.len(), again), (1, None));
}

#[test]
fn a_cache_that_cannot_be_written_and_a_repository_without_files_are_named() {
    let scene = Scene::new();
    let output = scene.run_with(&["inspect", SOURCE], &[("HF_HOME", "/dev/null/hf")]);
    let talk = words(&output);
    assert_eq!(output.status.code(), Some(1), "{talk}");
    assert!(talk.contains("/dev/null/hf") && talk.contains("hint: set HF_HUB_CACHE"), "{talk}");

    scene.fake.commit("google/empty", Default::default(), Access::Public);
    let output = scene.run(&["inspect", "google/empty"]);
    let talk = words(&output);
    assert_eq!(output.status.code(), Some(2), "{talk}");
    assert!(talk.contains("no checkpoint") && talk.contains("hint: "), "{talk}");
}
