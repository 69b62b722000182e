//! A second compiler: nvcc of CUDA 13, which warns about more than NVRTC does and takes the host's half
//! of a source too. What it makes is thrown away.

use crate::wheels;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

const VERSION: &str = "13.0.88";
const WHEELS: [&str; 5] = [
    "nvidia-cuda-nvcc==13.0.88",
    "nvidia-cuda-crt==13.0.88",
    "nvidia-nvvm==13.0.88",
    "nvidia-cuda-runtime==13.0.96",
    "nvidia-cuda-cccl==13.0.85",
];

/// The kernels differ by generation in three steps: the oldest, copies in the background, clusters.
const TARGETS: [&str; 3] = ["sm_75", "sm_80", "sm_90"];

/// Compiles every source with every warning an error.
///
/// Errors: there is no gcc or no wheel ([`Unavailable`]); a warning or an error, in nvcc's words.
pub fn check(sources: &[PathBuf], folder: &Path) -> Result<()> {
    let folder = folder.join(format!("nvcc-{VERSION}"));
    // nvcc has the host's compiler read the source before it does.
    Command::new("gcc").arg("--version").output().context(Unavailable)?;
    wheels::install(&WHEELS, &folder).context(Unavailable)?;
    let nvcc = folder.join("nvidia/cu13/bin/nvcc");
    let mut faults = Vec::new();
    for source in sources {
        let mut command = Command::new(&nvcc);
        command.args(["--std=c++17", "--Werror=all-warnings", "--diag-suppress=128"]);
        command.args(["--fatbin", "--threads=0"]);
        for target in TARGETS {
            let virtual_target = target.replace("sm_", "compute_");
            command.arg(format!("--generate-code=arch={virtual_target},code={target}"));
        }
        let output = command
            .args(["--output-file", "/dev/null"])
            .arg(source)
            .output()
            .with_context(|| nvcc.display().to_string())?;
        if !output.status.success() || !output.stderr.is_empty() {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_string();
            faults.push(format!("{}: {said}", source.display()));
        }
    }
    if !faults.is_empty() {
        bail!("nvcc {VERSION}:\n{}", faults.join("\n"));
    }
    println!("nvcc {VERSION} has nothing to say about {} sources for {TARGETS:?}", sources.len());
    Ok(())
}

/// The compiler cannot be had here.
#[derive(Debug, Clone, Copy)]
pub struct Unavailable;

impl std::fmt::Display for Unavailable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "nvcc {VERSION} from its wheels, or the gcc beside it, cannot be had")
    }
}
