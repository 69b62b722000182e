//! Speeds, and a comparison with a program that prints what llama-bench prints.

use crate::support::*;
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// A small model, packed and as GGUF.
fn models(folder: &Path) -> [PathBuf; 2] {
    let [source, packed, gguf] = ["google", "packed", "gguf"].map(|name| folder.join(name));
    succeed(&["fixture", "tiny", "--out", text(&source), "--quiet"]);
    let convert = ["convert", text(&source), "--quiet", "--out"];
    succeed(&[&convert[..], &[text(&packed)]].concat());
    succeed(&[&convert[..], &[text(&gguf), "--layout", "gguf"]].concat());
    [packed, gguf.join("model-Q4_0.gguf")]
}

/// A program that notes its arguments, reads llama-bench's flags, and prints `output`, a shell text
/// in which `$p`, `$n`, `$d`, `$t` and `$l` are what it was asked for.
fn rival(folder: &Path, output: &str) -> PathBuf {
    let program = folder.join("llama-bench");
    let script = format!(
        "#!/bin/sh\n\
         echo \"$@\" >> '{}'\n\
         while [ $# -gt 0 ]; do\n\
         case \"$1\" in -p) p=$2;; -n) n=$2;; -d) d=$2;; -t) t=$2;; -ngl) l=$2;; esac\n\
         shift 2\n\
         done\n\
         {output}\n",
        folder.join("asked").display()
    );
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    program
}

const SOUND: &str = r#"cat <<END
[{"build_commit": "0c1e570", "backends": "CPU", "model_type": "gemma4 E2B Q4_0", "n_threads": $t,
  "n_gpu_layers": $l, "n_prompt": $p, "n_gen": $n, "n_depth": $d, "test_time": "now", "samples_ts": [50.0]}]
END"#;

#[test]
fn speeds_are_measured_in_turn_with_the_rival() {
    let folder = tempfile::tempdir().unwrap();
    let [model, gguf] = models(folder.path());
    let rival = rival(folder.path(), SOUND);
    let plot = folder.path().join("speed.svg");
    let arguments = [
        &["bench", "--model", text(&model), "--device", "cpu", "--threads", "2"][..],
        &[
            "--depth",
            "0,40",
            "--steps",
            "4",
            "--prompt-tokens",
            "33",
            "--rounds",
            "2",
            "--chunk",
            "16",
            "--slots",
            "3",
        ],
        &["--rival", text(&rival), "--rival-model", text(&gguf), "--plot", text(&plot), "--json"],
    ];
    let report = stdout_json(&succeed(&arguments.concat()));
    let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{value}"));
    assert_eq!(report["read_bandwidth_bytes_per_second"]["samples"].as_array().unwrap().len(), 8);
    assert_eq!(report["rival"]["build"], "0c1e570");
    assert!(report["device"].as_str().unwrap().contains("2 threads"));
    let (decode, prefill) = (&report["decode"], &report["prefill"][0]);
    assert_eq!((&decode[0]["depth"], &decode[1]["depth"]), (&0.into(), &40.into()));
    assert_eq!((&decode[1]["steps"], &prefill["tokens"]), (&4.into(), &33.into()));
    // Answers together have no rival.
    let together = &report["together"][0];
    assert_eq!((&together["slots"], &together["depth"]), (&3.into(), &0.into()));
    assert!(number(&together["tokens_per_second"]["median"]) > 0.0, "{together}");
    assert!(together["ratio"].is_null());
    // What lies deeper reads more keys and values, and nothing else.
    assert!(number(&decode[1]["bytes"]) > number(&decode[0]["bytes"]));
    for measured in [&decode[0], &decode[1], prefill] {
        let [speed, rate, share, ratio] =
            ["tokens_per_second", "bytes_per_second", "share_of_read_bandwidth", "ratio"]
                .map(|field| number(&measured[field]["median"]));
        assert!(speed > 0.0 && share > 0.0, "{measured}");
        let tokens = measured["tokens"].as_f64().unwrap_or(1.0);
        assert!((rate - speed / tokens * number(&measured["bytes"])).abs() <= 1e-6 * rate);
        assert_eq!(number(&measured["rival_tokens_per_second"]["median"]), 50.0);
        assert!((ratio - speed / 50.0).abs() <= 1e-9 * ratio, "{measured}");
    }
    // One test of one repetition a time, two rounds of each.
    let asked = std::fs::read_to_string(folder.path().join("asked")).unwrap();
    let asked: Vec<&str> = asked.lines().collect();
    for (number, test) in
        ["-p 0 -n 4 -d 0", "-p 0 -n 4 -d 40", "-p 33 -n 0 -d 0"].iter().enumerate()
    {
        for line in &asked[2 * number..2 * number + 2] {
            assert!(
                line.contains(test) && line.contains("-r 1") && line.contains("-t 2"),
                "{line}"
            );
            assert!(line.starts_with(&format!("-m {}", text(&gguf))), "{line}");
        }
    }
    assert_eq!(asked.len(), 6);
    let plot = std::fs::read_to_string(&plot).unwrap();
    assert!(plot.contains("decode at 40") && plot.contains("#ffffff") && plot.contains("50.0"));
}

#[test]
fn without_a_rival_there_is_no_ratio() {
    let folder = tempfile::tempdir().unwrap();
    let [model, _] = models(folder.path());
    let png = folder.path().join("speed.png");
    let ask = ["bench", "--model", text(&model), "--device", "cpu", "--depth", "3", "--steps", "2"];
    let rest = ["--prompt-tokens", "none", "--rounds", "1", "--plot", text(&png)];
    let said = String::from_utf8(succeed(&[&ask[..], &rest].concat()).stdout).unwrap();
    assert!(said.contains("plain read:") && said.contains("decode at 3"), "{said}");
    assert!(!said.contains("ratio") && !said.contains("prefill"), "{said}");
    assert!(std::fs::read(&png).unwrap().starts_with(b"\x89PNG"));
}

#[test]
fn a_rival_that_does_something_else_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let [model, gguf] = models(folder.path());
    let ask =
        ["bench", "--model", text(&model), "--device", "cpu", "--depth", "0", "--rounds", "1"];
    let ask = [&ask[..], &["--prompt-tokens", "none", "--steps", "2"]].concat();
    let line = SOUND.replace('\n', " ").replace("cat <<END ", "").replace(" END", "");
    let print = |text: &str| format!("cat <<END\n{text}\nEND");
    for (output, expected) in [
        ("echo '| model | size |'".into(), "not llama-bench's JSON"),
        (print("[]"), "0 results"),
        (print(&format!("{line}\n")).replace("}]", "}, {}]"), "not llama-bench's JSON"),
        (print(&line).replace("$n,", "7,"), "it measured a prompt of 0 and 7 tokens"),
        (print(&line).replace("$t,", "64,"), "it took 64"),
        (print(&line).replace("$l,", "99,"), "99 layers"),
        (print(&line).replace("[50.0]", "[]"), "its speeds are []"),
        (print(&line).replace("[50.0]", "[0.0]"), "its speeds are [0.0]"),
        ("echo 'error: unknown architecture' >&2; exit 3".into(), "unknown architecture"),
    ] {
        let rival = rival(folder.path(), &output);
        let flags = ["--rival", text(&rival), "--rival-model", text(&gguf)];
        let talk = refuse(1, &[&ask[..], &flags].concat());
        assert!(talk.contains("could not measure with") && talk.contains(expected), "{talk}");
        assert!(talk.contains("hint: "), "{talk}");
    }
    let missing = folder.path().join("missing");
    let flags = ["--rival", text(&missing), "--rival-model", text(&gguf)];
    assert!(refuse(1, &[&ask[..], &flags].concat()).contains("there is no such file"));
}

#[test]
fn a_rivals_model_must_be_ours() {
    let folder = tempfile::tempdir().unwrap();
    let [model, gguf] = models(folder.path());
    let rival = rival(folder.path(), SOUND);
    let ask = ["bench", "--model", text(&model), "--device", "cpu", "--depth", "0"];
    let ask = [&ask[..], &["--rival", text(&rival)]].concat();
    let with = |model: &Path| refuse(2, &[&ask[..], &["--rival-model", text(model)]].concat());
    let other = folder.path().join("e4b");
    succeed(&["fixture", "tiny-e4b", "--out", text(&other), "--quiet"]);
    let out = folder.path().join("other");
    let convert = ["convert", text(&other), "--layout", "gguf", "--quiet", "--out", text(&out)];
    succeed(&convert);
    let talk = with(&out.join("model-Q4_0.gguf"));
    assert!(talk.contains("cannot compare with") && talk.contains("ours"), "{talk}");
    assert!(talk.contains("--layout gguf"), "{talk}");
    let talk = with(&model.join("model.safetensors"));
    assert!(talk.contains("model.safetensors") && talk.contains("GGUF"), "{talk}");
    assert!(with(&folder.path().join("nothing.gguf")).contains("nothing.gguf"));
    // Nothing was run for any of them.
    assert!(!folder.path().join("asked").exists());
    assert!(gguf.exists());
}

#[test]
fn what_cannot_be_measured_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let [model, _] = models(folder.path());
    let ask = ["bench", "--model", text(&model), "--device", "cpu"];
    // The depths that are measured by default are more than this model has positions.
    assert!(refuse(2, &ask).contains("at most 4096, the positions of the context"));
    for (flags, expected) in [
        (&["--depth", "none", "--prompt-tokens", "none"][..], "depths, prompts and slots"),
        (&["--depth", "1,x"], "`x` is no number of tokens"),
        (&["--prompt-tokens", "0"], "tokens of a prompt"),
        (&["--steps", "0"], "steps"),
        (&["--rounds", "0"], "rounds"),
        (&["--depth", "99999999"], "is 100000031"),
        (&["--depth", "64", "--context", "70"], "positions of the context"),
        (&["--plot", "speed.pdf"], "neither .svg nor .png"),
        (&["--rival", "llama-bench"], "--rival-model"),
    ] {
        let talk = refuse(2, &[&ask[..], flags].concat());
        assert!(talk.contains(expected), "{flags:?}: {talk}");
    }
}
