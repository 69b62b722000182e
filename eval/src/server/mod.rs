//! Any OpenAI-compatible server: `POST {url}/chat/completions`, not streamed.

mod request;
mod response;

use crate::answerer::{AnswerError, Answerer, Asked, Reply};
use crate::error::{EvalError, Result};
use serde_json::{Value, json};
use std::time::Duration;

/// Longest wait before asking again, whatever the server wishes.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// Longest reply that is read.
const REPLY_BYTES: u64 = 64 << 20;
/// How much of a server's complaint is repeated.
const COMPLAINT_CHARACTERS: usize = 300;

/// Where and how to ask.
#[derive(Clone)]
pub struct ServerOptions {
    /// The API's base, `http://127.0.0.1:8080/v1`.
    pub url: String,
    /// The model's name at that server.
    pub model: String,
    /// Sent as a bearer token.
    pub api_key: Option<String>,
    /// Requests at once.
    pub concurrency: usize,
    /// How often a failed request is repeated.
    pub retries: usize,
    /// Wait before the first repetition; it doubles with each. A `Retry-After` goes before.
    pub first_wait: Duration,
    /// Longest time for one request.
    pub timeout: Duration,
}

/// A server that answers.
pub struct ServerAnswerer {
    options: ServerOptions,
    endpoint: String,
    agent: ureq::Agent,
}

impl ServerAnswerer {
    /// Opens no connection yet.
    ///
    /// Errors: a URL that is neither http nor https, a concurrency or a timeout of 0.
    pub fn new(options: ServerOptions) -> Result<Self> {
        if !options.url.starts_with("http://") && !options.url.starts_with("https://") {
            let expected = "an address that begins with http:// or https:// and ends in /v1";
            return Err(EvalError::Setting { name: "url", value: options.url, expected });
        }
        if options.concurrency == 0 {
            let (value, expected) = ("0".into(), "at least 1");
            return Err(EvalError::Setting { name: "concurrency", value, expected });
        }
        if options.timeout.is_zero() {
            let (value, expected) = ("0".into(), "at least a second");
            return Err(EvalError::Setting { name: "timeout", value, expected });
        }
        let mut config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(options.timeout))
            .max_idle_connections_per_host(options.concurrency);
        if is_this_machine(&options.url) {
            // A proxy of the environment is for addresses elsewhere.
            config = config.proxy(None);
        }
        let endpoint = format!("{}/chat/completions", options.url.trim_end_matches('/'));
        Ok(Self { options, endpoint, agent: config.build().into() })
    }
}

impl Answerer for ServerAnswerer {
    fn identity(&self) -> Value {
        json!({"url": self.options.url, "model": self.options.model})
    }

    fn concurrency(&self) -> usize {
        self.options.concurrency
    }

    fn answer(&self, asked: &Asked<'_>) -> Result<Reply, AnswerError> {
        let body = request::body(&self.options.model, asked).to_string();
        let mut wait = self.options.first_wait;
        let mut tries = 0;
        loop {
            tries += 1;
            let attempt = self.attempt(&body);
            let again = tries <= self.options.retries;
            let wished = match attempt {
                Attempt::Done(text) => return response::parse(&self.endpoint, &text),
                Attempt::Refused { status, retry_after, .. } if again && may_pass(status) => {
                    retry_after
                }
                Attempt::Refused { status, body, .. } => {
                    return Err(AnswerError::Status {
                        url: self.endpoint.clone(),
                        status,
                        tries,
                        body,
                    });
                }
                Attempt::Failed(_) if again => None,
                Attempt::Failed(finding) => {
                    let url = self.endpoint.clone();
                    return Err(AnswerError::Connection { url, tries, finding });
                }
            };
            std::thread::sleep(wished.unwrap_or(wait).min(LONGEST_WAIT));
            wait = (wait * 2).min(LONGEST_WAIT);
        }
    }
}

/// What came of one request.
enum Attempt {
    Done(String),
    Refused { status: u16, retry_after: Option<Duration>, body: String },
    Failed(String),
}

impl ServerAnswerer {
    fn attempt(&self, body: &str) -> Attempt {
        let mut request =
            self.agent.post(&self.endpoint).header("content-type", "application/json");
        if let Some(key) = &self.options.api_key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let mut response = match request.send(body) {
            Ok(response) => response,
            Err(error) => return Attempt::Failed(error.to_string()),
        };
        let status = response.status().as_u16();
        let retry_after = response.headers().get("retry-after");
        let retry_after = retry_after
            .and_then(|value| value.to_str().ok()?.trim().parse().ok())
            .map(Duration::from_secs);
        let text = response.body_mut().with_config().limit(REPLY_BYTES).read_to_string();
        match text {
            Ok(text) if status == 200 => Attempt::Done(text),
            Ok(text) => {
                let body = text.trim().chars().take(COMPLAINT_CHARACTERS).collect();
                Attempt::Refused { status, retry_after, body }
            }
            Err(error) => Attempt::Failed(format!("the reply broke off: {error}")),
        }
    }
}

/// Whether asking again can help.
fn may_pass(status: u16) -> bool {
    matches!(status, 408 | 425 | 429 | 500..=599)
}

/// Whether an address stays on this machine.
pub fn is_this_machine(url: &str) -> bool {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or(rest);
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let name = match host.strip_prefix('[') {
        Some(v6) => v6.split(']').next().unwrap_or(v6),
        None => host.split(':').next().unwrap_or(host),
    };
    let is_loopback = name.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
    is_loopback || name.eq_ignore_ascii_case("localhost")
}

#[cfg(test)]
mod tests {
    use super::is_this_machine;

    #[test]
    fn addresses_of_this_machine() {
        for here in ["http://localhost/v1", "http://127.0.0.1:8080/v1", "http://[::1]:1/v1"] {
            assert!(is_this_machine(here), "{here}");
        }
        for there in [
            "https://api.example.com/v1",
            "http://127.0.0.1.example.com/v1",
            "http://127.0.0.1@example.com/v1",
            "http://localhost.example.com",
            "http://192.168.0.2:8080/v1",
        ] {
            assert!(!is_this_machine(there), "{there}");
        }
    }
}
