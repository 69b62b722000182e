//! From the ids of one answer to what a client sees of it, on the engine's thread.
//!
//! ids → text (whole characters) → reasoning, content, calls → stop strings in the content → pieces
//! on a channel. Nothing here waits: the channel has no bound, and an answer has.

use std::ops::ControlFlow;
use std::sync::Arc;
use tokio::sync::mpsc::UnboundedSender;

use super::stops::Stops;
use super::wire::{TokenLogprob, TopLogprob};
use crate::chat::markers::CHANNEL_END;
use crate::chat::{OutputEvent, OutputParser, SpecialTokens, StreamDecoder, Tokenizer, ToolCall};
use crate::generation::FinishReason;
use crate::sampling::Chosen;
use crate::scheduler::{Event, Listener, Summary};

/// What a client sees of an answer, in order. The last is [`Piece::Ended`] or [`Piece::Failed`]; a
/// channel that closes without either means that the engine is gone.
#[derive(Debug)]
pub enum Piece {
    /// The prompt is read and the first token chosen.
    Begun,
    /// More of the thought.
    Reasoning(String),
    /// More of the text.
    Content(String),
    /// A whole call.
    Call(ToolCall),
    /// A token that has a text, if log-probabilities were asked for.
    Token(TokenLogprob),
    /// The answer is complete or was broken off.
    Ended(Ending),
    /// The answer cannot go on.
    Failed(String),
}

/// How an answer ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Ending {
    /// Why.
    pub finish: Finish,
    /// Tokens of thoughts, with those that begin and end them.
    pub reasoning_tokens: usize,
    /// What the scheduler counted.
    pub summary: Summary,
}

/// Why an answer ended, in OpenAI's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// The model was done, or a stop string came.
    Stop,
    /// `max_tokens`, or the context is full.
    Length,
    /// The model made calls and waits for their results.
    ToolCalls,
    /// Broken off from outside.
    Cancelled,
}

impl Finish {
    /// The name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Finish::Stop => "stop",
            Finish::Length => "length",
            Finish::ToolCalls => "tool_calls",
            Finish::Cancelled => "cancelled",
        }
    }
}

/// How the text of an answer is understood.
#[derive(Debug, Clone)]
pub enum Reading {
    /// As Gemma writes a chat's answer, behind this prompt.
    Chat {
        /// The prompt's text.
        prompt: String,
        /// Whether calls are calls. Where no tool was offered they are text.
        calls: bool,
        /// Whether the answer goes on behind its first call.
        parallel: bool,
    },
    /// As it is, control tokens left out.
    Raw,
}

/// The numbered end of a channel: all answers of a request send into one.
pub type Sender = UnboundedSender<(usize, Piece)>;

/// A listener that turns an answer's ids into pieces numbered `index`. It ends the answer when
/// nobody holds the other end of the channel any more.
pub fn listener(
    tokenizer: Arc<Tokenizer>,
    reading: &Reading,
    stops: Vec<String>,
    index: usize,
    sender: Sender,
) -> Listener {
    let (parser, special, calls, parallel) = match reading {
        Reading::Chat { prompt, calls, parallel } => {
            let parser = OutputParser::after_prompt(prompt);
            (Some(parser), SpecialTokens::Show, *calls, *parallel)
        }
        Reading::Raw => (None, SpecialTokens::Hide, false, true),
    };
    let mut answer = Answer {
        decoder: StreamDecoder::new(tokenizer.clone(), special),
        thought_end: tokenizer.id(CHANNEL_END),
        tokenizer,
        parser,
        stops: Stops::new(stops),
        calls_are_calls: calls,
        parallel,
        calls: 0,
        tokens: 0,
        thoughts: Thoughts::None,
        index,
        sender,
    };
    Box::new(move |event| answer.hear(event))
}

struct Answer {
    decoder: StreamDecoder,
    tokenizer: Arc<Tokenizer>,
    parser: Option<OutputParser>,
    stops: Stops,
    calls_are_calls: bool,
    parallel: bool,
    calls: usize,
    /// Tokens so far.
    tokens: usize,
    /// The token that ends a thought.
    thought_end: Option<u32>,
    thoughts: Thoughts,
    index: usize,
    sender: Sender,
}

/// How many tokens were thoughts.
enum Thoughts {
    None,
    /// One goes on.
    Open,
    /// All tokens up to here.
    Until(usize),
}

impl Answer {
    fn hear(&mut self, event: Event<'_>) -> ControlFlow<FinishReason> {
        match event {
            Event::Waiting | Event::Reading { .. } => {}
            Event::Token(chosen) => self.token(chosen),
            Event::Ended(summary) => self.end(summary),
            Event::Failed(error) => self.send(Piece::Failed(error.to_string())),
        }
        if self.sender.is_closed() {
            ControlFlow::Break(FinishReason::Cancelled)
        } else if self.done() {
            ControlFlow::Break(FinishReason::Stop)
        } else {
            ControlFlow::Continue(())
        }
    }

    /// Whether what comes now is no part of the answer.
    fn done(&self) -> bool {
        self.stops.found() || (!self.parallel && self.calls > 0)
    }

    fn token(&mut self, chosen: &Chosen) {
        if self.tokens == 0 {
            self.send(Piece::Begun);
        }
        self.tokens += 1;
        if let Some(logprob) = chosen.logprob {
            let (token, bytes) = self.name(chosen.id);
            let top = |&(id, logprob): &(u32, f32)| {
                let (token, bytes) = self.name(id);
                TopLogprob { token, logprob, bytes }
            };
            let top_logprobs = chosen.top.iter().map(top).collect();
            // Control tokens have no text here: they end thoughts, calls and answers.
            if !self.hidden(chosen.id) {
                self.send(Piece::Token(TokenLogprob { token, logprob, bytes, top_logprobs }));
            }
        }
        // Models with random weights choose ids that the tokenizer has no text for.
        let text = self.decoder.push(chosen.id);
        let text = text.unwrap_or_else(|_| char::REPLACEMENT_CHARACTER.to_string());
        self.text(&text);
        if matches!(self.thoughts, Thoughts::Open) && Some(chosen.id) == self.thought_end {
            self.thoughts = Thoughts::Until(self.tokens);
        }
    }

    /// A token's text and bytes, whatever it is.
    fn name(&self, id: u32) -> (String, Vec<u8>) {
        let bytes = self.tokenizer.token_bytes(id, SpecialTokens::Show).unwrap_or_default();
        (String::from_utf8_lossy(&bytes).into_owned(), bytes)
    }

    fn hidden(&self, id: u32) -> bool {
        self.tokenizer.token_bytes(id, SpecialTokens::Hide).is_ok_and(|bytes| bytes.is_empty())
    }

    fn text(&mut self, text: &str) {
        match &mut self.parser {
            Some(parser) => {
                let events = parser.push(text);
                self.events(events);
            }
            None => self.content(text),
        }
    }

    fn events(&mut self, events: Vec<OutputEvent>) {
        for event in events {
            if self.done() {
                return;
            }
            match event {
                OutputEvent::Reasoning(text) => {
                    self.thoughts = Thoughts::Open;
                    self.send(Piece::Reasoning(text));
                }
                OutputEvent::Content(text) => self.content(&text),
                OutputEvent::Call(call) if self.calls_are_calls => {
                    self.calls += 1;
                    self.send(Piece::Call(call));
                }
                // Nobody could answer it: the reader sees what the model wanted.
                OutputEvent::Call(call) => {
                    self.content(&format!("{}({})", call.name, call.arguments));
                }
            }
        }
    }

    fn content(&mut self, text: &str) {
        let shown = self.stops.push(text);
        self.show(shown);
    }

    fn show(&mut self, text: String) {
        if !text.is_empty() {
            self.send(Piece::Content(text));
        }
    }

    fn end(&mut self, summary: &Summary) {
        let rest = self.decoder.finish();
        self.text(&rest);
        if let Some(mut parser) = self.parser.take() {
            let events = parser.finish();
            self.events(events);
        }
        let held = self.stops.finish();
        self.show(held);
        let finish = match summary.finish {
            // The end of the text may itself complete a stop string.
            _ if self.stops.found() => Finish::Stop,
            FinishReason::Stop if self.calls > 0 => Finish::ToolCalls,
            FinishReason::Stop => Finish::Stop,
            FinishReason::Length => Finish::Length,
            FinishReason::Cancelled => Finish::Cancelled,
        };
        let reasoning_tokens = match self.thoughts {
            Thoughts::None => 0,
            // Cut off in the middle.
            Thoughts::Open => self.tokens,
            Thoughts::Until(tokens) => tokens,
        };
        self.send(Piece::Ended(Ending { finish, reasoning_tokens, summary: summary.clone() }));
    }

    fn send(&self, piece: Piece) {
        // A closed channel is seen by `hear`.
        let _ = self.sender.send((self.index, piece));
    }
}
