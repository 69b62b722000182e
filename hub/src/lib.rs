//! The Hugging Face Hub: from a name to files, from a folder to a repository. The only room beside
//! `eval --url` that opens connections outward.
//!
//! Read in this order: [`Settings`] (what the environment says), [`name`] (what a user types),
//! `http` (one request: to whom the token goes, what is tried again), [`Snapshot`] (a name resolved
//! to one commit and its files), [`ranges`] (those files read by byte ranges, none of them stored),
//! `cache` and `download` (Python's cache folder, filled), [`publish`] (the other direction).
//!
//! One HTTP client, ureq, carries everything but the transfer to the Hub's chunk store, which is
//! hf-hub's. hf-hub 1.0 itself downloads from zero after every cut, knows no offline mode, and does
//! not compare hashes: what is promised here about bytes would have had to be built around it.

mod cache;
mod check;
mod download;
mod error;
mod http;
pub mod name;
pub mod publish;
pub mod ranges;
mod settings;
mod snapshot;

pub use error::{HubError, Result};
pub use name::RepositoryName;
pub use settings::{Retry, Settings, Token};
pub use snapshot::{RemoteFile, Snapshot};

use http::Http;
use ranges::RangeSource;
use std::path::PathBuf;
use std::sync::Arc;
use w4pack_format::source::{FolderSource, Source};

/// Who hears of bytes on their way.
pub trait Progress: Send + Sync {
    /// A stage of so many bytes begins: "downloading", "uploading".
    fn begin(&self, stage: &'static str, bytes: u64);

    /// So many more of them have gone by.
    fn advance(&self, bytes: u64);

    /// Something worth a line: a wait, a connection that broke off and is taken up again.
    fn note(&self, text: &str);
}

/// Hears nothing.
impl Progress for () {
    fn begin(&self, _: &'static str, _: u64) {}

    fn advance(&self, _: u64) {}

    fn note(&self, _: &str) {}
}

/// A Hub that can be asked.
pub struct Hub {
    settings: Settings,
    http: Http,
    progress: Arc<dyn Progress>,
}

impl Hub {
    /// Opens no connection yet. Errors: an endpoint that is no address.
    pub fn new(settings: Settings, progress: Arc<dyn Progress>) -> Result<Arc<Hub>> {
        let http = Http::new(&settings, progress.clone())?;
        Ok(Arc::new(Hub { settings, http, progress }))
    }

    /// What it was made with.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The folder with all files of a repository at a revision (a branch, tag or commit), in the
    /// cache that Python's `huggingface_hub` uses too. What is missing there is downloaded; size and
    /// hash of every downloaded file are checked. Offline, or where the Hub cannot be reached, the
    /// cache alone answers.
    pub fn folder(&self, name: &RepositoryName, revision: &str) -> Result<PathBuf> {
        let cached = cache::snapshot(&self.settings, name, revision);
        if self.settings.offline {
            return cached.ok_or_else(|| self.not_cached(name, revision));
        }
        match (self.resolve(name, revision), cached) {
            (Ok(snapshot), _) => download::download(self, &snapshot, revision),
            (Err(error @ HubError::Network { .. }), Some(folder)) => {
                let folder_name = folder.display();
                self.progress
                    .note(&format!("{error}; going on with what is at hand, {folder_name}"));
                Ok(folder)
            }
            (Err(error), _) => Err(error),
        }
    }

    /// The files of a repository without storing any: those of the cache if it has them all, else
    /// read by ranges.
    pub fn open(
        self: &Arc<Self>,
        name: &RepositoryName,
        revision: &str,
    ) -> Result<Arc<dyn Source>> {
        if self.settings.offline {
            let cached = cache::snapshot(&self.settings, name, revision);
            let folder = cached.ok_or_else(|| self.not_cached(name, revision))?;
            return Ok(Arc::new(FolderSource::open(&folder)?));
        }
        let snapshot = self.resolve(name, revision)?;
        let folder = cache::Place::of(&self.settings, name).snapshot(&snapshot.commit);
        if snapshot.files.iter().all(|file| file.is_in(&folder)) {
            return Ok(Arc::new(FolderSource::open(&folder)?));
        }
        Ok(Arc::new(RangeSource::new(self.clone(), snapshot)))
    }

    fn not_cached(&self, name: &RepositoryName, revision: &str) -> HubError {
        HubError::NotCached {
            name: name.to_string(),
            revision: revision.into(),
            cache: self.settings.cache.display().to_string(),
        }
    }
}
