//! `w4pack serve` under more clients than it has room for: what is asked and how is drawn at random,
//! and nothing may go wrong but that some are told to come later.
//!
//! In a usual test run some seconds of it. `W4PACK_LOAD_SECONDS` makes it as long as .ci/long wants it,
//! with bounds that only a quiet machine and a release build can be held to.

#[path = "../../../runtime/tests/server/support/http.rs"]
#[allow(dead_code, reason = "the server's own tests use more of it")]
mod http;

use crate::served::{Served, packed};
use http::Response;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const CLIENTS: usize = 64;
/// Requests after which memory is looked at for the first time: by then every slot has been full,
/// and every grammar been made.
const WARM_UP: usize = 1_000;
/// Requests that a long run makes at least.
const LEAST: usize = 10_000;
/// How much more memory there may be at the end than behind the warm-up.
const MOST_GROWTH: usize = 32 << 20;
/// What takes longer than this does not come any more.
const LONGEST: Duration = Duration::from_secs(120);
/// The longest that all but one in a hundred may wait to hear that there is no room.
const MOST_WAIT: Duration = Duration::from_millis(50);

/// What became of the requests.
#[derive(Default)]
struct Seen {
    /// By kind: how many came to their end, and how long they took.
    answered: BTreeMap<&'static str, Vec<Duration>>,
    /// Times until a refusal with 429.
    refused: Vec<Duration>,
    /// Clients that left on purpose.
    left: usize,
    /// What should not have been.
    faults: Vec<String>,
}

/// A request, and what must become of it.
struct Asked {
    kind: &'static str,
    path: &'static str,
    body: Value,
    /// Whether the answer is right.
    is_right: fn(&Response) -> bool,
    /// Leaves after so many bytes of the response.
    leaves_after: Option<usize>,
}

/// The next of a row of numbers without pattern.
fn random(state: &mut u64) -> usize {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) as usize
}

fn user(text: &str) -> Value {
    json!({"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 60})
}

/// A request of a kind drawn at random.
fn draw(state: &mut u64) -> Asked {
    let chat = "/v1/chat/completions";
    let ask = |kind, path, body, is_right| Asked { kind, path, body, is_right, leaves_after: None };
    let with = |mut body: Value, more: Value| {
        more.as_object().unwrap().iter().for_each(|(name, value)| body[name] = value.clone());
        body
    };
    let parameters = json!({"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}},
        "required": ["city"], "additionalProperties": false});
    let weather = json!({"type": "function", "function": {
        "name": "get_weather", "description": "Current weather in a city", "parameters": parameters}});
    let level = json!({"type": "object", "properties": {"level": {"enum": ["low", "high"]}},
        "required": ["level"], "additionalProperties": false});
    let sum = |number: usize| user(&format!("What's {}+25?", 10 + number % 60));
    let free = json!({"temperature": 1, "top_k": 0, "top_p": 1, "max_tokens": 100,
        "logit_bias": {"1": -100, "106": -100, "50": -100}});
    match random(state) % 12 {
        0 => ask("sum", chat, user("What's 17+25?"), |response| {
            response.status == 200 && response.json()["choices"][0]["message"]["content"] == "42"
        }),
        1 => ask(
            "streamed",
            chat,
            with(user("What's 17+25?"), json!({"stream": true})),
            |response| {
                let text = |chunk: &Value| {
                    chunk["choices"][0]["delta"]["content"].as_str().map(str::to_owned)
                };
                response.status == 200
                    && response.chunks().iter().filter_map(text).collect::<String>() == "42"
            },
        ),
        2 => {
            // From a few tokens to most of the context.
            let story = "The captain wrote the number of every door. ".repeat(random(state) % 40);
            let body = user(&format!("{story}What's {}+25?", 10 + random(state) % 60));
            ask("long prompt", chat, body, |response| response.status == 200)
        }
        3 => {
            ask("tools", chat, with(sum(random(state)), json!({"tools": [weather]})), |response| {
                response.status == 200
            })
        }
        4 => {
            let more = json!({"tools": [weather], "tool_choice": "required", "parallel_tool_calls": false,
                "stream": random(state).is_multiple_of(2)});
            ask("demanded call", chat, with(sum(random(state)), more), |response| {
                response.status == 200 && response.body.contains("get_weather")
            })
        }
        5 => {
            let form =
                json!({"type": "json_schema", "json_schema": {"name": "l", "schema": level}});
            ask(
                "schema",
                chat,
                with(sum(random(state)), json!({"response_format": form})),
                |response| {
                    let choice = response.json()["choices"][0].clone();
                    let is_json = |text: &str| serde_json::from_str::<Value>(text).is_ok();
                    // Cut by the limit on tokens it is no JSON yet.
                    choice["finish_reason"] == "length"
                        || choice["message"]["content"].as_str().is_some_and(is_json)
                },
            )
        }
        6 => {
            let more = json!({"prompt": "once upon a time", "n": 2, "max_tokens": 1 + random(state) % 40,
                "logprobs": 3, "seed": random(state)});
            ask("completions", "/v1/completions", more, |response| {
                response.status == 200
                    && response.json()["choices"].as_array().is_some_and(|list| list.len() == 2)
            })
        }
        7 => {
            let body = json!({"input": "What's 17+25?", "temperature": 0, "stream": true});
            ask("responses", "/v1/responses", body, |response| {
                response.status == 200 && response.body.contains("response.completed")
            })
        }
        8 => {
            let body = with(sum(random(state)), json!({"max_tokens": random(state)}));
            ask("wrong", chat, with(body, json!({"mood": "odd"})), |response| {
                response.status == 400
            })
        }
        number => {
            let stream = number != 9;
            let body = with(with(sum(random(state)), free), json!({"stream": stream}));
            let leaves_after = Some(random(state) % 2_000);
            Asked { leaves_after, ..ask("left", chat, body, |_| true) }
        }
    }
}

/// Sends a request and notes what becomes of it.
fn send(address: SocketAddr, asked: &Asked, seen: &mut Seen) {
    let headers = [("content-type", "application/json")];
    let bytes = http::request("POST", asked.path, &headers, asked.body.to_string().as_bytes());
    let begun = Instant::now();
    if let Some(after) = asked.leaves_after {
        leave(address, &bytes, after);
        seen.left += 1;
        return;
    }
    let response = http::raw(address, &bytes);
    let took = begun.elapsed();
    if response.status == 429 {
        seen.refused.push(took);
        // As a client would, only sooner: the queue is to stay full.
        std::thread::sleep(Duration::from_millis(200));
    } else if (asked.is_right)(&response) {
        seen.answered.entry(asked.kind).or_default().push(took);
    } else {
        let Response { status, body, .. } = response;
        seen.faults.push(format!("{}: {status} {body}", asked.kind));
    }
}

/// Reads so many bytes of a response, or till its end, and goes; at once, if they are few.
fn leave(address: SocketAddr, bytes: &[u8], after: usize) {
    let mut connection = TcpStream::connect(address).unwrap();
    connection.write_all(bytes).unwrap();
    if after < 200 {
        return;
    }
    let mut read = 0;
    let mut portion = [0; 256];
    while read < after {
        match connection.read(&mut portion) {
            Ok(0) | Err(_) => return,
            Ok(count) => read += count,
        }
    }
}

/// The value in a row of `p` hundredths.
fn percentile(times: &mut [Duration], p: usize) -> Duration {
    times.sort_unstable();
    times
        .get((times.len() * p / 100).min(times.len().saturating_sub(1)))
        .copied()
        .unwrap_or_default()
}

/// Memory of a process that is not shared with files.
fn memory(process: u32) -> usize {
    let text = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kibibytes =
        line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok());
    kibibytes.unwrap_or(0) << 10
}

#[test]
fn more_clients_than_there_is_room_for() {
    let long =
        std::env::var("W4PACK_LOAD_SECONDS").ok().and_then(|value| value.parse::<u64>().ok());
    let duration = Duration::from_secs(long.unwrap_or(4));
    let folder = tempfile::tempdir().unwrap();
    let model = packed(folder.path());
    let served = Served::start(&["--model", &model, "--slots", "4", "--queue", "32"], &[]);
    let address: SocketAddr = served.address.parse().unwrap();

    let (over, sent) = (AtomicBool::new(false), AtomicUsize::new(0));
    let (refused, left) = (AtomicBool::new(false), AtomicBool::new(false));
    let begun = Instant::now();
    let mut sizes: Vec<(usize, usize)> = Vec::new();
    let mut seen = Seen::default();
    std::thread::scope(|scope| {
        let client = |number: usize| {
            let (over, sent, refused, left) = (&over, &sent, &refused, &left);
            scope.spawn(move || {
                let (mut seen, mut state) = (Seen::default(), number as u64);
                while !over.load(Ordering::Relaxed) {
                    send(address, &draw(&mut state), &mut seen);
                    sent.fetch_add(1, Ordering::Relaxed);
                    refused.fetch_or(!seen.refused.is_empty(), Ordering::Relaxed);
                    left.fetch_or(seen.left > 0, Ordering::Relaxed);
                }
                seen
            })
        };
        let clients: Vec<_> = (0..CLIENTS).map(client).collect();
        let done = || {
            // On a machine that is slow just now this takes longer.
            let load = refused.load(Ordering::Relaxed) && left.load(Ordering::Relaxed);
            let enough = match long {
                None => load || begun.elapsed() >= LONGEST,
                Some(_) => sent.load(Ordering::Relaxed) >= LEAST,
            };
            begun.elapsed() >= duration && enough
        };
        while !done() && !clients.iter().any(|client| client.is_finished()) {
            sizes.push((sent.load(Ordering::Relaxed), memory(served.child.id())));
            std::thread::sleep(Duration::from_millis(100));
        }
        over.store(true, Ordering::Relaxed);
        for client in clients {
            let Seen { answered, refused, left, faults } = client.join().unwrap();
            for (kind, times) in answered {
                seen.answered.entry(kind).or_default().extend(times);
            }
            seen.refused.extend(refused);
            seen.left += left;
            seen.faults.extend(faults);
        }
    });
    let elapsed = begun.elapsed().as_secs_f64();

    // Nobody asks any more: nobody is answered any more, and the next is answered at once.
    let begun = Instant::now();
    let idle = |page: &str| {
        ["w4pack_running 0", "w4pack_waiting 0"].iter().all(|line| page.lines().any(|l| l == *line))
    };
    while !idle(&served.send("GET", "/metrics", &[], "").1) {
        assert!(begun.elapsed() < LONGEST, "answers go on that nobody waits for");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(served.chat(&user("What's 17+25?")).0, 200);

    let sent = sent.into_inner();
    println!("{CLIENTS} clients, 4 slots, a queue of 32: {sent} requests in {elapsed:.0} s");
    for (kind, times) in &mut seen.answered {
        let (half, most) = (percentile(times, 50), percentile(times, 99));
        println!(
            "  {kind}: {} as they must be, half within {half:.0?}, 99 % within {most:.0?}",
            times.len()
        );
    }
    let (half, most) = (percentile(&mut seen.refused, 50), percentile(&mut seen.refused, 99));
    println!("  429: {}, half within {half:.1?}, 99 % within {most:.1?}", seen.refused.len());
    println!("  left in the middle: {}", seen.left);
    let mib = |bytes: usize| bytes as f64 / (1 << 20) as f64;
    let warm = sizes.iter().find(|(sent, _)| *sent >= WARM_UP).map(|(_, bytes)| *bytes);
    let highest = sizes.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0);
    let last = sizes.last().map_or(0, |(_, bytes)| *bytes);
    if let Some(warm) = warm {
        println!(
            "  memory: {:.0} MiB after {WARM_UP} requests, {:.0} at the end, {:.0} at most",
            mib(warm),
            mib(last),
            mib(highest)
        );
    }
    assert_eq!(seen.faults, Vec::<String>::new());
    assert!(!seen.refused.is_empty() && seen.left > 0, "it was no load");
    if long.is_some() {
        let warm = warm.expect("the warm-up is over");
        assert!(last <= warm + MOST_GROWTH, "memory grew by {:.0} MiB", mib(last - warm));
        assert!(most <= MOST_WAIT, "{most:?} until a refusal");
    }
}
