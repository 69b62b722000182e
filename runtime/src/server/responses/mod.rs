//! `POST /v1/responses`, without a memory: nothing is stored, and nothing can be fetched or gone on
//! with by its id.

mod content;
pub mod input;
pub mod reply;
pub mod request;
pub mod stream;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use std::sync::Arc;

use super::answer::Reading;
use super::ask::{Answers, Ask};
use super::body::JsonBody;
use super::chat::request::thinking_by_effort;
use super::error::ApiError;
use super::held::{self, Form};
use super::service::Service;
use super::settings;
use super::shared::Shared;
use super::sse::{self, Translator};
use super::wire::chat::ToolChoice;
use super::wire::responses::{ResponsesReply, ResponsesRequest};
use super::wire::{Failures, Refusals, StreamEvent};
use crate::chat::Conversation;

/// Answers an input, whole or as a stream. Nothing is stored.
#[utoipa::path(
    post,
    path = "/v1/responses",
    tag = "generation",
    request_body = ResponsesRequest,
    responses(
        (status = 200, description = "The answer; with `stream`, events that end in `response.completed` or `response.incomplete`.", content(
            (ResponsesReply = "application/json"), (StreamEvent = "text/event-stream"))),
        Refusals,
        Failures,
    )
)]
pub async fn responses(
    State(shared): State<Arc<Shared>>,
    body: JsonBody,
) -> Result<Response, ApiError> {
    let metrics = shared.metrics.clone();
    let (stream, reply, mut answers) = {
        let names = shared.clone();
        let prepare = move |service: &Service| {
            let (request, _) = request::read(&body.parse()?, service.vocabulary())?;
            let model = names.model_name(request.model.as_deref())?;
            let ask = ask(service, &request)?;
            let reply = reply::begun(&request, model, &ask.sampling);
            Ok((request.stream, reply, Answers::start(service, &metrics, vec![ask])?))
        };
        shared.prepare(prepare).await?
    };
    let mut events = stream::Events::new(reply);
    if stream {
        return Ok(sse::respond(answers, events));
    }
    while let Some(next) = answers.next().await {
        let (index, piece) = next?;
        events.piece(index, piece, &answers);
    }
    Ok(Json(events.into_reply(&answers)).into_response())
}

fn ask(service: &Service, request: &ResponsesRequest) -> Result<Ask, ApiError> {
    let offered = match request.tool_choice {
        ToolChoice::None => &[][..],
        _ => &request.tools[..],
    };
    let conversation = Conversation {
        messages: &request.input,
        tools: offered,
        enable_thinking: request.reasoning.as_deref().and_then(thinking_by_effort),
        extra: None,
    };
    let prompt = service.prompt(&conversation, "input", ".parameters")?;
    let form = Form {
        format: &request.text,
        choice: &request.tool_choice,
        field: "text",
        tools: offered,
        parameters: ".parameters",
        parallel: request.parallel_tool_calls,
        prompt: &prompt.text,
        messages: &request.input,
    };
    let constraints = held::constraints(service, &form, 1)?;
    Ok(Ask {
        prompt: prompt.ids,
        field: "input",
        reading: Reading::Chat {
            prompt: prompt.text,
            calls: !offered.is_empty(),
            parallel: request.parallel_tool_calls,
        },
        answers: 1,
        max_tokens: request.max_output_tokens,
        sampling: settings::resolved(&request.sampling, &service.defaults),
        adjustments: settings::adjustments(&request.sampling),
        stops: Vec::new(),
        logprobs: request.include.then(|| request.top_logprobs.unwrap_or(0)),
        constraints,
    })
}
