//! The w4pack home: where conversions go when no folder is named, and where `run` looks for one.

use crate::message::Usage;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use w4pack_format::manifest::{MANIFEST_FILE, Manifest};

/// `$W4PACK_HOME`, else `$XDG_DATA_HOME/w4pack`, else `~/.local/share/w4pack`.
pub fn folder() -> Result<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(home) = variable("W4PACK_HOME") {
        return Ok(home.into());
    }
    if let Some(data) = variable("XDG_DATA_HOME") {
        return Ok(Path::new(&data).join("w4pack"));
    }
    let user = variable("HOME").ok_or_else(|| {
        Usage::new("there is no home folder: HOME is not set")
            .hint("set W4PACK_HOME, or give --out")
    })?;
    Ok(Path::new(&user).join(".local/share/w4pack"))
}

/// Where a conversion of `source_name` (`owner/name` or a folder's name) goes by default.
pub fn conversion_folder(source_name: &str, layout: &str) -> Result<PathBuf> {
    let name = source_name.replace('/', "--");
    Ok(folder()?.join(format!("{name}-w4a16-{layout}")))
}

/// The newest conversion in the home, by its manifest's time.
pub fn newest_conversion() -> Result<PathBuf> {
    let home = folder()?;
    let mut newest: Option<(String, PathBuf)> = None;
    if home.is_dir() {
        let entries = std::fs::read_dir(&home)
            .with_context(|| format!("could not list the w4pack home `{}`", home.display()))?;
        for entry in entries {
            let path =
                entry.with_context(|| format!("could not list `{}`", home.display()))?.path();
            // A folder without a manifest is none of ours, and one being written has none yet.
            let Ok(bytes) = std::fs::read(path.join(MANIFEST_FILE)) else { continue };
            let Ok(manifest) = Manifest::parse(&bytes) else { continue };
            if newest.as_ref().is_none_or(|(created, _)| *created < manifest.created) {
                newest = Some((manifest.created, path));
            }
        }
    }
    newest.map(|(_, path)| path).ok_or_else(|| {
        let message = format!("no --model was given and `{}` holds no conversion", home.display());
        let hint = "make one with `w4pack convert google/gemma-4-E2B-it-qat-q4_0-unquantized`";
        Usage::new(message).hint(hint).into()
    })
}
