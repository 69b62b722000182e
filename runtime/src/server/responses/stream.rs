//! The answer as the events of this API: every item is added, grows, and is done.

use serde_json::{Value, json};

use super::reply;
use crate::chat::ToolCall;
use crate::server::answer::{Finish, Piece};
use crate::server::ask::Answers;
use crate::server::error::ApiError;
use crate::server::shared::fresh_name;
use crate::server::sse::{Message, Translator};
use crate::server::wire::TokenLogprob;
use crate::server::wire::responses::ResponsesReply;

/// Makes the events of one request. Without a stream its output is what counts.
pub struct Events {
    reply: ResponsesReply,
    number: usize,
    /// Items that are done.
    output: Vec<Value>,
    open: Option<Open>,
    /// Tokens since the last text.
    tokens: Vec<TokenLogprob>,
    finish: Finish,
}

/// The item that grows.
struct Open {
    thought: bool,
    id: String,
    text: String,
    tokens: Vec<TokenLogprob>,
}

impl Events {
    pub fn new(reply: ResponsesReply) -> Self {
        let (number, output, tokens) = (0, Vec::new(), Vec::new());
        Self { reply, number, output, open: None, tokens, finish: Finish::Stop }
    }

    /// The object of a finished answer.
    pub fn into_reply(mut self, answers: &Answers) -> ResponsesReply {
        reply::ended(&mut self.reply, self.finish, self.output, answers);
        self.reply
    }

    fn event(&mut self, name: &'static str, mut fields: Value) -> Message {
        fields["type"] = name.into();
        fields["sequence_number"] = self.number.into();
        self.number += 1;
        Message { name: Some(name), data: fields.to_string() }
    }

    fn whole(&mut self, name: &'static str) -> Message {
        let reply = serde_json::to_value(&self.reply).expect("a reply is JSON");
        self.event(name, json!({"response": reply}))
    }

    /// Opens an item of this kind unless it is open.
    fn open(&mut self, thought: bool) -> Vec<Message> {
        if self.open.as_ref().is_some_and(|open| open.thought == thought) {
            return Vec::new();
        }
        let mut messages = self.close("completed");
        let id = fresh_name(if thought { "rs_" } else { "msg_" });
        let (item, part) = match thought {
            true => (reply::reasoning(&id, None, "in_progress"), reply::reasoning_part("")),
            false => (reply::message(&id, None, "in_progress"), reply::text_part("", &[])),
        };
        let place = self.output.len();
        messages.push(
            self.event("response.output_item.added", json!({"output_index": place, "item": item})),
        );
        let part = json!({"item_id": id, "output_index": place, "content_index": 0, "part": part});
        messages.push(self.event("response.content_part.added", part));
        self.open = Some(Open { thought, id, text: String::new(), tokens: Vec::new() });
        messages
    }

    fn grow(&mut self, thought: bool, text: String) -> Vec<Message> {
        let mut messages = self.open(thought);
        let place = self.output.len();
        let tokens = std::mem::take(&mut self.tokens);
        let Some(open) = &mut self.open else { return messages };
        open.text.push_str(&text);
        let mut delta =
            json!({"item_id": open.id, "output_index": place, "content_index": 0, "delta": text});
        if thought {
            messages.push(self.event("response.reasoning_text.delta", delta));
        } else {
            delta["logprobs"] = json!(tokens);
            open.tokens.extend(tokens);
            messages.push(self.event("response.output_text.delta", delta));
        }
        messages
    }

    /// Ends the item that is open.
    fn close(&mut self, status: &str) -> Vec<Message> {
        let Some(open) = self.open.take() else { return Vec::new() };
        let (place, id, text) = (self.output.len(), &open.id, &open.text);
        let (name, part, item) = if open.thought {
            let item = reply::reasoning(id, Some(text), status);
            ("response.reasoning_text.done", reply::reasoning_part(text), item)
        } else {
            let part = reply::text_part(text, &open.tokens);
            let item = reply::message(id, Some(part.clone()), status);
            ("response.output_text.done", part, item)
        };
        let mut done =
            json!({"item_id": id, "output_index": place, "content_index": 0, "text": text});
        if !open.thought {
            done["logprobs"] = json!(open.tokens);
        }
        let part = json!({"item_id": id, "output_index": place, "content_index": 0, "part": part});
        let messages = vec![
            self.event(name, done),
            self.event("response.content_part.done", part),
            self.event("response.output_item.done", json!({"output_index": place, "item": item})),
        ];
        self.output.push(item);
        messages
    }

    fn call(&mut self, call: ToolCall) -> Vec<Message> {
        let mut messages = self.close("completed");
        let (id, call_id, place) = (fresh_name("fc_"), fresh_name("call_"), self.output.len());
        let item = reply::call(&id, &call_id, &call, "", "in_progress");
        let whole = reply::call(&id, &call_id, &call, &call.arguments, "completed");
        let at = json!({"item_id": id, "output_index": place});
        let (mut delta, mut done) = (at.clone(), at);
        delta["delta"] = call.arguments.as_str().into();
        done["arguments"] = call.arguments.as_str().into();
        done["name"] = call.name.as_str().into();
        messages.extend([
            self.event("response.output_item.added", json!({"output_index": place, "item": item})),
            self.event("response.function_call_arguments.delta", delta),
            self.event("response.function_call_arguments.done", done),
            self.event("response.output_item.done", json!({"output_index": place, "item": whole})),
        ]);
        self.output.push(whole);
        messages
    }
}

impl Translator for Events {
    fn begin(&mut self) -> Vec<Message> {
        vec![self.whole("response.created"), self.whole("response.in_progress")]
    }

    fn piece(&mut self, _index: usize, piece: Piece, _answers: &Answers) -> Vec<Message> {
        match piece {
            Piece::Begun | Piece::Failed(_) => Vec::new(),
            Piece::Token(token) => {
                self.tokens.push(token);
                Vec::new()
            }
            Piece::Reasoning(text) => self.grow(true, text),
            Piece::Content(text) => self.grow(false, text),
            Piece::Call(call) => self.call(call),
            Piece::Ended(ending) => {
                self.finish = ending.finish;
                let cut = ending.finish == Finish::Length;
                self.close(if cut { "incomplete" } else { "completed" })
            }
        }
    }

    fn end(&mut self, answers: &Answers) -> Vec<Message> {
        reply::ended(&mut self.reply, self.finish, std::mem::take(&mut self.output), answers);
        vec![match self.finish {
            Finish::Length => self.whole("response.incomplete"),
            _ => self.whole("response.completed"),
        }]
    }

    fn error(&mut self, error: &ApiError) -> Vec<Message> {
        let fields = error.body()["error"].clone();
        let output = std::mem::take(&mut self.output);
        reply::failed(&mut self.reply, output, error);
        vec![self.event("error", fields), self.whole("response.failed")]
    }
}
