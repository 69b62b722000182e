//! Server-sent events: the pieces of answers as they come.

use axum::http::{HeaderName, HeaderValue};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_core::Stream;
use serde::Serialize;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use super::answer::Piece;
use super::ask::Answers;
use super::error::ApiError;

/// How often a comment is sent while nothing else is, so that nobody between takes the connection
/// for dead.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// One event.
pub struct Message {
    /// Its name, where the protocol has names.
    pub name: Option<&'static str>,
    /// Its data, mostly JSON.
    pub data: String,
}

impl Message {
    /// An object without a name.
    pub fn json(object: &impl Serialize) -> Self {
        Self { name: None, data: to_json(object) }
    }

    /// What OpenAI's streams end with.
    pub fn done() -> Self {
        Self { name: None, data: "[DONE]".to_owned() }
    }
}

/// The types of this crate have keys that are strings and numbers that are finite.
pub fn to_json(object: &impl Serialize) -> String {
    serde_json::to_string(object).expect("a wire type is JSON")
}

/// Turns pieces into the events of one endpoint.
pub trait Translator: Send + Unpin + 'static {
    /// Before the first piece.
    fn begin(&mut self) -> Vec<Message>;
    /// A piece of one answer.
    fn piece(&mut self, index: usize, piece: Piece, answers: &Answers) -> Vec<Message>;
    /// After the last.
    fn end(&mut self, answers: &Answers) -> Vec<Message>;
    /// Instead of the rest.
    fn error(&mut self, error: &ApiError) -> Vec<Message> {
        vec![Message::json(&error.body())]
    }
}

struct Events<T> {
    answers: Answers,
    translator: T,
    ready: VecDeque<Message>,
    over: bool,
}

impl<T: Translator> Stream for Events<T> {
    type Item = Result<Event, Infallible>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        loop {
            if let Some(message) = this.ready.pop_front() {
                // The name first: some clients read the lines one by one.
                let event = match message.name {
                    Some(name) => Event::default().event(name),
                    None => Event::default(),
                };
                return Poll::Ready(Some(Ok(event.data(message.data))));
            }
            if this.over {
                return Poll::Ready(None);
            }
            let messages = match ready!(this.answers.poll_next(context)) {
                Some(Ok((index, piece))) => this.translator.piece(index, piece, &this.answers),
                Some(Err(error)) => {
                    this.over = true;
                    this.translator.error(&error)
                }
                None => {
                    this.over = true;
                    this.translator.end(&this.answers)
                }
            };
            this.ready.extend(messages);
        }
    }
}

/// The response that streams these answers. When the client goes away it is dropped, and with it
/// the answers.
pub fn respond<T: Translator>(answers: Answers, mut translator: T) -> Response {
    let ready = translator.begin().into();
    let events = Events { answers, translator, ready, over: false };
    let mut response =
        Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response();
    // Proxies of nginx's kind would collect the events otherwise.
    let buffering = HeaderName::from_static("x-accel-buffering");
    response.headers_mut().insert(buffering, HeaderValue::from_static("no"));
    response
}
