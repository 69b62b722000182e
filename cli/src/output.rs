//! stdout: data, and nothing else. A reader that goes away is no fault of ours, and no panic.

use anyhow::{Context, Result};
use std::io::Write;

/// Writes text as it is.
pub fn print(text: &str) -> Result<()> {
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
