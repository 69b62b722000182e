//! One request: where it goes, to whom the token goes, what is tried again, and what a refusal means.

mod address;
mod refusal;

pub(crate) use address::{Address, escaped};
use refusal::Refusal;

use crate::{HubError, Progress, Result, Retry, Settings, Token};
use serde_json::Value;
use std::io::Read;
use std::sync::Arc;
use std::time::Duration;
use ureq::http::{self, HeaderMap, Method};
use ureq::{Body, SendBody};

/// Long enough for a slow line, short enough to notice a dead one.
const CONNECT: Duration = Duration::from_secs(20);
const SILENCE: Duration = Duration::from_secs(60);
/// A server that has taken 2 GiB may need a while before it says so.
const ANSWER: Duration = Duration::from_secs(600);
/// The Hub, its mirror, its storage: more hops than that lead nowhere.
const HOPS: usize = 5;
/// Longest answer that is not a file.
const ANSWER_BYTES: u64 = 64 << 20;

/// A request, and the words for it.
pub(crate) struct Call<'a> {
    pub method: Method,
    pub url: String,
    pub headers: Vec<(&'static str, String)>,
    /// Headers that a server has asked for.
    pub extra: Vec<(String, String)>,
    pub body: Payload<'a>,
    /// "read the file list of `owner/name`".
    pub attempt: String,
    /// Whether the same request may be made again after a failure of which nobody knows how far it
    /// went.
    pub repeatable: bool,
}

/// What is sent.
#[derive(Clone, Copy)]
pub(crate) enum Payload<'a> {
    None,
    Bytes(&'a [u8]),
    /// So many bytes, from a reader that can be had again and again.
    Stream(u64, &'a dyn Fn() -> std::io::Result<Box<dyn Read>>),
}

impl<'a> Call<'a> {
    pub fn get(url: String, attempt: impl Into<String>) -> Call<'a> {
        Call {
            method: Method::GET,
            url,
            headers: Vec::new(),
            extra: Vec::new(),
            body: Payload::None,
            attempt: attempt.into(),
            repeatable: true,
        }
    }

    pub fn post(url: String, body: &'a [u8], attempt: impl Into<String>) -> Call<'a> {
        let headers = vec![("content-type", "application/json".into())];
        Call {
            method: Method::POST,
            body: Payload::Bytes(body),
            headers,
            ..Call::get(url, attempt)
        }
    }

    pub fn header(mut self, name: &'static str, value: impl Into<String>) -> Call<'a> {
        self.headers.retain(|(other, _)| *other != name);
        self.headers.push((name, value.into()));
        self
    }
}

/// An answer with a status that promises content.
pub(crate) struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Body,
    /// Who gave it, for messages.
    pub host: String,
    /// Where the redirects led.
    pub address: String,
}

impl Answer {
    /// A header as text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// First byte and size of the whole from `Content-Range: bytes 5-9/10`.
    pub fn content_range(&self) -> Option<(u64, u64)> {
        let (range, size) =
            self.header("content-range")?.strip_prefix("bytes ")?.split_once('/')?;
        Some((range.split_once('-')?.0.parse().ok()?, size.parse().ok()?))
    }
}

/// The client.
pub(crate) struct Http {
    agent: ureq::Agent,
    endpoint: Address,
    token: Option<Token>,
    reads_without_token: bool,
    retry: Retry,
    progress: Arc<dyn Progress>,
}

impl Http {
    pub fn new(settings: &Settings, progress: Arc<dyn Progress>) -> Result<Http> {
        let endpoint = Address::parse(&settings.endpoint).ok_or_else(|| HubError::Name {
            text: settings.endpoint.clone(),
            problem: "HF_ENDPOINT must begin with http:// or https://",
        })?;
        let mut config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            // Redirects are followed below, where it is known what may be sent along.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_connect(Some(CONNECT))
            .timeout_per_read(Some(SILENCE))
            .timeout_per_write(Some(SILENCE))
            .timeout_recv_response(Some(ANSWER))
            .user_agent(concat!("w4pack/", env!("CARGO_PKG_VERSION")));
        if endpoint.is_this_machine() {
            // A proxy of the environment is for addresses elsewhere.
            config = config.proxy(None);
        }
        Ok(Http {
            agent: config.build().into(),
            endpoint,
            token: settings.token.clone(),
            reads_without_token: settings.reads_without_token,
            retry: settings.retry,
            progress,
        })
    }

    /// Makes a request and reads the JSON that it gives.
    pub fn json(&self, call: &Call<'_>) -> Result<(Value, HeaderMap)> {
        let mut answer = self.send(call)?;
        let text = answer.body.with_config().limit(ANSWER_BYTES).read_to_string();
        let text = text.map_err(|error| self.network(call, &answer.host, &in_words(&error)))?;
        let value = serde_json::from_str(&text).map_err(|error| HubError::Answer {
            attempt: call.attempt.clone(),
            host: answer.host.clone(),
            problem: format!("it is not JSON ({error})"),
        })?;
        Ok((value, answer.headers))
    }

    /// Makes a request until it is answered with a success, or with a refusal that will stay.
    pub fn send(&self, call: &Call<'_>) -> Result<Answer> {
        let mut wait = self.retry.first_wait;
        let mut tries = 0;
        loop {
            tries += 1;
            let may_again = tries < self.retry.tries;
            let (pause, why) = match self.once(call)? {
                Outcome::Done(answer) => return Ok(answer),
                Outcome::Refused(refusal) => match refusal.wished_pause() {
                    // The server has done nothing, so that anything may be sent again.
                    Some(wished) if may_again && refusal.status == 429 => {
                        let pause = wished.unwrap_or(wait);
                        if pause > self.retry.longest_wait {
                            return Err(refusal.error(call, tries));
                        }
                        (pause, "too many requests from here (429)".to_string())
                    }
                    Some(wished) if may_again && call.repeatable => {
                        let pause = wished.unwrap_or(wait).min(self.retry.longest_wait);
                        (pause, format!("{} answered {}", refusal.host, refusal.status))
                    }
                    _ => return Err(refusal.error(call, tries)),
                },
                Outcome::Broken { host, finding, passes } => {
                    if !(passes && may_again && call.repeatable) {
                        return Err(self.network(call, &host, &finding));
                    }
                    (wait, format!("{host} {finding}"))
                }
            };
            let seconds = pause.as_secs_f64();
            self.progress.note(&format!("{why}: trying again in {seconds:.1} s"));
            std::thread::sleep(pause);
            wait = (wait * 2).min(self.retry.longest_wait);
        }
    }

    /// One try, through redirects.
    fn once(&self, call: &Call<'_>) -> Result<Outcome> {
        let unusable = |host: &str, problem: String| HubError::Answer {
            attempt: call.attempt.clone(),
            host: host.into(),
            problem,
        };
        let mut address = Address::parse(&call.url)
            .ok_or_else(|| unusable("the Hub", "it names an address that is none".into()))?;
        for _ in 0..HOPS {
            if self.endpoint.is_encrypted() && !address.is_encrypted() {
                let problem = "it leads to an address without encryption".to_string();
                return Err(unusable(&address.host(), problem));
            }
            let host = address.host();
            let response = match self.hop(call, &address)? {
                Ok(response) => response,
                Err(error) => {
                    // What is not there or not listening will not be in a second.
                    let passes = !matches!(error, ureq::Error::HostNotFound)
                        && !matches!(&error, ureq::Error::Io(cause)
                            if cause.kind() == std::io::ErrorKind::ConnectionRefused)
                        && !matches!(error, ureq::Error::ConnectionFailed);
                    return Ok(Outcome::Broken { host, finding: in_words(&error), passes });
                }
            };
            let status = response.status().as_u16();
            let (parts, body) = response.into_parts();
            let (headers, address_now) = (parts.headers, address.as_str().to_string());
            let answer = Answer { status, headers, body, host, address: address_now };
            match status {
                301 | 302 | 303 | 307 | 308 if call.method == Method::GET => {
                    let next = answer.header("location").and_then(|to| address.join(to));
                    let problem = || "it redirects to an address that is none".to_string();
                    address = next.ok_or_else(|| unusable(&answer.host, problem()))?;
                }
                200..=299 => return Ok(Outcome::Done(answer)),
                _ => {
                    let with_token = self.token_for(call, &address).is_some();
                    let hidden = self.token.as_ref().map(Token::reveal);
                    return Ok(Outcome::Refused(Refusal::read(answer, with_token, hidden)));
                }
            }
        }
        Err(unusable(&address.host(), format!("it redirects more than {HOPS} times")))
    }

    fn hop(
        &self,
        call: &Call<'_>,
        address: &Address,
    ) -> Result<std::result::Result<http::Response<Body>, ureq::Error>> {
        let mut request =
            http::Request::builder().method(call.method.clone()).uri(address.as_str());
        for (name, value) in &call.headers {
            request = request.header(*name, value);
        }
        for (name, value) in &call.extra {
            request = request.header(name, value);
        }
        request = request.header("accept-encoding", "identity");
        if let Some(token) = self.token_for(call, address) {
            request = request.header("authorization", format!("Bearer {}", token.reveal()));
        }
        let body = match call.body {
            Payload::None => SendBody::none(),
            Payload::Bytes(bytes) => {
                let mut bytes = bytes;
                let request = request.header("content-length", bytes.len());
                let request = request.body(SendBody::from_reader(&mut bytes));
                return Ok(request.map_err(ureq::Error::from).and_then(|r| self.agent.run(r)));
            }
            Payload::Stream(length, open) => {
                request = request.header("content-length", length);
                let reader = open().map_err(|cause| HubError::Io {
                    attempt: "read",
                    path: call.attempt.clone(),
                    cause,
                })?;
                SendBody::from_owned_reader(reader)
            }
        };
        Ok(request.body(body).map_err(ureq::Error::from).and_then(|r| self.agent.run(r)))
    }

    /// The token goes to the Hub itself and to no other host or port, whatever an answer says.
    fn token_for(&self, call: &Call<'_>, address: &Address) -> Option<&Token> {
        let silent = self.reads_without_token && call.method == Method::GET;
        self.token.as_ref().filter(|_| !silent && address.is_same_origin(&self.endpoint))
    }

    pub fn network(&self, call: &Call<'_>, host: &str, finding: &str) -> HubError {
        HubError::Network {
            attempt: call.attempt.clone(),
            host: host.into(),
            finding: finding.into(),
        }
    }

    pub fn retry(&self) -> Retry {
        self.retry
    }
}

/// What came of one try.
enum Outcome {
    Done(Answer),
    Refused(Refusal),
    Broken { host: String, finding: String, passes: bool },
}

/// What a failure of the connection is, without the address in it.
pub(crate) fn in_words(error: &ureq::Error) -> String {
    match error {
        ureq::Error::HostNotFound => "is not known here (no such name, or no network)".into(),
        ureq::Error::ConnectionFailed => "cannot be reached".into(),
        ureq::Error::Timeout(which) => format!("did not answer in time ({which})"),
        ureq::Error::Io(cause) if cause.kind() == std::io::ErrorKind::ConnectionRefused => {
            "takes no connection (refused)".into()
        }
        ureq::Error::Io(cause) => format!("broke off ({cause})"),
        other => format!("broke off ({other})"),
    }
}
