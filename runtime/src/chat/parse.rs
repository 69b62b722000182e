//! What the model writes, taken apart into reasoning, content and tool calls, while it comes.
//!
//! The text must show the control tokens (decode with
//! [`SpecialTokens::Show`](super::SpecialTokens::Show)). It may arrive in any portions, split
//! anywhere, even inside a marker: the result is the same. The way of the text:
//!
//! ```text
//!            <|channel>thought\n            <|tool_call>
//!          ┌─────────────────────┐       ┌───────────────┐
//!       Thought ──────────────▶ Answer ◀──────────────── Call
//!            <channel|>             │           <tool_call|>
//!                                   ▼ <turn|>, <|tool_response>, <eos>
//!                                 Ended
//! ```
//!
//! Content and reasoning are stripped of white space at both ends. Markup that is broken (a call
//! whose body does not parse, a channel of another name, a call that is cut off) comes back as
//! content, word for word: nothing is lost and nothing fails.

mod arguments;
mod call;
mod strip;

use super::markers::{
    CALL, CHANNEL, CHANNEL_END, EOS, MODEL_TURN, RESPONSE, RESPONSE_END, THOUGHT, TURN_END, first,
    unfinished,
};
pub use call::ToolCall;
use call::{OpenCall, Step};
use strip::Strip;

/// The next piece of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutputEvent {
    /// More of the thought.
    Reasoning(String),
    /// More of the answer's text.
    Content(String),
    /// One whole tool call.
    Call(ToolCall),
}

/// A whole answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Output {
    /// The thought, if there is one that is not empty.
    pub reasoning: Option<String>,
    /// The text, if there is any.
    pub content: Option<String>,
    /// The calls in the order they were written.
    pub calls: Vec<ToolCall>,
}

impl Output {
    /// Adds what a parser has just given.
    pub fn extend(&mut self, events: Vec<OutputEvent>) {
        for event in events {
            match event {
                OutputEvent::Reasoning(text) => {
                    self.reasoning.get_or_insert_default().push_str(&text);
                }
                OutputEvent::Content(text) => {
                    self.content.get_or_insert_default().push_str(&text);
                }
                OutputEvent::Call(call) => self.calls.push(call),
            }
        }
    }
}

/// Parses a whole answer, given the prompt that it follows.
pub fn parse_output(prompt: &str, text: &str) -> Output {
    let mut parser = OutputParser::after_prompt(prompt);
    let mut output = Output::default();
    output.extend(parser.push(text));
    output.extend(parser.finish());
    output
}

/// The parser of one answer.
pub struct OutputParser {
    state: State,
    /// Text that has arrived and is not yet understood.
    pending: String,
    content: Strip,
    reasoning: Strip,
    events: Vec<OutputEvent>,
}

enum State {
    Answer,
    /// After `<|channel>`: the channel's name decides.
    ChannelName,
    Thought,
    Call(OpenCall),
    Ended,
}

/// What can follow while the answer's text runs.
const IN_ANSWER: [&str; 5] = [CHANNEL, CALL, TURN_END, RESPONSE, EOS];
/// What can follow while a thought runs.
const IN_THOUGHT: [&str; 4] = [CHANNEL_END, TURN_END, RESPONSE, EOS];

impl OutputParser {
    /// A parser for what follows this prompt. It matters whether the template has opened a thought
    /// already, as Gemma's does behind a tool's response when thinking is on.
    pub fn after_prompt(prompt: &str) -> Self {
        let begun = [MODEL_TURN, RESPONSE_END, TURN_END]
            .iter()
            .filter_map(|marker| prompt.rfind(marker).map(|at| at + marker.len()))
            .max()
            .unwrap_or(0);
        let begun = &prompt[begun..];
        let opened =
            begun.rfind(CHANNEL).filter(|at| begun[at + CHANNEL.len()..].starts_with(THOUGHT));
        let thinking = opened > begun.rfind(CHANNEL_END);
        Self {
            state: if thinking { State::Thought } else { State::Answer },
            pending: String::new(),
            content: Strip::default(),
            reasoning: Strip::default(),
            events: Vec::new(),
        }
    }

    /// Takes more text and returns what can be told of it for sure.
    pub fn push(&mut self, text: &str) -> Vec<OutputEvent> {
        self.pending.push_str(text);
        while self.step() {}
        std::mem::take(&mut self.events)
    }

    /// Ends the answer: whatever was begun and not finished comes out as it stands.
    pub fn finish(&mut self) -> Vec<OutputEvent> {
        loop {
            match std::mem::replace(&mut self.state, State::Answer) {
                State::Answer | State::Ended => break,
                State::ChannelName => {
                    self.emit_content(CHANNEL);
                    break;
                }
                State::Thought => {
                    self.state = State::Thought;
                    break;
                }
                // A call that was cut off, or a string in it that was never closed and has
                // swallowed what followed.
                State::Call(open) => {
                    let broken = open.give_up(&self.pending);
                    self.emit_content(CALL);
                    self.emit_pending(broken);
                    while self.step() {}
                }
            }
        }
        let rest = self.pending.len();
        match self.state {
            State::Thought => self.reason(rest),
            _ => self.emit_pending(rest),
        }
        self.state = State::Ended;
        std::mem::take(&mut self.events)
    }

    /// True once the model has ended its answer.
    pub fn ended(&self) -> bool {
        matches!(self.state, State::Ended)
    }

    /// One move of the machine; false when more text is needed.
    fn step(&mut self) -> bool {
        match &mut self.state {
            State::Ended => {
                self.pending.clear();
                false
            }
            State::Answer => match first(&self.pending, &IN_ANSWER) {
                Some((at, marker)) => {
                    self.emit_pending(at);
                    self.take(marker.len());
                    self.state = match marker {
                        CHANNEL => State::ChannelName,
                        CALL => State::Call(OpenCall::new()),
                        _ => State::Ended,
                    };
                    true
                }
                None => {
                    let sure = self.pending.len() - unfinished(&self.pending, &IN_ANSWER);
                    self.emit_pending(sure);
                    false
                }
            },
            State::ChannelName if self.pending.starts_with(THOUGHT) => {
                self.take(THOUGHT.len());
                self.reasoning.next_part();
                self.state = State::Thought;
                true
            }
            State::ChannelName if THOUGHT.starts_with(self.pending.as_str()) => false,
            State::ChannelName => {
                self.emit_content(CHANNEL);
                self.state = State::Answer;
                true
            }
            State::Thought => match first(&self.pending, &IN_THOUGHT) {
                Some((at, marker)) => {
                    self.reason(at);
                    self.take(marker.len());
                    self.state = if marker == CHANNEL_END { State::Answer } else { State::Ended };
                    true
                }
                None => {
                    let sure = self.pending.len() - unfinished(&self.pending, &IN_THOUGHT);
                    self.reason(sure);
                    false
                }
            },
            State::Call(open) => match open.step(&self.pending) {
                Step::More => false,
                Step::Whole { call, length } => {
                    self.take(length);
                    self.events.push(OutputEvent::Call(call));
                    self.state = State::Answer;
                    true
                }
                Step::Broken { length } => {
                    self.emit_content(CALL);
                    self.emit_pending(length);
                    self.state = State::Answer;
                    true
                }
            },
        }
    }

    fn take(&mut self, length: usize) -> String {
        self.pending.drain(..length).collect()
    }

    fn emit_pending(&mut self, length: usize) {
        let text = self.take(length);
        self.emit_content(&text);
    }

    fn emit_content(&mut self, text: &str) {
        if let Some(text) = self.content.pass(text) {
            self.events.push(OutputEvent::Content(text));
        }
    }

    fn reason(&mut self, length: usize) {
        let text = self.take(length);
        if let Some(text) = self.reasoning.pass(&text) {
            self.events.push(OutputEvent::Reasoning(text));
        }
    }
}
