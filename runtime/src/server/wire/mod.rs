//! What goes over the wire, as types: the OpenAPI description is made from them.
//!
//! Requests are read by hand (`../chat/request.rs` and its like), because a serde error names no
//! path; a test holds the fields that the reader asks for against the fields described here.

pub mod chat;
pub mod completions;
pub mod other;
pub mod responses;

use serde::Serialize;
use utoipa::{IntoResponses, ToSchema};

/// How tokens are chosen: the same fields in every request that generates.
#[derive(Debug, Clone, Default, PartialEq, ToSchema)]
pub struct SamplingFields {
    /// 0 takes the likeliest token; the checkpoint's `generation_config.json` is the default.
    #[schema(minimum = 0, maximum = 2)]
    pub temperature: Option<f64>,
    /// Samples among the likeliest tokens that together reach this probability.
    #[schema(minimum = 0, maximum = 1)]
    pub top_p: Option<f64>,
    /// Samples among so many likeliest tokens; 0 and -1: all.
    #[schema(value_type = Option<i64>, minimum = -1)]
    pub top_k: Option<usize>,
    /// Leaves out tokens less likely than this share of the likeliest one.
    #[schema(minimum = 0, maximum = 1)]
    pub min_p: Option<f64>,
    /// Makes sampling repeatable; answer i has the seed plus i.
    pub seed: Option<i64>,
    /// Taken off the logit of every token that the answer holds already.
    #[schema(minimum = -2, maximum = 2)]
    pub presence_penalty: Option<f64>,
    /// Taken off the logit of a token for each time that the answer holds it.
    #[schema(minimum = -2, maximum = 2)]
    pub frequency_penalty: Option<f64>,
    /// Divides positive logits of tokens in prompt and answer by this, multiplies negative ones.
    #[schema(minimum = 0.01, maximum = 10)]
    pub repetition_penalty: Option<f64>,
    /// Token ids, as keys, and what is added to their logits, -100 to 100.
    #[schema(value_type = Option<Object>)]
    pub logit_bias: Vec<(u32, f32)>,
}

/// What every refusal and failure looks like.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ErrorReply {
    /// The error.
    pub error: ErrorObject,
}

/// What a request with a body may be refused with.
#[derive(IntoResponses)]
pub enum Refusals {
    /// A field is not what it must be.
    #[response(status = 400)]
    Field(ErrorReply),
    /// The API key is missing or unknown.
    #[response(status = 401)]
    Key(ErrorReply),
    /// No such model.
    #[response(status = 404)]
    Model(ErrorReply),
    /// The host is not one that this server is asked by.
    #[response(status = 403)]
    Host(ErrorReply),
    /// The body did not come in time.
    #[response(status = 408)]
    Time(ErrorReply),
    /// The body is too long.
    #[response(status = 413)]
    Length(ErrorReply),
    /// The body is not called JSON.
    #[response(status = 415)]
    Kind(ErrorReply),
    /// The model is being loaded, or the server is stopping.
    #[response(status = 503)]
    NotReady(ErrorReply),
}

/// What one that generates may fail with besides.
#[derive(IntoResponses)]
pub enum Failures {
    /// The queue is full; `Retry-After` says when to try again.
    #[response(status = 429)]
    Queue(ErrorReply),
    /// The engine failed.
    #[response(status = 500)]
    Engine(ErrorReply),
}

/// An error in OpenAI's shape.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ErrorObject {
    /// What was found and what was expected.
    pub message: String,
    /// `invalid_request_error`, `authentication_error`, `rate_limit_error` or `server_error`.
    pub r#type: String,
    /// The field, as a path.
    pub param: Option<String>,
    /// A name for programs, such as `context_length_exceeded`.
    pub code: Option<String>,
}

/// Tokens of a request. The prompt counts once, however many choices there are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens generated, those that end an answer included, over all choices.
    pub completion_tokens: usize,
    /// Their sum.
    pub total_tokens: usize,
    /// Of the prompt's tokens.
    pub prompt_tokens_details: PromptTokensDetails,
    /// Of the generated tokens.
    pub completion_tokens_details: CompletionTokensDetails,
}

/// Details of the generated tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct CompletionTokensDetails {
    /// So many made up thoughts, their beginning and end included.
    pub reasoning_tokens: usize,
}

/// Details of the prompt's tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct PromptTokensDetails {
    /// So many were in the cache and were not read again.
    pub cached_tokens: usize,
}

/// How long it took. With several choices: the longest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, ToSchema)]
pub struct Timings {
    /// Milliseconds that the answer waited for a slot.
    pub queued_ms: f64,
    /// Milliseconds from then until the first token was chosen.
    pub prompt_ms: f64,
    /// Milliseconds from then until the last token was chosen.
    pub decode_ms: f64,
    /// Tokens after the first, over that time; null if there was only one.
    pub decode_tok_per_s: Option<f64>,
    /// Tokens that were guessed ahead and tried, of all choices.
    pub drafted_tokens: usize,
    /// Those of them that the answers have.
    pub accepted_tokens: usize,
}

/// A token and how likely it was.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct TokenLogprob {
    /// Its text; bytes that are no whole character appear as U+FFFD.
    pub token: String,
    /// Natural logarithm of its probability, before temperature and filters.
    pub logprob: f32,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// The likeliest tokens in its place.
    pub top_logprobs: Vec<TopLogprob>,
}

/// One of the likeliest tokens.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct TopLogprob {
    /// Its text.
    pub token: String,
    /// Natural logarithm of its probability.
    pub logprob: f32,
    /// Its bytes.
    pub bytes: Vec<u8>,
}
