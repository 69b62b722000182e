//! What the repository holds after the commit, held against what was sent.

use super::Outgoing;
use crate::http::Call;
use crate::{Hub, HubError, RemoteFile, RepositoryName, Result};
use w4pack_format::digest::sha256;

impl Hub {
    /// Compares size and SHA-256 of every file: of large ones as the commit lists them, of small ones
    /// as they come when they are downloaded.
    pub(super) fn read_back(
        &self,
        name: &RepositoryName,
        commit: &str,
        sent: &[Outgoing],
    ) -> Result<()> {
        let there = self.list(name, commit)?;
        for file in sent {
            let fail = |problem: String| HubError::ReadBack {
                name: name.to_string(),
                commit: commit.into(),
                file: file.path.clone(),
                problem,
            };
            let Some(found) = there.iter().find(|found| found.path == file.path) else {
                return Err(fail("is not in it".into()));
            };
            if found.bytes != file.bytes {
                return Err(fail(format!("has {} bytes, {} were sent", found.bytes, file.bytes)));
            }
            if found.sha256.is_none() && file.is_surely_large() {
                return Err(fail("is held by Git itself, which large files must not be".into()));
            }
            let hash = match &found.sha256 {
                Some(sha256) => sha256.clone(),
                None => self.hash_of(name, commit, found)?,
            };
            if hash != file.sha256 {
                return Err(fail(format!("has SHA-256 {hash}, {} was sent", file.sha256)));
            }
        }
        Ok(())
    }

    fn hash_of(&self, name: &RepositoryName, commit: &str, file: &RemoteFile) -> Result<String> {
        let url = self.file_url(name, commit, &file.path);
        let call = Call::get(url, format!("read `{}` of `{name}` back", file.path));
        let (content, _) = self.http.content(&call, file.bytes.saturating_add(1))?;
        Ok(sha256(&content))
    }
}
