//! Clients that others wrote, against the server with its small model; outputs are forced where the
//! model would not write them.
//!
//! `W4PACK_PYTHON` names a Python with oracle/requirements.txt installed, `W4PACK_NODE_MODULES` a
//! `node_modules` with oracle/clients/package.json installed. Without them the tests say so and pass.

use crate::support::*;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

fn clients() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../oracle/clients")
}

fn variable(name: &str, what: &str) -> Option<OsString> {
    let value = std::env::var_os(name);
    if value.is_none() {
        eprintln!("skipped: {name} is not set, {what} is not tried");
    }
    value
}

/// Runs a client, which fails unless every part of it passes.
fn run(mut command: Command, what: &str) -> String {
    // A proxy of the environment is for addresses elsewhere.
    for name in ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"] {
        command.env_remove(name);
    }
    let output = command.env("NO_PROXY", "127.0.0.1").output();
    let output = output.unwrap_or_else(|error| panic!("{what} could not be started: {error}"));
    let (said, talk) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{what}: {said}\n{talk}");
    said.into_owned()
}

fn python(script: &str) -> Option<String> {
    let python = variable("W4PACK_PYTHON", script)?;
    let running = Running::start();
    let mut command = Command::new(python);
    command.arg(clients().join(script)).arg(running.url());
    let said = run(command, script);
    assert_eq!(running.get("/health").status, 200, "the server lives");
    Some(said)
}

/// Scripts find their packages beside themselves: they are run from a copy next to `node_modules`.
fn node(script: &str) -> Option<String> {
    let modules = variable("W4PACK_NODE_MODULES", script)?;
    let running = Running::start();
    let beside = Path::new(&modules).parent().expect("node_modules lies in a folder");
    let copy = beside.join(format!("{}-{script}", std::process::id()));
    std::fs::copy(clients().join(script), &copy).expect("the folder can be written");
    let mut command = Command::new("node");
    command.arg(&copy).arg(running.url());
    let said = run(command, script);
    std::fs::remove_file(copy).expect("it is ours");
    Some(said)
}

fn all_passed(said: Option<String>, parts: usize) {
    let Some(said) = said else { return };
    assert_eq!(said.lines().filter(|line| line.ends_with(": passed")).count(), parts, "{said}");
}

#[test]
fn openai_for_python() {
    all_passed(python("openai_python.py"), 9);
}

#[test]
fn langchain_for_python() {
    all_passed(python("langchain_python.py"), 2);
}

#[test]
fn openai_for_node() {
    all_passed(node("openai_node.mjs"), 5);
}

#[test]
fn the_ai_sdk() {
    all_passed(node("ai_sdk.mjs"), 3);
}

/// The chat page, driven by Chromium's own protocol. `W4PACK_CHROMIUM` names the browser (else
/// `chromium` on the path), `W4PACK_SCREENSHOTS` a folder for what it shows.
#[test]
fn the_page_in_chromium() {
    let Some(python) = variable("W4PACK_PYTHON", "the page in Chromium") else { return };
    let chromium = std::env::var_os("W4PACK_CHROMIUM").unwrap_or_else(|| "chromium".into());
    if Command::new(&chromium).arg("--version").output().is_err() {
        eprintln!("skipped: there is no Chromium (W4PACK_CHROMIUM), the page is not tried");
        return;
    }
    let running = Running::with(&Setup { context: 8192, ..Setup::default() });
    let mut command = Command::new(python);
    command.arg(clients().join("page.py")).arg(running.url()).arg(chromium);
    command.args(std::env::var_os("W4PACK_SCREENSHOTS"));
    all_passed(Some(run(command, "page.py")), 13);
}

/// What /openapi.json describes, asked in ways that nobody thought of.
#[test]
fn schemathesis_finds_no_server_error() {
    let Some(python) = variable("W4PACK_PYTHON", "schemathesis") else { return };
    let running = Running::start();
    let mut command = Command::new(python);
    command.args(["-m", "schemathesis.cli", "run"]);
    command.arg(format!("{}/openapi.json", running.url()));
    command.args(["--checks", "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"]);
    command.args(["--max-examples", "30", "--seed", "1", "--phases", "examples,coverage,fuzzing"]);
    command.args(["--exclude-path", "/metrics", "--request-timeout", "60", "--no-color"]);
    command.current_dir(std::env::temp_dir());
    run(command, "schemathesis");
    assert_eq!(running.get("/health").status, 200, "the server lives");
}
