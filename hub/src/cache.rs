//! The cache folder, laid out as Python's `huggingface_hub` lays it out, so that either finds what the
//! other has downloaded:
//!
//! ```text
//! models--owner--name/refs/main                     the commit of a branch
//! models--owner--name/snapshots/<commit>/<path>     links to
//! models--owner--name/blobs/<hash>                  the files, by SHA-256 or Git's hash
//! .locks/models--owner--name/<hash>.lock            who downloads which
//! ```

use crate::{HubError, RepositoryName, Result, Settings};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// The paths of one repository.
pub(crate) struct Place {
    /// `models--owner--name`.
    pub root: PathBuf,
    locks: PathBuf,
}

impl Place {
    pub fn of(settings: &Settings, name: &RepositoryName) -> Place {
        let folder = format!("models--{}", name.as_str().replace('/', "--"));
        let locks = settings.cache.join(".locks").join(&folder);
        Place { root: settings.cache.join(folder), locks }
    }

    pub fn blob(&self, hash: &str) -> PathBuf {
        self.root.join("blobs").join(hash)
    }

    /// A file that is not whole yet.
    pub fn incomplete(&self, hash: &str) -> PathBuf {
        self.root.join("blobs").join(format!("{hash}.incomplete"))
    }

    pub fn lock(&self, hash: &str) -> PathBuf {
        self.locks.join(format!("{hash}.lock"))
    }

    pub fn snapshot(&self, commit: &str) -> PathBuf {
        self.root.join("snapshots").join(commit)
    }

    pub fn reference(&self, revision: &str) -> PathBuf {
        self.root.join("refs").join(revision)
    }

    /// Writes a small file whole or not at all.
    pub fn write_whole(&self, path: &Path, content: &str) -> Result<()> {
        use std::io::Write;
        create(parent(path))?;
        // Beside the folders that others list: what is left there after a crash is nobody's file.
        let written = tempfile::NamedTempFile::new_in(&self.root).and_then(|mut file| {
            file.write_all(content.as_bytes())?;
            file.persist(path).map_err(|error| error.error)
        });
        written.map(drop).map_err(failed("write", path))
    }

    /// A relative link at `link` to `target`, in place of whatever link is there.
    pub fn link(&self, target: &Path, link: &Path) -> Result<()> {
        let folder = parent(link);
        create(folder)?;
        let up = folder.components().count() - common(folder, target);
        let mut relative = PathBuf::new();
        for _ in 0..up {
            relative.push("..");
        }
        relative.extend(target.components().skip(common(folder, target)));
        // Others, of this process or not, may put the same link there at the same time.
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let fresh = self.root.join(format!(".link.{}.{number}", std::process::id()));
        let _ = fs::remove_file(&fresh);
        std::os::unix::fs::symlink(&relative, &fresh)
            .and_then(|()| fs::rename(&fresh, link))
            .map_err(failed("link", link))
    }
}

/// The folder of a revision, if the cache has one.
pub(crate) fn snapshot(
    settings: &Settings,
    name: &RepositoryName,
    revision: &str,
) -> Option<PathBuf> {
    crate::name::check_revision(revision).ok()?;
    let place = Place::of(settings, name);
    let commit = fs::read_to_string(place.reference(revision))
        .map_or_else(|_| revision.to_string(), |commit| commit.trim().to_string());
    // What stands in a file of the cache becomes part of a path.
    crate::name::check_revision(&commit).ok()?;
    let folder = place.snapshot(&commit);
    folder.is_dir().then_some(folder)
}

/// How many components two paths begin with alike.
fn common(one: &Path, other: &Path) -> usize {
    one.components().zip(other.components()).take_while(|(one, other)| one == other).count()
}

pub(crate) fn create(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).map_err(failed("create", folder))
}

pub(crate) fn failed(attempt: &'static str, path: &Path) -> impl FnOnce(io::Error) -> HubError {
    let path = path.display().to_string();
    move |cause| HubError::Io { attempt, path, cause }
}

pub(crate) fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("."))
}
