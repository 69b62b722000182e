//! Where there is no card: no driver, a driver that is none, a driver that shows no card.

use crate::support::*;
use std::path::Path;
use std::process::Output;

/// Runs the command where no CUDA can be found, in three ways.
fn without_a_card(arguments: &[&str], check: impl Fn(&str, Output)) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("libcuda.so.1"), "").unwrap();
    let empty = text(folder.path()).to_string();
    for (what, variable, value) in [
        ("no driver or no card", "CUDA_VISIBLE_DEVICES", ""),
        ("an empty library", "LD_LIBRARY_PATH", empty.as_str()),
        ("a card that is not there", "CUDA_VISIBLE_DEVICES", "63"),
    ] {
        let mut command = assert_cmd::Command::cargo_bin("w4pack").unwrap();
        command.args(arguments).env("W4PACK_HOME", folder.path()).env(variable, value);
        check(what, command.output().unwrap());
    }
}

fn packed(folder: &Path) -> String {
    let out = folder.join("packed");
    succeed(&["fixture", "tiny", "--packed", "--out", text(&out), "--quiet"]);
    text(&out).to_string()
}

#[test]
fn field_case_26_without_cuda_auto_runs_on_the_cpu_and_cuda_refuses_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let model = packed(folder.path());
    let ask = ["run", "--model", &model, "--tokens", "2,120", "--max-tokens", "2"];
    without_a_card(&[&ask[..], &["--device", "auto"]].concat(), |what, output| {
        let talk = stderr(&output);
        assert_eq!(output.status.code(), Some(0), "{what}: {talk}");
        assert!(talk.contains("no CUDA (") && talk.contains("using CPU"), "{what}: {talk}");
        assert!(!talk.contains("panicked"), "{what}: {talk}");
    });
    for device in ["cuda", "cuda:1"] {
        without_a_card(&[&ask[..], &["--device", device]].concat(), |what, output| {
            let talk = stderr(&output);
            assert_eq!(output.status.code(), Some(2), "{what}: {talk}");
            let errors = talk.lines().filter(|line| line.starts_with("error:")).count();
            assert_eq!(errors, 1, "{what}: {talk}");
            assert!(talk.contains("hint: run on the CPU with --device cpu"), "{what}: {talk}");
            assert!(!talk.contains("panicked"), "{what}: {talk}");
        });
    }
}

#[test]
fn doctor_says_that_there_is_no_card() {
    without_a_card(&["doctor"], |what, output| {
        assert_eq!(output.status.code(), Some(0), "{what}: {}", stderr(&output));
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(said.contains("no CUDA (") && said.contains("CPU"), "{what}: {said}");
        let kernels = w4pack_kernels::cpu::Kernels::best().name();
        assert!(said.contains(&format!("kernels {kernels}")), "{what}: {said}");
    });
    without_a_card(&["doctor", "--json"], |_, output| {
        let report = stdout_json(&output);
        assert_eq!(report["gpus"], serde_json::json!([]));
        assert!(report["reason"].as_str().unwrap().len() > 5);
        let cpu = &report["cpu"];
        assert_eq!(cpu["kernels"].as_array().unwrap().last().unwrap(), "portable");
        let without_amx = cpu["kernels"][0] != "amx";
        assert_eq!(
            cpu["without_amx_because"].is_string(),
            without_amx && cfg!(target_arch = "x86_64")
        );
    });
}

#[test]
fn flags_that_a_card_does_not_honour_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let model = packed(folder.path());
    let ask = ["run", "--model", &model, "--tokens", "2", "--device", "cuda"];
    for flags in [["--weights", "bf16"], ["--kv", "f32"], ["--threads", "2"]] {
        let talk = refuse(2, &[&ask[..], &flags].concat());
        assert!(talk.contains(&format!("`{}`", flags.join(" "))), "{talk}");
    }
    assert!(refuse(2, &[&ask[..], &["--fast"]].concat()).contains("`--fast`"));
}
