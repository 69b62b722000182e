//! `w4pack eval` as a user has it.

use crate::support::*;
use std::fs;
use std::path::Path;

/// A small packed checkpoint.
fn model(folder: &Path) -> String {
    let model = folder.join("model");
    succeed(&["fixture", "tiny", "--packed", "--out", text(&model), "--quiet"]);
    text(&model).to_owned()
}

const FEW: [&str; 8] =
    ["--lengths", "100", "--depths", "0,100", "--seeds", "0,1", "--max-tokens", "4"];

#[test]
fn recall_on_a_local_model_is_resumed_compared_and_plotted() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path());
    let path = |name: &str| folder.path().join(name);
    let (out, plot) = (path("out.jsonl"), path("plot.svg"));
    let ask = ["eval", "recall", "--model", &model];
    let recall = |more: &[&str]| succeed(&[&ask[..], &FEW, more].concat());
    let to = ["--out", text(&out), "--json"];
    recall(&[&to[..], &["--limit", "2"]].concat());
    assert_eq!(fs::read_to_string(&out).unwrap().lines().count(), 2);
    let plotted = [&to[..], &["--plot", text(&plot)]].concat();
    let summary = stdout_json(&recall(&plotted));
    assert_eq!((&summary["task"], &summary["questions"]), (&"recall".into(), &4.into()));
    assert_eq!(summary["groups"][1]["group"]["depth"], 100);
    assert!(fs::read_to_string(&plot).unwrap().ends_with("</svg>\n"));

    // At once, into another file: byte for byte the same.
    let again = path("again.jsonl");
    let printed = recall(&["--out", text(&again)]);
    assert_eq!(fs::read(&out).unwrap(), fs::read(&again).unwrap());
    let printed = String::from_utf8(printed.stdout).unwrap();
    assert!(printed.contains("depth") && printed.contains("of 4"), "{printed}");
    let compared = succeed(&["eval", "compare", text(&out), text(&again), "--json"]);
    let compared = stdout_json(&compared);
    assert_eq!((&compared["questions"], &compared["same_answers"]), (&4.into(), &4.into()));
    assert_eq!(compared["p"], 1.0);

    // Other settings: refused, with a way out.
    let warmer = ["--out", text(&out), "--temperature", "1"];
    let talk = refuse(2, &[&ask[..], &FEW, &warmer].concat());
    assert!(talk.contains("`temperature`") && talk.contains("hint:"), "{talk}");
}

/// Other weights under the same name are another model, also where no manifest says so.
#[test]
fn answers_of_other_weights_under_the_same_path_are_not_taken_for_ours() {
    let folder = tempfile::tempdir().unwrap();
    let (model, out) = (folder.path().join("model"), folder.path().join("out.jsonl"));
    for seed in ["1", "2"] {
        let _ = fs::remove_dir_all(&model);
        succeed(&["fixture", "tiny", "--seed", seed, "--out", text(&model), "--quiet"]);
        let ask = ["eval", "recall", "--model", text(&model), "--out", text(&out)];
        let ask = [&ask[..], &FEW, &["--limit", "1"]].concat();
        if seed == "1" {
            succeed(&ask);
        } else {
            let talk = refuse(2, &ask);
            assert!(talk.contains("weights_blake3") && talk.contains("hint:"), "{talk}");
        }
    }
}

#[test]
fn wrong_use_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data.jsonl");
    fs::write(&data, "{\"question\": \"1 + 1?\", \"answer\": \"two\"}\n").unwrap();
    let talk = refuse(2, &["eval", "gsm8k", "--data", text(&data)]);
    assert!(talk.contains("line 1") && talk.contains("####"), "{talk}");
    let talk = refuse(2, &["eval", "bfcl", "--data", text(&data)]);
    assert!(talk.contains("possible_answer") && talk.contains("hint: --answers"), "{talk}");
    let url = ["eval", "recall", "--url", "http://example.com/v1"];
    let talk = refuse(2, &url);
    assert!(talk.contains("--model"), "{talk}");
    let talk = refuse(2, &[&url[..], &["--model", "m", "--offline"]].concat());
    assert!(talk.contains("--offline") && talk.contains("example.com"), "{talk}");
    let talk = refuse(2, &[&url[..], &["--model", "m", "--context", "100"]].concat());
    assert!(talk.contains("--context"), "{talk}");
    let talk = refuse(2, &["eval", "recall", "--url", "example.com", "--model", "m"]);
    assert!(talk.contains("http://"), "{talk}");
    let talk = refuse(2, &["eval", "recall", "--depths", "101"]);
    assert!(talk.contains("depths"), "{talk}");
    let talk = refuse(2, &["eval", "recall", "--limit", "0"]);
    assert!(talk.contains("--limit"), "{talk}");
    // Nobody listens there: named, after one attempt, and a failure rather than wrong use.
    let gone = "http://127.0.0.1:9/v1";
    let talk = refuse(1, &["eval", "recall", "--url", gone, "--model", "m", "--retries", "0"]);
    assert!(talk.contains(gone) && talk.contains("asked once"), "{talk}");
    let talk = refuse(2, &["eval", "compare", "absent.jsonl", "absent.jsonl"]);
    assert!(talk.contains("absent.jsonl"), "{talk}");
}
