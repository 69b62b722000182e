//! `POST /v1/completions`: text goes on as it is.

pub mod request;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value};
use std::sync::Arc;

use super::answer::{Finish, Piece, Reading};
use super::ask::{Answers, Ask};
use super::body::JsonBody;
use super::chat::reply::collect;
use super::error::ApiError;
use super::service::Service;
use super::settings;
use super::shared::{FINGERPRINT, Shared, fresh_name, unix_time};
use super::sse::{self, Message, Translator};
use super::wire::completions::{
    CompletionChoice, CompletionLogprobs, CompletionPrompt, CompletionReply, CompletionRequest,
};
use super::wire::{Failures, Refusals, StreamEvent, Timings, TokenLogprob, Usage};

/// Goes on with a text or with token ids, whole or as a stream.
#[utoipa::path(
    post,
    path = "/v1/completions",
    tag = "generation",
    request_body = CompletionRequest,
    responses(
        (status = 200, description = "The answers; with `stream`, events that end in `[DONE]`.", content(
            (CompletionReply = "application/json"), (StreamEvent = "text/event-stream"))),
        Refusals,
        Failures,
    )
)]
pub async fn completions(
    State(shared): State<Arc<Shared>>,
    body: JsonBody,
) -> Result<Response, ApiError> {
    let metrics = shared.metrics.clone();
    let (request, model, mut answers) = {
        let names = shared.clone();
        let prepare = move |service: &Service| {
            let (request, _) = request::read(&body.parse()?, service.vocabulary())?;
            let model = names.model_name(request.model.as_deref())?;
            let asks = asks(service, &request)?;
            Ok((request, model, Answers::start(service, &metrics, asks)?))
        };
        shared.prepare(prepare).await?
    };
    let head = Head { id: fresh_name("cmpl-"), created: unix_time(), model };
    if request.stream {
        let choices = std::iter::repeat_with(Choice::default).take(answers.count()).collect();
        let include_usage = request.stream_options.include_usage;
        return Ok(sse::respond(answers, Chunks { head, include_usage, choices }));
    }
    let collected = collect(&mut answers).await?;
    let choice = |(index, one): (usize, super::chat::reply::Collected)| CompletionChoice {
        index,
        text: one.content.unwrap_or_default(),
        logprobs: request.logprobs.is_some().then(|| columns(one.tokens, &mut 0)),
        finish_reason: Some(one.finish.unwrap_or(Finish::Stop).name()),
    };
    let choices = collected.into_iter().enumerate().map(choice).collect();
    let reply = head.reply(choices, Some(Some(answers.usage())), Some(answers.timings()));
    Ok(Json(reply).into_response())
}

fn asks(service: &Service, request: &CompletionRequest) -> Result<Vec<Ask>, ApiError> {
    let first = request.sampling.seed;
    let ask = |(number, prompt): (usize, &CompletionPrompt)| {
        let ids = match prompt {
            CompletionPrompt::Text(text) => service.raw_prompt(text, "prompt")?,
            CompletionPrompt::Ids(ids) => ids.clone(),
        };
        if ids.is_empty() {
            return Err(ApiError::conflict("prompt", "`prompt` holds a prompt without tokens"));
        }
        let mut sampling = settings::resolved(&request.sampling, &service.defaults);
        // Answers are numbered on from prompt to prompt, and their seeds with them.
        let before = (number * request.n) as u64;
        sampling.seed = first.map(|seed| (seed as u64).wrapping_add(before));
        Ok(Ask {
            prompt: ids,
            field: "prompt",
            reading: Reading::Raw,
            answers: request.n,
            max_tokens: Some(request.max_tokens),
            sampling,
            adjustments: settings::adjustments(&request.sampling),
            stops: request.stop.clone(),
            logprobs: request.logprobs,
            constraints: Vec::new(),
        })
    };
    request.prompt.iter().enumerate().map(ask).collect()
}

/// What every object of a request has.
struct Head {
    id: String,
    created: u64,
    model: String,
}

impl Head {
    fn reply(
        &self,
        choices: Vec<CompletionChoice>,
        usage: Option<Option<Usage>>,
        timings: Option<Timings>,
    ) -> CompletionReply {
        CompletionReply {
            id: self.id.clone(),
            object: "text_completion",
            created: self.created,
            model: self.model.clone(),
            system_fingerprint: FINGERPRINT.to_owned(),
            choices,
            usage,
            timings,
        }
    }
}

/// OpenAI's older form of log-probabilities. `offset`: characters before these tokens.
fn columns(tokens: Vec<TokenLogprob>, offset: &mut usize) -> CompletionLogprobs {
    let mut columns = CompletionLogprobs::default();
    for token in tokens {
        columns.text_offset.push(*offset);
        *offset += token.token.chars().count();
        columns.tokens.push(token.token);
        columns.token_logprobs.push(token.logprob.into());
        let mut top = Map::new();
        for likely in token.top_logprobs {
            // Two tokens may have one text: the likelier comes first and stays.
            top.entry(likely.token).or_insert(Value::from(likely.logprob));
        }
        columns.top_logprobs.push(top);
    }
    columns
}

/// Makes the chunks of one request.
struct Chunks {
    head: Head,
    include_usage: bool,
    choices: Vec<Choice>,
}

#[derive(Default)]
struct Choice {
    /// Tokens since the last chunk.
    tokens: Vec<TokenLogprob>,
    offset: usize,
}

impl Chunks {
    fn chunk(
        &mut self,
        index: usize,
        text: String,
        finish: Option<Finish>,
        timings: Option<Timings>,
    ) -> Vec<Message> {
        let Choice { tokens, offset } = &mut self.choices[index];
        let logprobs = (!tokens.is_empty()).then(|| columns(std::mem::take(tokens), offset));
        let finish_reason = finish.map(Finish::name);
        let choice = CompletionChoice { index, text, logprobs, finish_reason };
        let usage = self.include_usage.then_some(None);
        vec![Message::json(&self.head.reply(vec![choice], usage, timings))]
    }
}

impl Translator for Chunks {
    fn begin(&mut self) -> Vec<Message> {
        Vec::new()
    }

    fn piece(&mut self, index: usize, piece: Piece, answers: &Answers) -> Vec<Message> {
        match piece {
            Piece::Token(token) => {
                self.choices[index].tokens.push(token);
                Vec::new()
            }
            Piece::Content(text) => self.chunk(index, text, None, None),
            Piece::Ended(ending) => {
                let timings = answers.all_done().then(|| answers.timings());
                self.chunk(index, String::new(), Some(ending.finish), timings)
            }
            _ => Vec::new(),
        }
    }

    fn end(&mut self, answers: &Answers) -> Vec<Message> {
        let usage = Some(Some(answers.usage()));
        let usage = self.include_usage.then(|| self.head.reply(Vec::new(), usage, None));
        let usage = usage.map(|reply| Message::json(&reply));
        usage.into_iter().chain([Message::done()]).collect()
    }
}
