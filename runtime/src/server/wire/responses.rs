//! `POST /v1/responses`: the stateless part of OpenAI's newer API.

use super::SamplingFields;
use super::chat::{ResponseFormat, ToolChoice};
use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// An input to answer. Nothing is stored: the whole conversation is sent each time.
#[derive(Debug, Clone, ToSchema)]
pub struct ResponsesRequest {
    /// A name this server serves the model by; without it, the model there is.
    pub model: Option<String>,
    /// A text, or a list of items: messages, `function_call`, `function_call_output`, `reasoning`.
    #[schema(value_type = Value)]
    pub input: Vec<Value>,
    /// A system message in front of the input.
    pub instructions: Option<String>,
    /// Functions that the model may call: `{"type": "function", "name": …, "parameters": …}`.
    #[schema(value_type = Option<Vec<Object>>)]
    pub tools: Vec<Value>,
    /// `none`, `auto`, `required`, or the function to call.
    #[schema(value_type = Option<Value>)]
    pub tool_choice: ToolChoice,
    /// Whether one answer may hold several calls; true.
    #[schema(value_type = Option<bool>)]
    pub parallel_tool_calls: bool,
    /// The form of the answer: `format` is `text`, `json_object`, or `json_schema` with a schema.
    #[schema(value_type = Option<Object>)]
    pub text: ResponseFormat,
    /// Thinking: `effort` `none` and `minimal` are off, `low` to `xhigh` on. The thought comes whole; a summary is not made.
    #[schema(value_type = Option<Object>)]
    pub reasoning: Option<String>,
    /// Longest answer in tokens, thoughts included; without it, until the context is full.
    #[schema(minimum = 1)]
    pub max_output_tokens: Option<usize>,
    /// `message.output_text.logprobs` asks for log-probabilities; `reasoning.encrypted_content` changes nothing, since thoughts are plain text.
    #[schema(value_type = Option<Vec<String>>)]
    pub include: bool,
    /// With those log-probabilities: so many likeliest tokens in each place, 0 to 20.
    #[schema(minimum = 0, maximum = 20)]
    pub top_logprobs: Option<usize>,
    /// How tokens are chosen.
    #[serde(flatten)]
    pub sampling: SamplingFields,
    /// Comes back in the reply and changes nothing else.
    #[schema(value_type = Option<Object>)]
    pub metadata: Map<String, Value>,
    /// Send the answer as server-sent events while it comes.
    #[schema(value_type = Option<bool>)]
    pub stream: bool,
    /// `include_obfuscation` changes nothing: no padding is sent.
    #[schema(value_type = Option<Object>)]
    pub stream_options: (),
}

/// An answer.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ResponsesReply {
    /// Names the answer; nothing can be fetched by it.
    pub id: String,
    /// `response`.
    pub object: &'static str,
    /// Unix time in seconds.
    pub created_at: u64,
    /// `in_progress`, `completed`, `incomplete` or `failed`.
    pub status: &'static str,
    /// If it failed.
    #[schema(value_type = Option<Object>)]
    pub error: Option<Value>,
    /// If it is incomplete: the reason, `max_output_tokens`.
    #[schema(value_type = Option<Object>)]
    pub incomplete_details: Option<Value>,
    /// As in the request.
    pub instructions: Option<String>,
    /// As in the request.
    pub max_output_tokens: Option<usize>,
    /// As in the request.
    #[schema(value_type = Object)]
    pub metadata: Map<String, Value>,
    /// The model's name.
    pub model: String,
    /// Items: `reasoning`, `message`, `function_call`.
    #[schema(value_type = Vec<Object>)]
    pub output: Vec<Value>,
    /// As in the request.
    pub parallel_tool_calls: bool,
    /// Null: nothing is stored.
    pub previous_response_id: Option<String>,
    /// As in the request.
    #[schema(value_type = Object)]
    pub reasoning: Value,
    /// False: nothing is stored.
    pub store: bool,
    /// In effect.
    pub temperature: f64,
    /// As in the request.
    #[schema(value_type = Object)]
    pub text: Value,
    /// As in the request.
    pub tool_choice: Value,
    /// As in the request.
    #[schema(value_type = Vec<Object>)]
    pub tools: Vec<Value>,
    /// In effect.
    pub top_p: f64,
    /// `disabled`.
    pub truncation: &'static str,
    /// Tokens, once it is done.
    pub usage: Option<ResponsesUsage>,
}

/// Tokens of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub struct ResponsesUsage {
    /// Tokens of the prompt.
    pub input_tokens: usize,
    /// Of those.
    pub input_tokens_details: super::PromptTokensDetails,
    /// Tokens generated.
    pub output_tokens: usize,
    /// Of those.
    pub output_tokens_details: super::CompletionTokensDetails,
    /// Their sum.
    pub total_tokens: usize,
}
