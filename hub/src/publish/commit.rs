//! The commit itself: small files in it, large ones by their hashes, all or nothing.

use super::{Outgoing, Publication};
use crate::http::{Address, Call};
use crate::snapshot::is_hash;
use crate::{Hub, HubError, Result};
use base64::Engine;
use serde_json::json;

/// A commit that was made.
pub(super) struct Made {
    pub commit: String,
    pub url: String,
}

impl Hub {
    /// Makes a commit that follows `head`, or none.
    pub(super) fn commit(
        &self,
        publication: &Publication,
        head: &str,
        large: &[&Outgoing],
        small: &[&Outgoing],
    ) -> Result<Made> {
        let header = json!({
            "summary": publication.title,
            "description": "",
            "parentCommit": head,
        });
        let mut lines = vec![json!({"key": "header", "value": header})];
        for file in small {
            let content = base64::engine::general_purpose::STANDARD.encode(file.content()?);
            let value = json!({"path": file.path, "content": content, "encoding": "base64"});
            lines.push(json!({"key": "file", "value": value}));
        }
        for file in large {
            let (path, oid, size) = (&file.path, &file.sha256, file.bytes);
            let value = json!({"path": path, "algo": "sha256", "oid": oid, "size": size});
            lines.push(json!({"key": "lfsFile", "value": value}));
        }
        let body: String = lines.iter().map(|line| format!("{line}\n")).collect();
        let name = &publication.name;
        let branch = crate::name::MAIN;
        let query = if publication.pull_request { "?create_pr=1" } else { "" };
        let url = format!("{}/api/models/{name}/commit/{branch}{query}", self.settings.endpoint);
        let attempt = format!("commit to `{name}`");
        let mut call = Call::post(url, body.as_bytes(), attempt.as_str());
        call = call.header("content-type", "application/x-ndjson");
        // Made twice, the second would follow the first and not `head`.
        call.repeatable = false;
        match self.http.json(&call) {
            Ok((answer, _)) => {
                let text = |key: &str| answer[key].as_str();
                let pages = [text("pullRequestUrl"), text("commitUrl")];
                self.made(publication, text("commitOid"), pages)
            }
            Err(HubError::Status { status: 409 | 412, .. }) => Err(self.moved(publication, head)),
            Err(error @ (HubError::Network { .. } | HubError::Server { .. })) => {
                self.after_silence(publication, head, error)
            }
            Err(error) => Err(error),
        }
    }

    /// The commit that an answer names, and its page or the pull request's.
    pub(super) fn made(
        &self,
        publication: &Publication,
        commit: Option<&str>,
        pages: [Option<&str>; 2],
    ) -> Result<Made> {
        let name = &publication.name;
        // What a server says here becomes part of addresses and of what the user reads.
        let Some(commit) = commit.filter(|commit| is_hash(commit, 40)) else {
            return Err(self.answer(format!("commit to `{name}`"), "it names no commit".into()));
        };
        let page = pages.into_iter().flatten().find_map(Address::parse);
        let url = page.map_or_else(
            || format!("{}/{name}/commit/{commit}", self.settings.endpoint),
            |page| page.as_str().to_string(),
        );
        Ok(Made { commit: commit.to_ascii_lowercase(), url })
    }

    pub(super) fn moved(&self, publication: &Publication, head: &str) -> HubError {
        let (name, branch) = (publication.name.to_string(), crate::name::MAIN.into());
        HubError::Moved { name, branch, parent: head.into() }
    }

    /// The answer never came, or was lost: was the commit made all the same? The head says so if it
    /// holds every file.
    pub(super) fn after_silence(
        &self,
        publication: &Publication,
        head: &str,
        error: HubError,
    ) -> Result<Made> {
        let name = &publication.name;
        if publication.pull_request {
            let page = format!("{}/{name}/discussions", self.settings.endpoint);
            self.progress.note(&format!(
                "the answer to the commit was lost: a pull request may have been made, see {page}"
            ));
            return Err(error);
        }
        let Ok(now) = self.head(name, crate::name::MAIN) else { return Err(error) };
        if now == head || self.read_back(name, &now, &publication.files).is_err() {
            return Err(error);
        }
        self.made(publication, Some(&now), [None, None])
    }
}
