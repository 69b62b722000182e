//! Large files by the Hub's chunk store, which hf-hub speaks: it cuts files into chunks, sends those
//! that nobody has sent before, and makes the commit.
//!
//! hf-hub would put large files into the commit itself where a server does not offer the chunk store;
//! it is called only after the server has offered it for these very files.

use super::commit::Made;
use super::{Outgoing, Publication};
use crate::{Hub, HubError, Progress, Result};
use hf_hub::progress::{ProgressEvent, ProgressHandler, UploadEvent};
use hf_hub::repository::CommitOperation;
use hf_hub::{HFClientBuilder, HFError};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

impl Hub {
    pub(super) fn by_chunk_store(
        &self,
        publication: &Publication,
        head: &str,
        large: &[&Outgoing],
        small: &[&Outgoing],
    ) -> Result<Made> {
        let name = &publication.name;
        let (owner, short) = name.halves();
        let fail = |error: HFError| self.chunk_store_error(publication, head, &error);
        let mut operations = Vec::new();
        for file in small {
            operations.push(CommitOperation::add_bytes(&file.path, file.content()?));
        }
        for file in large {
            file.check()?;
            operations.push(CommitOperation::add_file(&file.path, &file.file));
        }
        let bytes = large.iter().map(|file| file.bytes).sum();
        self.progress.begin("uploading", bytes);
        let mut builder = HFClientBuilder::new()
            .endpoint(&self.settings.endpoint)
            .cache_enabled(false)
            .user_agent(concat!("w4pack/", env!("CARGO_PKG_VERSION")));
        if let Some(token) = &self.settings.token {
            builder = builder.token(token.reveal());
        }
        let repository = builder.build_sync().map_err(fail)?.model(owner, short);
        let heard = Heard { progress: self.progress.clone(), done: AtomicU64::new(0) };
        let sent = repository
            .create_commit()
            .operations(operations)
            .commit_message(publication.title.as_str())
            .create_pr(publication.pull_request)
            .parent_commit(head)
            .progress(heard)
            .send();
        match sent {
            Ok(info) => {
                let pages = [info.pr_url.as_deref(), info.commit_url.as_deref()];
                self.made(publication, info.commit_oid.as_deref(), pages)
            }
            Err(error) => match fail(error) {
                // The commit is the last thing that it does, and its answer can be lost.
                error @ HubError::ChunkStore { .. } => self.after_silence(publication, head, error),
                error => Err(error),
            },
        }
    }

    /// hf-hub's errors hold addresses, which may be signed, and the server's words.
    fn chunk_store_error(
        &self,
        publication: &Publication,
        head: &str,
        error: &HFError,
    ) -> HubError {
        // Precondition failed: the head is not the one that the commit was to follow.
        let overtaken = match error {
            HFError::Conflict { .. } => true,
            HFError::Http { context } => context.status.as_u16() == 412,
            _ => false,
        };
        if overtaken {
            return self.moved(publication, head);
        }
        let mut problem = error.to_string();
        if let Some(token) = &self.settings.token {
            problem = problem.replace(token.reveal(), "…");
        }
        let words: Vec<&str> =
            problem.split_whitespace().map(|word| word.split('?').next().unwrap_or(word)).collect();
        let attempt = format!("publish `{}`", publication.name);
        HubError::ChunkStore { attempt, problem: words.join(" ") }
    }
}

/// Passes hf-hub's counts on.
struct Heard {
    progress: Arc<dyn Progress>,
    done: AtomicU64,
}

impl ProgressHandler for Heard {
    fn on_progress(&self, event: &ProgressEvent) {
        if let ProgressEvent::Upload(UploadEvent::Progress { bytes_completed, .. }) = event {
            let before = self.done.fetch_max(*bytes_completed, Ordering::Relaxed);
            self.progress.advance(bytes_completed.saturating_sub(before));
        }
    }
}
