//! Instruction sets of the CPU: each one asked for by name, and a processor that has none of them.

use crate::support::*;
use std::path::Path;
use std::process::Command;

/// Ids of the small model's answer to a prompt, from the command as it is started here.
fn answer(mut command: Command, model: &Path) -> serde_json::Value {
    let prompt = ["--prompt", "What is 3 plus 4?", "--temperature", "0", "--max-tokens", "12"];
    command.args(["run", "--device", "cpu", "--threads", "1", "--json", "--quiet", "--model"]);
    let home = tempfile::tempdir().unwrap();
    let output = command.arg(model).args(prompt).env("W4PACK_HOME", home.path()).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    stdout_json(&output)["tokens"].clone()
}

fn w4pack_on(instructions: &str) -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin("w4pack"));
    command.env("W4PACK_CPU", instructions);
    command
}

fn packed(folder: &Path) -> std::path::PathBuf {
    let trained = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/trained");
    let out = folder.join("packed");
    succeed(&["convert", text(&trained), "--out", text(&out), "--quiet"]);
    out
}

#[test]
fn every_instruction_set_gives_the_same_answer() {
    let folder = tempfile::tempdir().unwrap();
    let model = packed(folder.path());
    let names = w4pack_kernels::cpu::Kernels::available();
    let answers: Vec<_> =
        names.iter().map(|kernels| answer(w4pack_on(kernels.name()), &model)).collect();
    assert!(answers[0].as_array().unwrap().len() > 1);
    assert!(answers.windows(2).all(|pair| pair[0] == pair[1]), "{answers:?}");
}

#[test]
fn an_instruction_set_that_is_not_there_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let model = packed(folder.path());
    for name in ["avx1024", "AVX2", "neon,avx2"] {
        let mut command = w4pack_on(name);
        let output =
            command.args(["run", "--tokens", "2", "--model"]).arg(&model).output().unwrap();
        let talk = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{talk}");
        for word in ["W4PACK_CPU", &format!("`{name}`"), "`portable`", "hint:"] {
            assert!(talk.contains(word), "{word}: {talk}");
        }
    }
}

#[test]
fn eight_bits_are_taken_where_they_are_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let model = packed(folder.path());
    let logits = |flags: &[&str]| {
        let file = folder.path().join("logits.safetensors");
        let ask =
            ["run", "--model", text(&model), "--tokens", "2,108,120,130", "--max-tokens", "1"];
        let ask = [&ask[..], &["--device", "cpu", "--logits", text(&file)], flags].concat();
        succeed(&ask);
        floats(&file, "logits")
    };
    let (fine, coarse) = (logits(&[]), logits(&["--fast"]));
    // Logits are capped at 30.
    let distance = distance(&fine, &coarse);
    assert!(distance > 1e-3 && distance < 3.0, "{distance}");
}

#[test]
fn field_case_27_a_processor_without_avx_gives_the_right_tokens() {
    const EMULATOR: &str = "qemu-x86_64-static";
    if !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
        return println!("skipped: the binary is not for x86-64 Linux");
    }
    if Command::new(EMULATOR).arg("--version").output().is_err() {
        return println!("skipped: there is no {EMULATOR}");
    }
    let folder = tempfile::tempdir().unwrap();
    let model = packed(folder.path());
    let mut nehalem = Command::new(EMULATOR);
    nehalem.args(["-cpu", "Nehalem"]).arg(assert_cmd::cargo::cargo_bin("w4pack"));
    assert_eq!(answer(nehalem, &model), answer(w4pack_on("portable"), &model));
}
