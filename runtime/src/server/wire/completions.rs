//! `POST /v1/completions`.

use super::chat::StreamOptions;
use super::{SamplingFields, Timings, Usage};
use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// A text to go on with, as it is: no template, `<bos>` in front.
#[derive(Debug, Clone, ToSchema)]
pub struct CompletionRequest {
    /// A name this server serves the model by; without it, the model there is.
    pub model: Option<String>,
    /// A text, a list of texts, token ids, or a list of lists of token ids. Control tokens in a text are control tokens; ids are taken as they are.
    #[schema(value_type = Value)]
    pub prompt: Vec<CompletionPrompt>,
    /// Longest answer in tokens; 16.
    #[schema(value_type = Option<usize>, minimum = 1)]
    pub max_tokens: usize,
    /// Up to 16 texts that end the answer; they are not part of it.
    #[schema(value_type = Option<Value>)]
    pub stop: Vec<String>,
    /// Number of answers to each prompt, 1 to 16.
    #[schema(value_type = Option<usize>, minimum = 1, maximum = 16)]
    pub n: usize,
    /// The same as `n` and nothing else.
    #[schema(minimum = 1)]
    pub best_of: Option<usize>,
    /// How tokens are chosen.
    #[serde(flatten)]
    pub sampling: SamplingFields,
    /// Say how likely each token was, and so many likeliest in its place, 0 to 20.
    #[schema(minimum = 0, maximum = 20)]
    pub logprobs: Option<usize>,
    /// Send the answer as server-sent events while it comes.
    #[schema(value_type = Option<bool>)]
    pub stream: bool,
    /// With `stream`: `include_usage` asks for one more chunk with the usage.
    #[schema(value_type = Option<StreamOptions>)]
    pub stream_options: StreamOptions,
}

/// One prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CompletionPrompt {
    /// Text.
    Text(String),
    /// Token ids.
    Ids(Vec<u32>),
}

/// An answer, or one event of a stream.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct CompletionReply {
    /// Names the answer.
    pub id: String,
    /// `text_completion`.
    pub object: &'static str,
    /// Unix time in seconds.
    pub created: u64,
    /// The model's name.
    pub model: String,
    /// The version that answered.
    pub system_fingerprint: String,
    /// `n` for each prompt, prompt by prompt.
    pub choices: Vec<CompletionChoice>,
    /// Tokens; in a stream as `stream_options` says.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Usage>)]
    pub usage: Option<Option<Usage>>,
    /// Milliseconds; in a stream with the last choice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timings: Option<Timings>,
}

/// One of the answers, or what is new in it.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct CompletionChoice {
    /// From 0.
    pub index: usize,
    /// The text.
    pub text: String,
    /// If asked for.
    pub logprobs: Option<CompletionLogprobs>,
    /// `stop` or `length`; null while a stream goes on.
    #[schema(value_type = Option<String>)]
    pub finish_reason: Option<&'static str>,
}

/// How likely the tokens were, in columns.
#[derive(Debug, Clone, Default, PartialEq, Serialize, ToSchema)]
pub struct CompletionLogprobs {
    /// Texts of the tokens.
    pub tokens: Vec<String>,
    /// Natural logarithms of their probabilities, the same numbers as among the likeliest.
    pub token_logprobs: Vec<f64>,
    /// The likeliest tokens in each place.
    #[schema(value_type = Vec<Object>)]
    pub top_logprobs: Vec<Map<String, Value>>,
    /// Where each begins, in characters of the answer's tokens joined.
    pub text_offset: Vec<usize>,
}
