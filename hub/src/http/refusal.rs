//! A status that is no success, and what it means.

use super::{Answer, Call};
use crate::HubError;
use crate::error::{Missing, plain};
use jiff::fmt::rfc2822::DateTimeParser;
use std::time::Duration;

/// How much of a refusal is read.
const REFUSAL_BYTES: u64 = 1 << 16;

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
        let retry_after = retry_after(&answer);
        let stated = answer.header("x-error-message").map(str::to_string);
        let message = stated.unwrap_or_else(|| {
            let content = answer.content(REFUSAL_BYTES).unwrap_or_default();
            let json: serde_json::Value = serde_json::from_slice(&content).unwrap_or_default();
            let said = json["error"].as_str().or_else(|| json["message"].as_str());
            said.map_or_else(|| String::from_utf8_lossy(&content).into_owned(), str::to_string)
        });
        // Before it is cut: half a token is half too much.
        let mut message =
            plain(&hidden.map_or(message.clone(), |token| message.replace(token, "…")));
        if message.is_empty() {
            message = "without a word".into();
        }
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

/// What `Retry-After` says, as seconds or as a date, or the Hub's own header.
fn retry_after(answer: &Answer) -> Option<Duration> {
    let after = answer.header("retry-after").map(str::trim);
    let parser = DateTimeParser::new().relaxed_weekday(true);
    let date = |text: &str| parser.parse_timestamp(text).ok();
    let seconds = after.and_then(|text| {
        text.parse().ok().or_else(|| {
            // By the server's clock, if it says what that shows; ours may be wrong.
            let now = answer.header("date").and_then(date).unwrap_or_else(jiff::Timestamp::now);
            Some(date(text)?.as_second().saturating_sub(now.as_second()).max(0) as u64)
        })
    });
    let seconds = seconds.or_else(|| seconds_left(answer.header("ratelimit")?));
    seconds.map(Duration::from_secs)
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
