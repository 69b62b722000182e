//! A chat's answers as one object.

use crate::chat;
use crate::server::answer::{Finish, Piece};
use crate::server::ask::Answers;
use crate::server::error::ApiError;
use crate::server::shared::{FINGERPRINT, fresh_name, unix_time};
use crate::server::wire::TokenLogprob;
use crate::server::wire::chat::{
    CalledFunction, ChatChoice, ChatLogprobs, ChatMessage, ChatReply, ToolCall,
};

/// What one answer has come to.
#[derive(Default)]
pub struct Collected {
    pub reasoning: Option<String>,
    pub content: Option<String>,
    pub calls: Vec<chat::ToolCall>,
    pub tokens: Vec<TokenLogprob>,
    pub finish: Option<Finish>,
}

/// Waits for all answers.
pub async fn collect(answers: &mut Answers) -> Result<Vec<Collected>, ApiError> {
    let mut all: Vec<Collected> =
        std::iter::repeat_with(Collected::default).take(answers.count()).collect();
    while let Some(next) = answers.next().await {
        let (index, piece) = next?;
        let one = &mut all[index];
        match piece {
            Piece::Begun | Piece::Failed(_) => {}
            Piece::Reasoning(text) => one.reasoning.get_or_insert_default().push_str(&text),
            Piece::Content(text) => one.content.get_or_insert_default().push_str(&text),
            Piece::Call(call) => one.calls.push(call),
            Piece::Token(token) => one.tokens.push(token),
            Piece::Ended(ending) => one.finish = Some(ending.finish),
        }
    }
    Ok(all)
}

/// The object of a finished request.
pub fn reply(
    model: String,
    collected: Vec<Collected>,
    answers: &Answers,
    logprobs: bool,
) -> ChatReply {
    let choice = |(index, one): (usize, Collected)| ChatChoice {
        index,
        message: ChatMessage {
            role: "assistant",
            content: one.content,
            refusal: None,
            reasoning_content: one.reasoning,
            tool_calls: one.calls.into_iter().map(|call| tool_call(call, None)).collect(),
        },
        logprobs: logprobs.then_some(ChatLogprobs { content: one.tokens }),
        finish_reason: one.finish.unwrap_or(Finish::Stop).name(),
    };
    ChatReply {
        id: fresh_name("chatcmpl-"),
        object: "chat.completion",
        created: unix_time(),
        model,
        system_fingerprint: FINGERPRINT.to_owned(),
        choices: collected.into_iter().enumerate().map(choice).collect(),
        usage: answers.usage(),
        timings: answers.timings(),
    }
}

/// A call with a name of its own.
pub fn tool_call(call: chat::ToolCall, index: Option<usize>) -> ToolCall {
    ToolCall {
        index,
        id: fresh_name("call_"),
        r#type: "function",
        function: CalledFunction { name: call.name, arguments: call.arguments },
    }
}
