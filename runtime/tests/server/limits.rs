//! Bodies, methods, paths and queues: every refusal in OpenAI's shape.

use crate::support::*;
use serde_json::{Value, json};
use std::io::Read;
use std::time::{Duration, Instant};

const JSON: (&str, &str) = ("content-type", "application/json");

#[test]
fn bodies_that_are_no_json_object() {
    let running = Running::start();
    for (body, code) in [
        ("", "invalid_json"),
        ("{", "invalid_json"),
        ("[]", "invalid_json"),
        ("\"text\"", "invalid_json"),
        ("{\"messages\": [], \"messages\": []}", "invalid_json"),
        ("{\"messages\": NaN}", "invalid_json"),
        ("{} {}", "invalid_json"),
        ("{}", "missing_required_parameter"),
    ] {
        let response = running.post_text("/v1/chat/completions", body);
        assert_eq!(response.status, 400, "{body}");
        assert_eq!(response.error().0, code, "{body}");
    }
    let deep = format!("{{\"messages\": {}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
    assert_eq!(running.post_text("/v1/chat/completions", &deep).error().0, "invalid_json");
    let bytes = http::request("POST", "/v1/chat/completions", &[JSON], b"{\"messages\": \"\xFF\"}");
    assert_eq!(http::raw(running.address, &bytes).error().0, "invalid_json");
}

#[test]
fn a_body_must_be_called_json_and_have_a_bounded_length() {
    let mut setup = Setup::default();
    setup.server.body_limit = 1000;
    let running = Running::with(&setup);
    let body = question("What's 17+25?").to_string();
    let send = |headers: &[(&str, &str)], body: &str| {
        http::raw(
            running.address,
            &http::request("POST", "/v1/chat/completions", headers, body.as_bytes()),
        )
    };
    assert_eq!(send(&[JSON], &body).status, 200);
    assert_eq!(send(&[("content-type", "Application/JSON; charset=utf-8")], &body).status, 200);
    let other = ("content-type", "application/json; charset=utf-16");
    for headers in [&[][..], &[("content-type", "text/plain")], &[other]] {
        let response = send(headers, &body);
        assert_eq!((response.status, response.error().0.as_str()), (415, "content_type"));
    }
    let response = send(&[JSON, ("content-encoding", "gzip")], &body);
    assert_eq!((response.status, response.error().0.as_str()), (415, "content_encoding"));
    let long = question(&"x".repeat(1000)).to_string();
    let response = send(&[JSON], &long);
    assert_eq!((response.status, response.error().0.as_str()), (413, "body_too_large"));
    assert!(response.body.contains("longer than 1000 bytes (--body-limit)"), "{}", response.body);
    assert_eq!(send(&[JSON], &body).status, 200, "the next one works");
}

/// Clients that send a letter now and then, or nothing more at all.
#[test]
fn slow_heads_and_bodies_are_not_waited_for() {
    let mut setup = Setup::default();
    let patience = Duration::from_millis(300);
    setup.server.patience = patience;
    let running = Running::with(&setup);
    // Where this machine stands still before the bytes are sent it is this client that is slow: once more.
    let send = |bytes: &[u8]| loop {
        let begun = Instant::now();
        let connection = http::send(running.address, bytes);
        if begun.elapsed() < patience / 2 {
            return connection;
        }
    };
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n";
    in_time("the end of half a head", Duration::from_secs(20), || {
        let mut rest = Vec::new();
        let mut slow = send(&head.as_bytes()[..40]);
        slow.read_to_end(&mut rest).expect("the server closes");
    });
    let body = format!("{head}content-type: application/json\r\ncontent-length: 100\r\n\r\n{{");
    let response = http::rest(send(body.as_bytes()));
    assert_eq!((response.status, response.error().0.as_str()), (408, "body_too_slow"));
    // An answer may take longer than that.
    let long = force(json!([{"pause": 5}, ["word ", 100]])).to_string();
    let long = http::request("POST", "/v1/chat/completions", &[JSON], long.as_bytes());
    assert_eq!(http::rest(send(&long)).status, 200);
}

#[test]
fn wrong_paths_and_methods() {
    let running = Running::start();
    for path in ["/v1/embeddings", "/v1", "/v2/chat/completions", "/%00", "/v1/models/absent"] {
        let response = running.get(path);
        assert_eq!(response.status, 404, "{path}");
        response.error();
    }
    for (method, path) in [
        ("GET", "/v1/chat/completions"),
        ("DELETE", "/v1/completions"),
        ("POST", "/v1/models"),
        ("PUT", "/health"),
        ("POST", "/"),
    ] {
        let response = http::raw(running.address, &http::request(method, path, &[], b""));
        assert_eq!(response.status, 405, "{method} {path}");
        assert_eq!(response.error().0, "method_not_supported");
    }
    assert_eq!(running.get("/v1/models/owner%2Fsmall").json()["id"], "owner/small");
}

#[test]
fn a_full_queue_is_told_at_once() {
    let running = Running::with(&Setup { slots: 1, queue: 1, ..Setup::default() });
    let tokens = json!([{"pause": 20}, ["word ", 1500]]);
    let long = with(force(tokens), json!({"max_tokens": 1500, "stream": true}));
    // One is made, one waits, and both for longer than this test takes.
    let mut first = http::Stream::open(running.address, "/v1/chat/completions", &long);
    first.next();
    let second = http::Stream::open(running.address, "/v1/chat/completions", &long);
    running.wait_for_metric("w4pack_running", |running| running == 1.0);
    running.wait_for_metric("w4pack_waiting", |waiting| waiting == 1.0);
    for stream in [false, true] {
        let response = in_time("a refusal", Duration::from_secs(2), || {
            running.chat(&with(question("x"), json!({"stream": stream})))
        });
        assert_eq!((response.status, response.error().0.as_str()), (429, "rate_limit_exceeded"));
        let after = response.header("retry-after").and_then(|seconds| seconds.parse::<u64>().ok());
        assert!(after >= Some(1));
    }
    // More choices than there is room for: none of them is started.
    drop(second);
    running.wait_for_metric("w4pack_waiting", |waiting| waiting == 0.0);
    assert_eq!(running.chat(&with(question("x"), json!({"n": 2}))).status, 429);
    drop(first);
    running.wait_for_metric("w4pack_running", |running| running == 0.0);
    let reply = running.chat(&question("What's 17+25?")).json();
    assert_eq!(reply["choices"][0]["message"]["content"], Value::from("42"));
}
