//! A status that is no success, and what it means.

use super::{Answer, Call};
use crate::HubError;
use crate::error::Missing;
use std::time::Duration;

/// How much of a server's words is repeated.
const MESSAGE_CHARACTERS: usize = 300;

/// An answer that refuses.
pub(super) struct Refusal {
    pub status: u16,
    pub host: String,
    /// The Hub's own name for the reason.
    code: String,
    message: String,
    retry_after: Option<Duration>,
    with_token: bool,
}

impl Refusal {
    /// `hidden` is cut out of the server's words.
    pub fn read(mut answer: Answer, with_token: bool, hidden: Option<&str>) -> Refusal {
        let code = answer.header("x-error-code").unwrap_or_default().to_string();
        let retry_after = answer.header("retry-after").and_then(|value| value.trim().parse().ok());
        let retry_after = retry_after.or_else(|| seconds_left(answer.header("ratelimit")?));
        let stated = answer.header("x-error-message").map(str::to_string);
        let message = stated.unwrap_or_else(|| {
            let text =
                answer.body.with_config().limit(1 << 16).read_to_string().unwrap_or_default();
            let json: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
            let said = json["error"].as_str().or_else(|| json["message"].as_str());
            said.unwrap_or(text.trim()).to_string()
        });
        // Before it is cut: half a token is half too much.
        let message = hidden.map_or(message.clone(), |hidden| message.replace(hidden, "…"));
        let mut message: String = message.chars().take(MESSAGE_CHARACTERS).collect();
        if message.is_empty() {
            message = "without a word".into();
        }
        let retry_after = retry_after.map(Duration::from_secs);
        Refusal { status: answer.status, host: answer.host, code, message, retry_after, with_token }
    }

    /// Whether the same request can fare better later: the pause that the server wishes, `Some(None)`
    /// where it names none.
    pub fn wished_pause(&self) -> Option<Option<Duration>> {
        matches!(self.status, 408 | 425 | 429 | 500 | 502 | 503 | 504).then_some(self.retry_after)
    }

    pub fn error(self, call: &Call<'_>, tries: u32) -> HubError {
        let attempt = call.attempt.clone();
        let (status, host, message, with_token) =
            (self.status, self.host, self.message, self.with_token);
        let missing = |what| HubError::NotFound { attempt: attempt.clone(), what };
        match (status, self.code.as_str()) {
            (401 | 403, "GatedRepo") => {
                HubError::Gated { attempt, page: page(&call.url), with_token, status }
            }
            (401, _) => HubError::Unauthorized { attempt, with_token },
            (403, _) => HubError::Forbidden { attempt, message },
            (404, "RevisionNotFound") => missing(Missing::Revision),
            (404, "EntryNotFound") => missing(Missing::File),
            (404, "RepoNotFound") => missing(Missing::Repository),
            (413, _) => HubError::TooLarge { attempt },
            (429, _) => {
                HubError::TooMany { attempt, seconds: self.retry_after.map(|wait| wait.as_secs()) }
            }
            (500.., _) => HubError::Server { attempt, host, status, tries, message },
            _ => HubError::Status { attempt, host, status, message },
        }
    }
}

/// The Hub's own header, `"api";r=0;t=42`: how long until it counts anew.
fn seconds_left(header: &str) -> Option<u64> {
    header.split(';').find_map(|part| part.trim().strip_prefix("t=")?.parse().ok())
}

/// `https://host/owner/name` of an address of a repository's API or file.
fn page(url: &str) -> String {
    let url = url.replacen("/api/models/", "/", 1);
    url.split('/').take(5).collect::<Vec<_>>().join("/")
}
