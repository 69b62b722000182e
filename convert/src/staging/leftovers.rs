//! What killed runs left beside an output.
//!
//! A folder in the making is called `.NAME.partial-PID`, an older output that had to step aside
//! `.NAME.old-PID`. Either is abandoned when its process is gone and nobody holds its lock; both
//! are asked, since a number may belong to a process of another container, and a lock is taken a
//! moment after the folder is made.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

use super::place::parent;
use crate::ConvertError;

/// Kind of a folder in the making.
pub(super) const PARTIAL: &str = "partial";

/// Kind of an older output that has stepped aside.
pub(super) const OLD: &str = "old";

/// The path beside `out` that this process uses for a kind of folder.
pub(super) fn sibling(out: &Path, kind: &str) -> PathBuf {
    parent(out).join(format!("{}{}", prefix(out, kind), std::process::id()))
}

fn prefix(out: &Path, kind: &str) -> String {
    let name = out.file_name().unwrap_or_default().to_string_lossy();
    format!(".{name}.{kind}-")
}

/// Removes abandoned folders, and this process's own of an earlier output. An older output that was
/// moved aside by a run that did not live to put the new one in place comes back.
pub(super) fn clear(out: &Path) -> Result<(), ConvertError> {
    let folder = parent(out);
    for entry in fs::read_dir(folder).map_err(ConvertError::io("list", folder))? {
        let entry = entry.map_err(ConvertError::io("list", folder))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        for kind in [PARTIAL, OLD] {
            let number = name.strip_prefix(&prefix(out, kind)).and_then(|rest| rest.parse().ok());
            let Some(number) = number else { continue };
            let path = entry.path();
            if !is_abandoned(&path, number) {
                continue;
            }
            if kind == OLD && !out.exists() {
                fs::rename(&path, out).map_err(ConvertError::io("bring back", &path))?;
                continue;
            }
            match fs::remove_dir_all(&path) {
                // Another run clears up at the same time.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                other => other.map_err(ConvertError::io("remove", &path))?,
            }
        }
    }
    Ok(())
}

fn is_abandoned(folder: &Path, process: i32) -> bool {
    let own = process == std::process::id() as i32;
    let gone =
        Pid::from_raw(process).is_none_or(|process| test_kill_process(process) == Err(Errno::SRCH));
    let locked = File::open(folder).is_ok_and(|folder| {
        flock(&folder, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK)
    });
    (own || gone) && !locked
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of a process that has ended.
    fn ended() -> u32 {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let number = child.id();
        child.wait().unwrap();
        number
    }

    fn leftover(folder: &Path, name: String) -> PathBuf {
        let path = folder.join(name);
        fs::create_dir_all(path.join("w4pack")).unwrap();
        fs::write(path.join("model.safetensors"), "half").unwrap();
        path
    }

    #[test]
    fn only_what_is_abandoned_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("out");
        fs::create_dir(&out).unwrap();
        let gone = ended();
        let abandoned =
            ["partial", "old"].map(|kind| leftover(folder.path(), format!(".out.{kind}-{gone}")));
        // Process 1 always lives.
        let kept = [".out.partial-1", ".other.partial-99999999", ".out.partial-x", "out.partial-1"]
            .map(|name| leftover(folder.path(), name.into()));
        clear(&out).unwrap();
        assert!(abandoned.iter().all(|path| !path.exists()));
        assert!(kept.iter().all(|path| path.exists()));
    }

    #[test]
    fn a_locked_folder_is_in_use_whoever_made_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = leftover(folder.path(), format!(".out.partial-{}", ended()));
        let lock = File::open(&path).unwrap();
        flock(&lock, FlockOperation::NonBlockingLockExclusive).unwrap();
        clear(&folder.path().join("out")).unwrap();
        assert!(path.exists());
        drop(lock);
        clear(&folder.path().join("out")).unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn an_older_output_that_stands_aside_comes_back() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("out");
        leftover(folder.path(), format!(".out.old-{}", ended()));
        clear(&out).unwrap();
        assert!(out.join("model.safetensors").exists());
    }
}
