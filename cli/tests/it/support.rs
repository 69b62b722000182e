//! Running the command, and reading what it wrote.

#[path = "../../../testing/conformance.rs"]
mod conformance;

pub use conformance::conformance;
use serde_json::Value;
use std::path::Path;
use std::process::Output;

/// Runs w4pack with the arguments, away from the user's own home.
pub fn w4pack(arguments: &[&str]) -> Output {
    let home = tempfile::tempdir().unwrap();
    w4pack_at(home.path(), arguments)
}

/// The same with a w4pack home that stays.
pub fn w4pack_at(home: &Path, arguments: &[&str]) -> Output {
    assert_cmd::Command::cargo_bin("w4pack")
        .unwrap()
        .args(arguments)
        .env("W4PACK_HOME", home)
        .env("HF_HOME", home.join("huggingface"))
        .env("HF_HUB_OFFLINE", "1")
        .output()
        .unwrap()
}

/// Runs it and expects exit code 0.
pub fn succeed(arguments: &[&str]) -> Output {
    let output = w4pack(arguments);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", stderr(&output));
    output
}

/// Runs it, expects the exit code and no panic, and returns stderr.
pub fn refuse(code: i32, arguments: &[&str]) -> String {
    let output = w4pack(arguments);
    let talk = stderr(&output);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {talk}");
    assert!(!talk.contains("panicked"), "{talk}");
    talk
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub fn stdout_json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A path as an argument.
pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A tensor of f32 in a safetensors file.
pub fn floats(file: &Path, tensor: &str) -> Vec<f32> {
    let bytes = std::fs::read(file).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let view = tensors.tensor(tensor).unwrap();
    assert_eq!(view.dtype(), safetensors::Dtype::F32);
    view.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

/// Largest absolute difference.
pub fn distance(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// How far logits may be from those of a pass in f32, where activations are rounded to 16 bits for
/// products with packed words: 2e-3 of the root of their mean square.
pub fn in_sixteen_bits(exact: &[f32]) -> f32 {
    let squares: f32 = exact.iter().map(|logit| logit * logit).sum();
    2e-3 * (squares / exact.len() as f32).sqrt()
}

/// Ids as `--tokens` takes them.
pub fn comma_separated(ids: &Value) -> String {
    let ids = ids.as_array().unwrap().iter().map(|id| id.to_string());
    ids.collect::<Vec<_>>().join(",")
}

/// Runs a script of oracle/ with the Python of `W4PACK_PYTHON` and returns its stdout; `None`, with
/// a line that says so, where there is none.
pub fn python(script: &str, arguments: &[&str]) -> Option<String> {
    let Some(python) = std::env::var_os("W4PACK_PYTHON") else {
        eprintln!("skipped: W4PACK_PYTHON is not set, {script} is not run");
        return None;
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../oracle").join(script);
    let output = std::process::Command::new(python)
        .arg(script)
        .args(arguments)
        .env("HF_HUB_OFFLINE", "1")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    Some(String::from_utf8(output.stdout).unwrap())
}
