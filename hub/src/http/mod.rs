//! One request: where it goes, to whom the token goes, what is tried again, and what a refusal means.

mod address;
mod answer;
mod patience;
mod refusal;

pub(crate) use address::{Address, escaped};
pub(crate) use answer::{Answer, io_in_words};
pub(crate) use patience::Patience;
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

/// The client.
pub(crate) struct Http {
    agent: ureq::Agent,
    endpoint: Address,
    token: Option<Token>,
    reads_without_token: bool,
    offline: bool,
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
            .timeout_per_read(Some(settings.retry.silence))
            .timeout_per_write(Some(settings.retry.silence))
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
            offline: settings.offline,
            retry: settings.retry,
            progress,
        })
    }

    /// Makes a request and reads the JSON that it gives.
    pub fn json(&self, call: &Call<'_>) -> Result<(Value, HeaderMap)> {
        let (text, answer) = self.content(call, ANSWER_BYTES + 1)?;
        let unusable = |problem| HubError::Answer {
            attempt: call.attempt.clone(),
            host: answer.host.clone(),
            problem,
        };
        if text.len() as u64 > ANSWER_BYTES {
            return Err(unusable(format!("it has more than {ANSWER_BYTES} bytes")));
        }
        let value = serde_json::from_slice(&text);
        let value = value.map_err(|error| unusable(format!("it is not JSON ({error})")))?;
        Ok((value, answer.headers))
    }

    /// Makes a request and reads what it gives, or so many bytes of it; asks again if that breaks off.
    pub fn content(&self, call: &Call<'_>, most: u64) -> Result<(Vec<u8>, Answer)> {
        let mut patience = Patience::new(self);
        loop {
            let mut answer = self.send(call)?;
            match answer.content(most) {
                Ok(content) => return Ok((content, answer)),
                Err(finding) if call.repeatable => {
                    patience.broken(call, &answer.host, &finding, 0, "trying again")?;
                }
                Err(finding) => return Err(self.network(call, &answer.host, &finding)),
            }
        }
    }

    /// Makes a request until it is answered with a success, or with a refusal that will stay. Offline
    /// it opens no connection, whoever asks.
    pub fn send(&self, call: &Call<'_>) -> Result<Answer> {
        if self.offline {
            return Err(HubError::Offline { attempt: call.attempt.clone() });
        }
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
            let answer = Answer::new(response, host, &address, self.retry.silence);
            match status {
                301 | 302 | 303 | 307 | 308 => {
                    let next = answer.header("location").and_then(|to| address.join(to));
                    let problem = || "it redirects to an address that is none".to_string();
                    let next = next.ok_or_else(|| unusable(&answer.host, problem()))?;
                    // A renamed repository. What is sent goes on to the same host only, and where
                    // the method would stay the same.
                    let stays = matches!(status, 307 | 308) && next.is_same_origin(&address);
                    if call.method != Method::GET && !stays {
                        let (method, host) = (&call.method, next.host());
                        let problem = format!("it redirects a {method} to {host} ({status})");
                        return Err(unusable(&answer.host, problem));
                    }
                    address = next;
                }
                200..=299 => {
                    // `identity` was asked for: sizes and hashes are those of the bytes as they come.
                    let encoding = answer.header("content-encoding").unwrap_or("identity");
                    if !encoding.eq_ignore_ascii_case("identity") {
                        let problem = "it is compressed, which was not asked for".to_string();
                        return Err(unusable(&answer.host, problem));
                    }
                    return Ok(Outcome::Done(answer));
                }
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
                return Ok(self.run(request.body(SendBody::from_reader(&mut bytes))));
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
        Ok(self.run(request.body(body)))
    }

    /// A server that was sent something may be silent for longer than one that was asked for something.
    fn run(
        &self,
        request: http::Result<http::Request<SendBody<'_>>>,
    ) -> std::result::Result<http::Response<Body>, ureq::Error> {
        let request = request?;
        if request.method() == Method::GET {
            return self.agent.run(request);
        }
        let patient = self.agent.configure_request(request).timeout_per_read(Some(ANSWER));
        self.agent.run(patient.build())
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
