//! Clients that go away, and a server that goes away.

use crate::support::*;
use serde_json::{Value, json};
use std::net::Shutdown;
use std::time::{Duration, Instant};

/// An answer that takes 20 s at least, on any machine.
fn long(stream: bool) -> Value {
    let tokens = json!([{"pause": 10}, ["word ", 2000]]);
    with(force(tokens), json!({"max_tokens": 2000, "stream": stream}))
}

/// When somebody has left, another client is served at once, on the only slot there is. Returns how often
/// somebody left.
fn frees_its_slot(running: &Running, leave: impl Fn()) -> f64 {
    let before = running.metric("w4pack_cancelled_total");
    let mut left = 0.0;
    in_time("the next client's answer", Duration::from_secs(5), || {
        leave();
        left += 1.0;
        let reply = running.chat(&question("What's 17+25?"));
        assert_eq!(reply.json()["choices"][0]["message"]["content"], "42");
    });
    running.wait_for_metric("w4pack_cancelled_total", |cancelled| cancelled == before + left);
    left
}

fn one_slot() -> Running {
    Running::with(&Setup { slots: 1, context: 8192, chunk: 32, ..Setup::default() })
}

#[test]
fn field_case_24_a_stream_that_is_left_frees_its_slot() {
    let running = one_slot();
    frees_its_slot(&running, || {
        let mut stream = http::Stream::open(running.address, "/v1/chat/completions", &long(true));
        for _ in 0..3 {
            assert!(stream.next().is_some());
        }
    });
    running.wait_for_metric("w4pack_running", |running| running == 0.0);
}

#[test]
fn field_case_24_a_request_without_a_stream_that_is_left_frees_its_slot() {
    let running = one_slot();
    frees_its_slot(&running, || {
        let held = http::send_and_hold(running.address, "/v1/chat/completions", &long(false));
        running.wait_for_metric("w4pack_running", |running| running == 1.0);
        drop(held);
    });
}

#[test]
fn field_case_24_a_client_that_leaves_during_the_prompt_frees_its_slot() {
    let running = one_slot();
    let prompt = with(question(&"7".repeat(8000)), json!({"stream": true}));
    let left = frees_its_slot(&running, || {
        let held = http::send_and_hold(running.address, "/v1/chat/completions", &prompt);
        running.wait_for_metric("w4pack_running", |running| running == 1.0);
        drop(held);
    });
    assert_eq!(running.metric("w4pack_answers_total"), left, "only the other one was answered");
}

#[test]
fn a_server_that_stops_lets_answers_end() {
    let running = one_slot();
    let address = running.address;
    let tokens = force(json!([["word ", 60]]));
    let mut stream =
        http::Stream::open(address, "/v1/chat/completions", &with(tokens, json!({"stream": true})));
    assert!(stream.next().is_some());
    let stopping = std::thread::spawn(move || running.server.stop(Duration::from_secs(60)));
    let mut last = None;
    while let Some(event) = stream.next() {
        last = Some(event);
    }
    assert_eq!(last.as_deref(), Some("[DONE]"), "the answer came to its end");
    stopping.join().expect("no panic").expect("it stopped");
    assert!(std::net::TcpStream::connect(address).is_err(), "nobody listens any more");
}

#[test]
fn a_server_that_stops_at_once_says_so_to_those_who_listen() {
    let running = one_slot();
    let mut stream = http::Stream::open(running.address, "/v1/chat/completions", &long(true));
    assert!(stream.next().is_some());
    let begun = Instant::now();
    let stopping = std::thread::spawn(move || running.server.stop(Duration::from_millis(50)));
    let mut last = String::new();
    while let Some(event) = stream.next() {
        last = event;
    }
    let error: Value = serde_json::from_str(&last).expect("an error is JSON");
    assert_eq!(error["error"]["code"], "shutting_down", "{last}");
    stopping.join().expect("no panic").expect("it stopped");
    assert!(begun.elapsed() < Duration::from_secs(60));
}

/// HTTP/1.1 lets a client end its writing side behind its request. While the prompt is read, while it
/// waits for a slot, whole and as a stream: it gets what it would have got.
#[test]
fn a_client_that_only_ends_its_writing_side_is_answered() {
    let running = one_slot();
    let prompt =
        |stream| with(question(&"7".repeat(3000)), json!({"max_tokens": 3, "stream": stream}));
    let whole = running.chat(&prompt(false)).json()["choices"].clone();
    let streamed = joined(&running.chat(&prompt(true)).chunks());
    for stream in [false, true] {
        // Another prompt in between, so that this one is read again.
        running.chat(&question("What's 17+25?"));
        let held = http::send_and_hold(running.address, "/v1/chat/completions", &prompt(stream));
        let waiting = http::send_and_hold(running.address, "/v1/chat/completions", &prompt(stream));
        for connection in [&held, &waiting] {
            connection.shutdown(Shutdown::Write).expect("it can be half closed");
        }
        for connection in [held, waiting] {
            let response = http::rest(connection);
            assert_eq!(response.status, 200, "{}", response.body);
            match stream {
                false => assert_eq!(response.json()["choices"], whole),
                true => assert_eq!(joined(&response.chunks()), streamed),
            }
        }
    }
    assert_eq!(running.metric("w4pack_cancelled_total"), 0.0);
}

/// Who has ended only one side may leave later; and a connection without a request is just closed.
#[test]
fn a_client_that_ends_one_side_and_then_leaves_is_noticed() {
    let running = one_slot();
    for stream in [false, true] {
        frees_its_slot(&running, || {
            let held = http::send_and_hold(running.address, "/v1/chat/completions", &long(stream));
            running.wait_for_metric("w4pack_running", |running| running == 1.0);
            held.shutdown(Shutdown::Write).expect("it can be half closed");
            std::thread::sleep(Duration::from_millis(100));
            drop(held);
        });
    }

    let idle = std::net::TcpStream::connect(running.address).expect("it listens");
    idle.shutdown(Shutdown::Write).expect("it can be half closed");
    let mut said = Vec::new();
    std::io::Read::read_to_end(&mut &idle, &mut said).expect("it is closed in order");
    assert_eq!(String::from_utf8_lossy(&said), "", "nobody was asked anything");
}
