//! `--speculate`: the same answers on every line that generates, and what is said of the guesses.

use crate::served::{Served, packed};
use crate::support::*;
use serde_json::Value;

const LIST: &str = "List: red 4121, blue 7730, green 4121, red 4121, blue 7730. Say it again.";

#[test]
fn run_answers_alike_and_counts_guesses() {
    let folder = tempfile::tempdir().unwrap();
    let model = packed(folder.path());
    let ask = ["run", "--model", &model, "--device", "cpu", "--prompt", LIST, "--ignore-eos"];
    let run = |flags: &[&str]| {
        let length = ["--max-tokens", "80", "--json", "--quiet"];
        stdout_json(&succeed(&[&ask[..], &length, flags].concat()))
    };
    for sampling in [&["--temperature", "0"][..], &["--temperature", "0.7", "--seed", "4"]] {
        let of = |name| run(&[sampling, &["--speculate", name]].concat());
        let [off, ngram, auto] = ["off", "ngram", "auto"].map(of);
        assert_eq!(off["tokens"], ngram["tokens"]);
        assert_eq!(off["tokens"], auto["tokens"]);
        assert_eq!(run(sampling)["tokens"], off["tokens"], "the default");
        let count = |report: &Value, name: &str| report[name].as_u64().unwrap();
        assert_eq!(count(&off, "drafted_tokens"), 0);
        let [drafted, accepted] =
            ["drafted_tokens", "accepted_tokens"].map(|name| count(&ngram, name));
        assert!(accepted > 0 && accepted <= drafted, "{accepted} of {drafted}");
    }
    let talk = stderr(&succeed(
        &[&ask[..], &["--max-tokens", "80", "--temperature", "0", "--speculate", "ngram"]].concat(),
    ));
    assert!(talk.contains("guessed tokens right"), "{talk}");
}

#[test]
fn serve_guesses_as_it_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let model = packed(folder.path());
    let body = serde_json::json!({"model": "packed", "temperature": 0, "max_tokens": 60,
        "logit_bias": {"106": -100}, "messages": [{"role": "user", "content": LIST}]});
    let answer = |flag: &str| -> Value {
        let served = Served::start(&["--model", &model, "--speculate", flag], &[]);
        let (status, reply) = served.send("POST", "/v1/chat/completions", &[], &body.to_string());
        assert_eq!(status, 200, "{reply}");
        serde_json::from_str(&reply).unwrap()
    };
    let [off, ngram] = ["off", "ngram"].map(answer);
    assert_eq!(off["choices"], ngram["choices"]);
    assert_eq!(off["usage"], ngram["usage"]);
    assert_eq!(off["timings"]["drafted_tokens"], 0);
    assert!(ngram["timings"]["accepted_tokens"].as_u64() > Some(0), "{ngram}");
}

#[test]
fn bench_measures_passes_over_several_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let model = packed(folder.path());
    let ask = ["bench", "--model", &model, "--device", "cpu", "--depth", "0,30", "--steps", "2"];
    let bench = |flags: &[&str]| {
        let few = ["--prompt-tokens", "none", "--rounds", "1", "--quiet"];
        succeed(&[&ask[..], &few, flags].concat())
    };
    let report = stdout_json(&bench(&["--speculate", "ngram", "--json"]));
    let tried = report["tried"].as_array().unwrap();
    let of = |name: &str| tried.iter().map(|one| one[name].as_u64().unwrap()).collect::<Vec<_>>();
    assert_eq!((of("tried"), of("depth")), (vec![2, 4, 8, 2, 4, 8], vec![0, 0, 0, 30, 30, 30]));
    assert!(tried.iter().all(|one| one["tokens_per_second"]["median"].as_f64() > Some(0.0)));
    let said = String::from_utf8(bench(&["--speculate", "ngram"]).stdout).unwrap();
    assert!(said.contains("8 tried at 30"), "{said}");
    assert_eq!(stdout_json(&bench(&["--json"]))["tried"], serde_json::json!([]));
}
