//! NVIDIA's compilers from their PyPI wheels: no CUDA installation, no graphics card.

use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A version of NVRTC and the headers that belong to it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Release {
    /// Version of `nvidia-cuda-nvrtc-cu12`.
    pub nvrtc: &'static str,
    /// Version of `nvidia-cuda-runtime-cu12`, for `cuda_fp16.h`.
    pub runtime: &'static str,
}

/// A release, unpacked.
pub struct Unpacked {
    /// `libnvrtc.so.12`.
    pub library: PathBuf,
    /// The folder of `cuda_fp16.h`.
    pub include: PathBuf,
}

/// Installs the wheels of a release below `folder`, once.
pub fn unpack(release: Release, folder: &Path) -> Result<Unpacked> {
    let nvrtc = format!("nvidia-cuda-nvrtc-cu12=={}", release.nvrtc);
    let runtime = format!("nvidia-cuda-runtime-cu12=={}", release.runtime);
    let folder = folder.join(format!("nvrtc-{}", release.nvrtc));
    install(&[&nvrtc, &runtime], &folder)?;
    let nvidia = folder.join("nvidia");
    Ok(Unpacked {
        library: nvidia.join("cuda_nvrtc/lib/libnvrtc.so.12"),
        include: nvidia.join("cuda_runtime/include"),
    })
}

/// Installs wheels into `folder`, once.
pub fn install(wheels: &[&str], folder: &Path) -> Result<()> {
    let complete = folder.join("complete");
    if complete.exists() {
        return Ok(());
    }
    let python = std::env::var("PYTHON").unwrap_or_else(|_| "python3".into());
    let output = Command::new(&python)
        .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"])
        .args(["--no-deps", "--only-binary=:all:", "--upgrade", "--target"])
        .arg(folder)
        .args(wheels)
        .output()
        .with_context(|| format!("`{python} -m pip` could not be started"))?;
    if !output.status.success() {
        bail!("pip: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(std::fs::write(&complete, "")?)
}
