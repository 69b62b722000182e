//! The notebook of docs/notebook, executed as far as a machine without a GPU allows.

use crate::support::*;
use std::path::Path;
use std::process::Command;

#[test]
fn every_cell_of_the_notebook_runs_on_the_cpu() {
    let Some(python) = std::env::var_os("W4PACK_PYTHON") else {
        eprintln!("skipped: W4PACK_PYTHON is not set, the notebook is not executed");
        return;
    };
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(python)
        .arg(root.join("oracle/notebook.py"))
        .arg(root.join("docs/notebook/colab-t4.ipynb"))
        .env("W4PACK", assert_cmd::cargo::cargo_bin("w4pack"))
        .env("CUDA_VISIBLE_DEVICES", "")
        .env("TMPDIR", folder.path())
        .env_remove("HF_TOKEN")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", stderr(&output));
    for found in [
        "models run on the CPU",
        "unaccounted: 0",
        "| context 4096 |",
        "auto: ",
        "prompt tokens a second",
        "depth 256: ",
        "% of the read bandwidth",
        "[image/svg+xml]",
    ] {
        assert!(said.contains(found), "`{found}` is not in:\n{said}");
    }
}
