//! The second host: content by its hash, and what is uploaded.

use crate::repository::hex;
use crate::wire::{Answer, Request};
use crate::{Entry, FakeHub};
use sha2::Digest;
use std::sync::Arc;

impl FakeHub {
    pub(crate) fn store(&self, request: &Request) -> Answer {
        let parts: Vec<&str> = request.path.trim_start_matches('/').split('/').collect();
        match (request.method.as_str(), &parts[..]) {
            ("GET" | "HEAD", ["blobs", sha256]) => match self.object(sha256) {
                Some(content) => Answer::content(content, request),
                None => Answer::new(404, "no such object"),
            },
            ("PUT", ["upload", sha256]) => {
                self.state().objects.insert((*sha256).into(), Arc::new(request.body.clone()));
                Answer::new(200, "")
            }
            ("PUT", ["upload", sha256, number]) => {
                let Ok(number) = number.parse() else { return Answer::new(400, "no part") };
                let etag = format!("\"{}\"", hex(&sha2::Sha256::digest(&request.body)));
                let mut state = self.state();
                let parts = state.parts.entry((*sha256).into()).or_default();
                parts.insert(number, request.body.clone());
                Answer::new(200, "").header("ETag", etag)
            }
            _ => Answer::new(404, "nothing here"),
        }
    }

    /// Content by its hash, of a commit or uploaded.
    fn object(&self, sha256: &str) -> Option<Arc<Vec<u8>>> {
        let state = self.state();
        if let Some(found) = state.objects.get(sha256) {
            return Some(found.clone());
        }
        let commits = state.repositories.values().flat_map(|repository| &repository.commits);
        let mut entries = commits.flat_map(|commit| commit.files.values());
        let is_it = |entry: &&Entry| entry.large && entry.sha256() == sha256;
        entries.find(is_it).map(|entry| entry.content.clone())
    }
}
