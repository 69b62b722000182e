//! The commit itself: small files in it, large ones by their hashes, all or nothing.

use super::{Outgoing, Publication};
use crate::http::Call;
use crate::{Hub, HubError, Result};
use base64::Engine;
use serde_json::{Value, json};

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
            Ok((answer, _)) => self.made(publication, &answer),
            Err(HubError::Status { status: 409 | 412, .. }) => Err(self.moved(publication, head)),
            Err(error @ (HubError::Network { .. } | HubError::Server { .. })) => {
                self.after_silence(publication, head, error)
            }
            Err(error) => Err(error),
        }
    }

    pub(super) fn made(&self, publication: &Publication, answer: &Value) -> Result<Made> {
        let name = &publication.name;
        let Some(commit) = answer["commitOid"].as_str() else {
            return Err(self.answer(format!("commit to `{name}`"), "it names no commit".into()));
        };
        let page = answer["pullRequestUrl"].as_str().or_else(|| answer["commitUrl"].as_str());
        let url = page.map_or_else(
            || format!("{}/{name}/commit/{commit}", self.settings.endpoint),
            str::to_string,
        );
        Ok(Made { commit: commit.into(), url })
    }

    pub(super) fn moved(&self, publication: &Publication, head: &str) -> HubError {
        let (name, branch) = (publication.name.to_string(), crate::name::MAIN.into());
        HubError::Moved { name, branch, parent: head.into() }
    }

    /// The answer never came: was the commit made all the same? The head says so if it holds every
    /// file.
    fn after_silence(
        &self,
        publication: &Publication,
        head: &str,
        error: HubError,
    ) -> Result<Made> {
        let name = &publication.name;
        let Ok(now) = self.head(name, crate::name::MAIN) else { return Err(error) };
        if now == head || self.read_back(name, &now, &publication.files).is_err() {
            return Err(error);
        }
        let url = format!("{}/{name}/commit/{now}", self.settings.endpoint);
        Ok(Made { commit: now, url })
    }
}
