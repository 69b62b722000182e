//! A server as a process of its own.

use crate::support::*;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// The small trained model, packed.
pub fn packed(folder: &Path) -> String {
    let (google, packed) = (folder.join("google"), folder.join("packed"));
    w4pack_fixtures::trained::write(&google).unwrap();
    succeed(&["convert", text(&google), "--out", text(&packed), "--quiet"]);
    text(&packed).to_owned()
}

/// A server, killed if a test fails.
pub struct Served {
    pub child: Child,
    stdout: BufReader<ChildStdout>,
    stderr: ChildStderr,
    pub address: String,
}

impl Served {
    pub fn start(arguments: &[&str], environment: &[(&str, &str)]) -> Served {
        let mut child = Command::new(assert_cmd::cargo::cargo_bin!("w4pack"))
            .args(["serve", "--port", "0", "--device", "cpu"])
            .args(if arguments.contains(&"--context") { &[][..] } else { &["--context", "1024"] })
            .args(arguments)
            .env_remove("W4PACK_API_KEY")
            .envs(environment.iter().copied())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let address = line.strip_prefix("listening on http://").unwrap().trim().to_owned();
        let stderr = child.stderr.take().unwrap();
        let served = Served { child, stdout, stderr, address };
        let begun = Instant::now();
        while served.send("GET", "/health", &[], "").0 != 200 {
            assert!(begun.elapsed() < Duration::from_secs(120), "it is never ready");
            std::thread::sleep(Duration::from_millis(20));
        }
        served
    }

    pub fn send(&self, method: &str, path: &str, headers: &[&str], body: &str) -> (u16, String) {
        let mut connection = TcpStream::connect(&self.address).unwrap();
        let mut request =
            format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n");
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

    pub fn chat(&self, body: &Value) -> (u16, String) {
        self.send("POST", "/v1/chat/completions", &[], &body.to_string())
    }

    pub fn signal(&self, name: &str) {
        let number = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &number]).status().unwrap().success());
    }

    /// Waits for its end: the exit code, and what else was on stdout.
    pub fn end(mut self) -> (Option<i32>, String) {
        let mut rest = String::new();
        self.stdout.read_to_string(&mut rest).unwrap();
        (self.child.wait().unwrap().code(), rest)
    }

    /// Ends it: all that it said on stderr.
    pub fn talk(mut self) -> String {
        self.signal("TERM");
        let mut talk = String::new();
        self.stderr.read_to_string(&mut talk).unwrap();
        talk
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
