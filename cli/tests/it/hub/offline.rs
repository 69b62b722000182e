//! Field case 27: offline means that nobody is asked, whatever the command.

use super::*;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// An address that counts who comes.
fn listener() -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let come = Arc::new(AtomicUsize::new(0));
    let count = come.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            count.fetch_add(1, Ordering::SeqCst);
            drop(stream);
        }
    });
    (address, come)
}

#[test]
fn field_case_27_offline_opens_no_connection() {
    let scene = Scene::new();
    let packed = scene.packed();
    let (source, (endpoint, come)) = (scene.source(), listener());
    let out = scene.path("out");
    let commands: &[&[&str]] = &[
        &["convert", SOURCE, "--out", text(&out)],
        &["convert", SOURCE, "--stream", "--out", text(&out)],
        &["convert", SOURCE, "--plan"],
        &["verify", text(&packed), "--source", SOURCE],
        &["verify", "somebody/packed"],
        &["restore", text(&packed), "--out", text(&out), "--towers-from", SOURCE],
        &["run", "--model", "somebody/packed", "--tokens", "2"],
        &["serve", "--model", "somebody/packed", "--port", "0"],
        &["chat", "--model", "somebody/packed"],
        &["inspect", SOURCE],
        &["doctor", "somebody/packed", "--for", "vllm"],
        &["audit", text(&packed), "--source", SOURCE, "--samples", "3"],
        &["publish", text(&packed), "somebody/packed", "--source", text(&source)],
    ];
    for command in commands {
        let by_flag = [command, &["--offline"][..]].concat();
        for (arguments, offline) in [(&by_flag[..], ""), (command, "1"), (command, "yes")] {
            let variables = [
                ("HF_ENDPOINT", endpoint.as_str()),
                ("HF_HUB_OFFLINE", offline),
                ("HF_TOKEN", TOKEN),
            ];
            let output = scene.run_with(arguments, &variables);
            let talk = words(&output);
            assert_eq!(output.status.code(), Some(2), "{arguments:?}: {talk}");
            assert!(talk.contains("offline"), "{arguments:?}: {talk}");
            assert_eq!(come.load(Ordering::SeqCst), 0, "{arguments:?} opened a connection");
        }
    }
    // Without the flag somebody is asked: the listener does count.
    scene.run_with(&["inspect", SOURCE], &[("HF_ENDPOINT", endpoint.as_str())]);
    assert!(come.load(Ordering::SeqCst) > 0);
}

#[test]
fn offline_takes_what_is_in_the_cache() {
    let scene = Scene::new();
    scene.succeed(&["inspect", SOURCE]);
    scene.fake.forget();
    let out = scene.path("out");
    scene.succeed(&["convert", SOURCE, "--out", text(&out), "--offline", "--quiet"]);
    scene.succeed(&["verify", text(&out), "--source", SOURCE, "--offline"]);
    assert!(scene.fake.requests(w4pack_fake_hub::Port::Api).is_empty());
}
