//! stdout: data, and nothing else. A reader that goes away is no fault of ours, and no panic. And
//! files that a flag names.

use anyhow::{Context, Result, bail};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether something was written.
static PRINTED: AtomicBool = AtomicBool::new(false);

/// Whether something was written to stdout.
pub fn has_printed() -> bool {
    PRINTED.load(Ordering::Relaxed)
}

/// Writes text as it is.
pub fn print(text: &str) -> Result<()> {
    PRINTED.store(true, Ordering::Relaxed);
    let mut stdout = std::io::stdout().lock();
    let written = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
    written.context("could not write to stdout")
}

/// Writes text and a line break.
pub fn line(text: &str) -> Result<()> {
    print(&format!("{text}\n"))
}

/// Writes an object as indented JSON.
pub fn json(object: &impl serde::Serialize) -> Result<()> {
    line(&serde_json::to_string_pretty(object)?)
}

/// Writes a file: whole under its name, or not at all.
pub fn file(path: &Path, content: &[u8]) -> Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    if !parent.is_dir() {
        bail!("could not write `{}`: there is no folder `{}`", path.display(), parent.display());
    }
    let written = tempfile::NamedTempFile::new_in(parent).and_then(|mut file| {
        file.write_all(content)?;
        file.as_file().set_permissions(std::fs::Permissions::from_mode(0o644))?;
        file.as_file().sync_all()?;
        file.persist(path).map_err(|error| error.error)
    });
    written.map(drop).with_context(|| format!("could not write `{}`", path.display()))
}
