//! A chat's answers as chunks.

use super::reply::tool_call;
use crate::server::answer::{Finish, Piece};
use crate::server::ask::Answers;
use crate::server::shared::{FINGERPRINT, fresh_name, unix_time};
use crate::server::sse::{Message, Translator};
use crate::server::wire::chat::{ChatChunk, ChatChunkChoice, ChatDelta, ChatLogprobs};
use crate::server::wire::{Timings, TokenLogprob, Usage};

/// Makes the chunks of one request.
pub struct Chunks {
    id: String,
    created: u64,
    model: String,
    include_usage: bool,
    choices: Vec<Choice>,
}

/// What is known of one of the answers.
#[derive(Default)]
struct Choice {
    calls: usize,
    /// Tokens since the last chunk.
    tokens: Vec<TokenLogprob>,
}

impl Chunks {
    pub fn new(model: String, choices: usize, include_usage: bool) -> Self {
        let (id, created) = (fresh_name("chatcmpl-"), unix_time());
        let choices = std::iter::repeat_with(Choice::default).take(choices).collect();
        Self { id, created, model, include_usage, choices }
    }

    fn chunk(
        &self,
        choices: Vec<ChatChunkChoice>,
        usage: Option<Usage>,
        timings: Option<Timings>,
    ) -> Message {
        Message::json(&ChatChunk {
            id: self.id.clone(),
            object: "chat.completion.chunk",
            created: self.created,
            model: self.model.clone(),
            system_fingerprint: FINGERPRINT.to_owned(),
            choices,
            usage: self.include_usage.then_some(usage),
            timings,
        })
    }

    fn delta(
        &mut self,
        index: usize,
        delta: ChatDelta,
        finish: Option<Finish>,
        timings: Option<Timings>,
    ) -> Vec<Message> {
        let tokens = std::mem::take(&mut self.choices[index].tokens);
        let logprobs = (!tokens.is_empty()).then_some(ChatLogprobs { content: tokens });
        let finish_reason = finish.map(Finish::name);
        let choice = ChatChunkChoice { index, delta, logprobs, finish_reason };
        vec![self.chunk(vec![choice], None, timings)]
    }
}

impl Translator for Chunks {
    fn begin(&mut self) -> Vec<Message> {
        let first = ChatDelta {
            role: Some("assistant"),
            content: Some(String::new()),
            ..ChatDelta::default()
        };
        let choices = 0..self.choices.len();
        choices.flat_map(|index| self.delta(index, first.clone(), None, None)).collect()
    }

    fn piece(&mut self, index: usize, piece: Piece, answers: &Answers) -> Vec<Message> {
        let nothing = ChatDelta::default();
        match piece {
            Piece::Begun | Piece::Failed(_) => Vec::new(),
            Piece::Token(token) => {
                self.choices[index].tokens.push(token);
                Vec::new()
            }
            Piece::Reasoning(text) => {
                let delta = ChatDelta { reasoning_content: Some(text), ..nothing };
                self.delta(index, delta, None, None)
            }
            Piece::Content(text) => {
                self.delta(index, ChatDelta { content: Some(text), ..nothing }, None, None)
            }
            Piece::Call(call) => {
                let number = self.choices[index].calls;
                self.choices[index].calls += 1;
                let calls = vec![tool_call(call, Some(number))];
                self.delta(index, ChatDelta { tool_calls: Some(calls), ..nothing }, None, None)
            }
            Piece::Ended(ending) => {
                let timings = answers.all_done().then(|| answers.timings());
                self.delta(index, nothing, Some(ending.finish), timings)
            }
        }
    }

    fn end(&mut self, answers: &Answers) -> Vec<Message> {
        let usage = self.include_usage.then(|| self.chunk(Vec::new(), Some(answers.usage()), None));
        usage.into_iter().chain([Message::done()]).collect()
    }
}
