//! `w4pack serve` as those have it who start and stop it.

use crate::served::{Served, packed};
use crate::support::*;
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

fn sum() -> Value {
    json!({"messages": [{"role": "user", "content": "What's 17+25?"}], "temperature": 0})
}

#[test]
fn a_packed_model_is_served_until_a_signal_comes() {
    let folder = tempfile::tempdir().unwrap();
    let model = packed(folder.path());
    for signal in ["TERM", "INT"] {
        let served = Served::start(&["--model", &model], &[]);
        let (status, body) = served.chat(&sum());
        assert_eq!(status, 200, "{body}");
        let reply: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(reply["choices"][0]["message"]["content"], "42");
        assert_eq!(reply["model"], "packed", "named after its folder");
        served.signal(signal);
        // stdout is data: the address, and nothing else.
        assert_eq!(served.end(), (Some(0), String::new()));
    }
}

#[test]
fn answers_that_run_end_before_the_server_does() {
    let folder = tempfile::tempdir().unwrap();
    let model = packed(folder.path());
    let served = Served::start(&["--model", &model, "--grace", "60"], &[]);
    let mut connection = TcpStream::connect(&served.address).unwrap();
    let body =
        json!({"prompt": "once", "max_tokens": 150, "temperature": 2, "top_k": 0, "top_p": 1,
        "seed": 1, "logit_bias": {"1": -100, "106": -100, "50": -100}, "stream": true})
        .to_string();
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    connection.write_all((head + &body).as_bytes()).unwrap();
    let mut reader = BufReader::new(connection);
    let mut line = String::new();
    while !line.starts_with("data: ") {
        line.clear();
        assert!(reader.read_line(&mut line).unwrap() > 0);
    }
    served.signal("TERM");
    let mut rest = String::new();
    reader.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("data: [DONE]"), "{rest}");
    assert!(rest.contains("\"finish_reason\":\"length\""), "{rest}");
    assert_eq!(served.end().0, Some(0));
}

/// A prompt that takes seconds to read: within its grace it is read and answered, without one it is
/// broken off with words, and either way the process ends in order.
#[test]
fn a_signal_while_a_long_prompt_is_read_ends_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let model = packed(folder.path());
    let prompt = json!({"prompt": vec![100; 8000], "max_tokens": 1}).to_string();
    // Sends a signal while the prompt is read: whether the answer was still out, and what it was.
    let interrupted = |grace: &str| {
        let long = ["--model", &model, "--context", "8192", "--chunk", "8", "--grace", grace];
        let served = Served::start(&long, &[]);
        let page = || served.send("GET", "/metrics", &[], "").1;
        let answer = std::thread::scope(|scope| {
            let asked = scope.spawn(|| served.send("POST", "/v1/completions", &[], &prompt));
            while !page().contains("\nw4pack_running 1") && !asked.is_finished() {}
            served.signal("TERM");
            (!asked.is_finished(), asked.join().unwrap())
        });
        let begun = Instant::now();
        assert_eq!(served.end(), (Some(0), String::new()));
        assert!(begun.elapsed() < Duration::from_secs(120), "nothing is left to wait for");
        answer
    };
    // Where this test stands still for the seconds that reading takes the signal comes too late.
    let is_let_go_on = || {
        let (was_out, (status, body)) = interrupted("600");
        assert!(status == 200 && body.contains("\"finish_reason\""), "{status}: {body}");
        was_out
    };
    assert!((0..5).any(|_| is_let_go_on()), "it was read before anybody could look");
    let is_broken_off = || {
        let (_, (status, body)) = interrupted("0");
        let whole = status == 200 && body.contains("\"finish_reason\"");
        assert!(whole || (status == 503 && body.contains("shutting_down")), "{status}: {body}");
        !whole
    };
    assert!((0..5).any(|_| is_broken_off()), "it was answered each time");
}

/// Addresses of either kind are listened on, and a grace beyond all clocks is one without an end.
#[test]
fn any_address_and_any_grace() {
    let folder = tempfile::tempdir().unwrap();
    let model = packed(folder.path());
    let served = Served::start(
        &["--model", &model, "--host", "::1", "--grace", "18446744073709551615"],
        &[],
    );
    assert!(served.address.starts_with("[::1]:"), "{}", served.address);
    assert_eq!(served.chat(&sum()).0, 200);
    served.signal("TERM");
    assert_eq!(served.end(), (Some(0), String::new()));
}

#[test]
fn keys_come_from_flags_files_and_the_environment() {
    let folder = tempfile::tempdir().unwrap();
    let model = packed(folder.path());
    let file = folder.path().join("keys");
    fs::write(&file, "from-a-file\n\n  another \n").unwrap();
    let at = format!("@{}", text(&file));
    let status = |served: &Served, key: &str| {
        served.send("GET", "/v1/models", &[&format!("authorization: Bearer {key}")], "").0
    };
    let served = Served::start(
        &["--model", &model, "--api-key", "flag", "--api-key", &at],
        &[("W4PACK_API_KEY", "environment")],
    );
    for (key, expected) in
        [("flag", 200), ("from-a-file", 200), ("another", 200), ("environment", 401), ("", 401)]
    {
        assert_eq!(status(&served, key), expected, "{key}");
    }
    drop(served);
    let served = Served::start(
        &["--model", &model, "--served-model-name", "a", "--served-model-name", "b"],
        &[("W4PACK_API_KEY", "environment")],
    );
    assert_eq!((status(&served, "environment"), status(&served, "flag")), (200, 401));
    let (_, models) = served.send("GET", "/v1/models", &["authorization: Bearer environment"], "");
    let models: Value = serde_json::from_str(&models).unwrap();
    assert_eq!((&models["data"][0]["id"], &models["data"][1]["id"]), (&json!("a"), &json!("b")));
}

/// A fault that the server goes around is nothing to warn of; one that it meets is.
#[test]
fn warnings_are_of_what_a_user_may_meet() {
    let folder = tempfile::tempdir().unwrap();
    let model = packed(folder.path());
    let template = Path::new(&model).join("chat_template.jinja");
    let words = fs::read_to_string(&template).unwrap();
    // Field case 17 in the form that Gemma's own template of 2026-07-09 has it.
    assert!(words.contains("ended_in"), "the small model's template has that fault too");
    let talk = Served::start(&["--model", &model], &[]).talk();
    assert!(talk.contains("ready: ") && !talk.contains("warning: "), "{talk}");

    fs::write(&template, "{% for message in messages %}{{ message.content }}{% endfor %}").unwrap();
    let talk = Served::start(&["--model", &model], &[]).talk();
    assert!(talk.contains("warning: ") && talk.contains("declarations of tools"), "{talk}");
}

#[test]
fn wrong_use_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let empty = folder.path().join("empty");
    fs::write(&empty, "\n").unwrap();
    let at = format!("@{}", text(&empty));
    for (arguments, words) in [
        (&["--cors", "localhost:3000"][..], "origin"),
        (&["--cors", "http://a/b"], "origin"),
        (&["--slots", "0"], "--slots"),
        (&["--api-key", "@/no/such/file"], "/no/such/file"),
        (&["--api-key", &at], "holds no key"),
        (&["--api-key", ""], "API key"),
        (&["--served-model-name", ""], "--served-model-name"),
        (&["--model", "/no/such/model"], "/no/such/model"),
    ] {
        let talk = refuse(2, &[&["serve", "--port", "0"], arguments].concat());
        assert!(talk.contains(words), "{arguments:?}: {talk}");
    }
    // More slots than memory holds, by little or beyond all numbers.
    let model = packed(folder.path());
    for slots in ["10000000", "18446744073709551615"] {
        let talk = refuse(
            2,
            &["serve", "--port", "0", "--device", "cpu", "--model", &model, "--slots", slots],
        );
        assert!(talk.contains("MiB are free") && talk.contains("hint: at most --slots"), "{talk}");
    }
    // A port is asked for only when the model is there.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let talk = refuse(1, &["serve", "--port", &port, "--model", &model]);
    assert!(talk.contains(&port), "{talk}");
}
