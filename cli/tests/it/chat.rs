//! `w4pack chat` through a pipe, with the small trained model: one line a turn.

use crate::support::text;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use w4pack_fixtures::{FixtureOptions, Shape, trained};

struct Chat {
    folder: tempfile::TempDir,
}

impl Chat {
    fn new() -> Chat {
        let folder = tempfile::tempdir().unwrap();
        trained::write(&folder.path().join("model")).unwrap();
        let weather = json!([{"type": "function", "function": {
            "name": "get_weather", "description": "Current weather for a city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        }}]);
        std::fs::write(folder.path().join("tools.json"), weather.to_string()).unwrap();
        Chat { folder }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, model: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(assert_cmd::cargo::cargo_bin("w4pack"));
        command
            .args([
                "chat",
                "--quiet",
                "--device",
                "cpu",
                "--temperature",
                "0",
                "--model",
                text(model),
            ])
            .args(arguments)
            .env("W4PACK_HOME", self.folder.path())
            .current_dir(self.folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    fn say(&self, arguments: &[&str], lines: &str) -> Output {
        let mut child = self.command(&self.path("model"), arguments).spawn().unwrap();
        child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    }

    /// Lines of answers; every line given must have been answered.
    fn answers(&self, arguments: &[&str], lines: &str) -> Vec<String> {
        let output = self.say(arguments, lines);
        assert_eq!(output.status.code(), Some(0), "{}", crate::support::stderr(&output));
        String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
    }
}

const SUM: &str = "What's 17+25?\n";
const WEATHER: &str = "What is the weather in Paris right now?\n";

#[test]
fn a_line_is_a_turn_and_answers_go_to_stdout() {
    let chat = Chat::new();
    assert_eq!(chat.answers(&[], SUM), ["42"]);
    // Blank lines are no turns, and the last line needs no end.
    assert_eq!(chat.answers(&[], "\n\nWhat's 17+25?"), ["42"]);
}

#[test]
fn a_call_is_shown_and_the_next_line_is_its_result() {
    let chat = Chat::new();
    let lines = chat.answers(
        &["--tools", "tools.json"],
        &format!("{WEATHER}21 C and sunny\n/save done.json\n"),
    );
    assert_eq!(lines[0], r#"get_weather {"city":"Paris"}"#);
    assert!(lines.len() > 1 && lines[1].contains("21"), "{lines:?}");
    let saved: Value =
        serde_json::from_slice(&std::fs::read(chat.path("done.json")).unwrap()).unwrap();
    let roles: Vec<&str> = saved["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|message| message["role"].as_str().unwrap())
        .collect();
    assert_eq!(roles, ["user", "assistant", "tool", "assistant"]);
    assert_eq!(saved["messages"][2]["tool_call_id"], saved["messages"][1]["tool_calls"][0]["id"]);
}

/// What is taken back, forgotten, or written and read again leaves the conversation as it should be:
/// the same question then has the same answer.
#[test]
fn conversations_are_taken_back_forgotten_and_gone_on_with() {
    let chat = Chat::new();
    let tools = ["--tools", "tools.json"];
    let lines = format!("{WEATHER}/undo\n{WEATHER}/reset\n{WEATHER}/save a.json\n");
    let call = r#"get_weather {"city":"Paris"}"#;
    assert_eq!(chat.answers(&tools, &lines), [call, call, call]);
    let alone = chat.answers(&tools, &format!("{WEATHER}21 C\n"));
    assert_eq!(chat.answers(&["--load", "a.json"], "21 C\n"), alone[1..]);
    assert_eq!(chat.answers(&[], "/load a.json\n21 C\n"), alone[1..]);
}

/// Not the temporary file that it would have been written to at first.
#[test]
fn a_conversation_that_cannot_be_kept_is_told_of_by_the_name_that_was_given() {
    let output = Chat::new().say(&[], "/save nowhere/s.json\n");
    assert_eq!(output.status.code(), Some(1));
    let said = crate::support::stderr(&output);
    let expected = "could not write `nowhere/s.json`: there is no folder `nowhere`";
    assert!(said.contains(expected), "{said}");
}

#[test]
fn settings_are_shown_on_stderr_and_stdout_stays_data() {
    let chat = Chat::new();
    let output = chat.say(
        &["--system", "Be brief."],
        "/help\n/stats\n/think on\n/system Be kind.\n/tools tools.json\n/save s.json\n/exit\nnever read\n",
    );
    assert_eq!(output.status.code(), Some(0));
    assert!(output.stdout.is_empty());
    assert!(crate::support::stderr(&output).contains("/undo"));
    let saved: Value =
        serde_json::from_slice(&std::fs::read(chat.path("s.json")).unwrap()).unwrap();
    assert_eq!(saved["system"], "Be kind.");
    assert_eq!(saved["enable_thinking"], true);
    assert_eq!(saved["tools"][0]["function"]["name"], "get_weather");
    assert_eq!(saved["messages"], json!([]));
}

/// A line that cannot be answered says why, leaves the conversation as it was, and makes the exit code
/// 1; what comes before the first line makes it 2.
#[test]
fn faults_are_named_and_end_nothing() {
    let chat = Chat::new();
    std::fs::write(chat.path("bad.json"), r#"[{"type": "function", "function": {"name": "a b"}}]"#)
        .unwrap();
    let lines = format!("/frobnicate\n/tools bad.json\n/load nowhere.json\n/tools\n{SUM}");
    let output = chat.say(&[], &lines);
    let talk = crate::support::stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{talk}");
    for part in ["/frobnicate is no command", "bad.json", "\"a b\"", "nowhere.json"] {
        assert!(talk.contains(part), "{part}: {talk}");
    }
    assert_eq!(output.stdout, b"42\n");

    for arguments in
        [["--tools", "bad.json"], ["--tools", "nowhere.json"], ["--load", "tools.json"]]
    {
        let output = chat.say(&arguments, SUM);
        let talk = crate::support::stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{talk}");
        assert!(talk.contains(arguments[1]) && output.stdout.is_empty(), "{talk}");
    }
    let output = chat.say(&["--context", "24"], &format!("{WEATHER}{WEATHER}"));
    let talk = crate::support::stderr(&output);
    assert!(output.status.code() == Some(1) && talk.contains("the context 24"), "{talk}");
}

/// Ctrl-C stops an answer that has no end, and the chat goes on.
#[test]
fn an_interrupt_stops_the_answer_and_not_the_program() {
    let chat = Chat::new();
    let endless = chat.path("endless");
    // More than a pipe holds, so that it waits for this test, however late that reads on.
    let mut shape = Shape::tiny();
    shape.text.positions = 1 << 17;
    w4pack_fixtures::write(&shape, &endless, &FixtureOptions::default(), &|_, _| {
        ControlFlow::Continue(())
    })
    .unwrap();
    let mut child = chat.command(&endless, &["--max-tokens", "100000"]).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(b"hello\n").unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    // Something of the answer is there.
    assert!(!output.fill_buf().unwrap().is_empty());
    let interrupted =
        Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(interrupted.success());
    input.write_all(b"/stats\n/exit\n").unwrap();
    drop(input);
    std::io::copy(&mut output, &mut std::io::sink()).unwrap();
    let output = child.wait_with_output().unwrap();
    let talk = crate::support::stderr(&output);
    assert_eq!(output.status.code(), Some(0), "{talk}");
    assert!(talk.contains("1 answers:"), "{talk}");
}
