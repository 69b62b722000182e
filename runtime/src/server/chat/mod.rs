//! `POST /v1/chat/completions`.

pub mod format;
pub mod reply;
pub mod request;
pub mod stream;
pub mod tools;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value};
use std::sync::Arc;

use super::answer::Reading;
use super::ask::{Answers, Ask};
use super::body::JsonBody;
use super::error::ApiError;
use super::held::{self, Form};
use super::service::Service;
use super::settings;
use super::shared::Shared;
use super::sse;
use super::wire::chat::{ChatReply, ChatRequest, ToolChoice};
use super::wire::{Failures, Refusals, StreamEvent};
use crate::chat::Conversation;

/// Answers a conversation, whole or as a stream.
#[utoipa::path(
    post,
    path = "/v1/chat/completions",
    tag = "generation",
    request_body = ChatRequest,
    responses(
        (status = 200, description = "The answer; with `stream`, events that end in `[DONE]`.", content(
            (ChatReply = "application/json"), (StreamEvent = "text/event-stream"))),
        Refusals,
        Failures,
    )
)]
pub async fn chat_completions(
    State(shared): State<Arc<Shared>>,
    body: JsonBody,
) -> Result<Response, ApiError> {
    let metrics = shared.metrics.clone();
    let (request, model, mut answers) = {
        let names = shared.clone();
        let prepare = move |service: &Service| {
            let (request, _) = request::read(&body.parse()?, service.vocabulary())?;
            let model = names.model_name(request.model.as_deref())?;
            let ask = ask(service, &request)?;
            Ok((request, model, Answers::start(service, &metrics, vec![ask])?))
        };
        shared.prepare(prepare).await?
    };
    if request.stream {
        let include_usage = request.stream_options.include_usage;
        let chunks = stream::Chunks::new(model, answers.count(), include_usage);
        return Ok(sse::respond(answers, chunks));
    }
    let collected = reply::collect(&mut answers).await?;
    Ok(Json(reply::reply(model, collected, &answers, request.logprobs)).into_response())
}

/// Prompt, settings and constraints of a request.
fn ask(service: &Service, request: &ChatRequest) -> Result<Ask, ApiError> {
    // Where no tool may be called the model does not hear of any.
    let offered = match request.tool_choice {
        ToolChoice::None => &[][..],
        _ => &request.tools[..],
    };
    let (thinking, extra) = split_variables(request.chat_template_kwargs.as_ref());
    let effort = request.reasoning_effort.as_deref().and_then(request::thinking_by_effort);
    let conversation = Conversation {
        messages: &request.messages,
        tools: offered,
        enable_thinking: thinking.or(effort),
        extra: extra.as_ref(),
    };
    let prompt = service.prompt(&conversation, "messages", ".function.parameters")?;
    let form = Form {
        format: &request.response_format,
        choice: &request.tool_choice,
        field: "response_format",
        tools: offered,
        parameters: ".function.parameters",
        parallel: request.parallel_tool_calls,
        prompt: &prompt.text,
        messages: &request.messages,
    };
    let constraints = held::constraints(service, &form, request.n)?;
    Ok(Ask {
        prompt: prompt.ids,
        field: "messages",
        reading: Reading::Chat {
            prompt: prompt.text,
            calls: !offered.is_empty(),
            parallel: request.parallel_tool_calls,
        },
        answers: request.n,
        max_tokens: request.max_completion_tokens.or(request.max_tokens),
        sampling: settings::resolved(&request.sampling, &service.defaults),
        adjustments: settings::adjustments(&request.sampling),
        stops: request.stop.clone(),
        logprobs: request.logprobs.then(|| request.top_logprobs.unwrap_or(0)),
        constraints,
    })
}

/// The switch for thinking, and the template's other variables.
pub fn split_variables(
    given: Option<&Map<String, Value>>,
) -> (Option<bool>, Option<Map<String, Value>>) {
    let thinking = given.and_then(|given| given.get("enable_thinking")?.as_bool());
    let others = given.map(|given| {
        let mut others = given.clone();
        others.shift_remove("enable_thinking");
        others
    });
    (thinking, others)
}
