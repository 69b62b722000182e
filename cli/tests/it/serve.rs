//! `w4pack serve` as those have it who start and stop it.

use crate::support::*;
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// The small trained model, packed.
fn packed(folder: &Path) -> String {
    let (google, packed) = (folder.join("google"), folder.join("packed"));
    w4pack_fixtures::trained::write(&google).unwrap();
    succeed(&["convert", text(&google), "--out", text(&packed), "--quiet"]);
    text(&packed).to_owned()
}

/// A server, killed if a test fails.
struct Served {
    child: Child,
    stdout: BufReader<ChildStdout>,
    address: String,
}

impl Served {
    fn start(arguments: &[&str], environment: &[(&str, &str)]) -> Served {
        let mut child = Command::new(assert_cmd::cargo::cargo_bin!("w4pack"))
            .args(["serve", "--port", "0", "--device", "cpu", "--context", "1024"])
            .args(arguments)
            .env_remove("W4PACK_API_KEY")
            .envs(environment.iter().copied())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let address = line.strip_prefix("listening on http://").unwrap().trim().to_owned();
        let served = Served { child, stdout, address };
        let begun = Instant::now();
        while served.send("GET", "/health", &[], "").0 != 200 {
            assert!(begun.elapsed() < Duration::from_secs(60), "it is never ready");
            std::thread::sleep(Duration::from_millis(20));
        }
        served
    }

    fn send(&self, method: &str, path: &str, headers: &[&str], body: &str) -> (u16, String) {
        let mut connection = TcpStream::connect(&self.address).unwrap();
        let mut request = format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n");
        for header in headers {
            request += &format!("{header}\r\n");
        }
        request += &format!(
            "content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        connection.write_all(request.as_bytes()).unwrap();
        let mut response = String::new();
        connection.read_to_string(&mut response).unwrap();
        let status = response.split(' ').nth(1).unwrap().parse().unwrap();
        (status, response.split_once("\r\n\r\n").unwrap().1.to_owned())
    }

    fn chat(&self, body: &Value) -> (u16, String) {
        self.send("POST", "/v1/chat/completions", &[], &body.to_string())
    }

    fn signal(&self, name: &str) {
        let number = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &number]).status().unwrap().success());
    }

    /// Waits for its end: the exit code, and what else was on stdout.
    fn end(mut self) -> (Option<i32>, String) {
        let mut rest = String::new();
        self.stdout.read_to_string(&mut rest).unwrap();
        (self.child.wait().unwrap().code(), rest)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

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
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
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
    // A port is asked for only when the model is there.
    let model = packed(folder.path());
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let talk = refuse(1, &["serve", "--port", &port, "--model", &model]);
    assert!(talk.contains(&port), "{talk}");
}
