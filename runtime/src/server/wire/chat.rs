//! `POST /v1/chat/completions`.

use super::{SamplingFields, Timings, TokenLogprob, Usage};
use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// A conversation to go on with.
#[derive(Debug, Clone, ToSchema)]
pub struct ChatRequest {
    /// A name this server serves the model by; without it, the model there is.
    pub model: Option<String>,
    /// The conversation.
    #[schema(value_type = Vec<Message>, min_items = 1)]
    pub messages: Vec<Value>,
    /// Functions that the model may call.
    #[schema(value_type = Option<Vec<Tool>>)]
    pub tools: Vec<Value>,
    /// `none`: no tool is offered; `auto`: the model decides; `required`: at least one call; an object names the one to call.
    #[schema(value_type = Option<Value>)]
    pub tool_choice: ToolChoice,
    /// Whether one answer may hold several calls; true.
    #[schema(value_type = Option<bool>)]
    pub parallel_tool_calls: bool,
    /// `text`, `json_object`, or `json_schema` with a schema that the answer is held to.
    #[schema(value_type = Option<Value>)]
    pub response_format: ResponseFormat,
    /// Thinking: `none` and `minimal` are off, `low` to `xhigh` on (Gemma 4 knows no degrees).
    pub reasoning_effort: Option<String>,
    /// Variables of the chat template: `enable_thinking` and `preserve_thinking`.
    #[schema(value_type = Option<Object>)]
    pub chat_template_kwargs: Option<Map<String, Value>>,
    /// Longest answer in tokens; without it, until the context is full.
    #[schema(minimum = 1)]
    pub max_tokens: Option<usize>,
    /// `max_tokens` by its newer name; both and different is refused.
    #[schema(minimum = 1)]
    pub max_completion_tokens: Option<usize>,
    /// Up to 16 texts that end the answer's text; they are not part of it.
    #[schema(value_type = Option<Value>)]
    pub stop: Vec<String>,
    /// Number of answers, 1 to 16.
    #[schema(value_type = Option<usize>, minimum = 1, maximum = 16)]
    pub n: usize,
    /// How tokens are chosen.
    #[serde(flatten)]
    pub sampling: SamplingFields,
    /// Whether to say how likely each token was.
    #[schema(value_type = Option<bool>)]
    pub logprobs: bool,
    /// With `logprobs`: so many likeliest tokens in each place, 0 to 20.
    #[schema(minimum = 0, maximum = 20)]
    pub top_logprobs: Option<usize>,
    /// Send the answer as server-sent events while it comes.
    #[schema(value_type = Option<bool>)]
    pub stream: bool,
    /// With `stream`: `include_usage` asks for one more chunk with the usage.
    #[schema(value_type = Option<StreamOptions>)]
    pub stream_options: StreamOptions,
}

/// What a stream holds beside the answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ToSchema)]
pub struct StreamOptions {
    /// One more chunk, without choices, before `[DONE]`.
    #[schema(value_type = Option<bool>)]
    pub include_usage: bool,
}

/// A message of a conversation.
#[derive(Debug, Clone, ToSchema)]
pub struct Message {
    /// `system`, `developer`, `user`, `assistant` or `tool`.
    pub role: String,
    /// A text, a list of parts `{"type": "text", "text": …}`, or null in an assistant's message.
    #[schema(value_type = Value)]
    pub content: Option<Value>,
    /// An assistant's thought; `reasoning` is the same.
    pub reasoning_content: Option<String>,
    /// An assistant's calls.
    #[schema(value_type = Option<Vec<ToolCall>>)]
    pub tool_calls: Option<Vec<ToolCall>>,
    /// The call that a tool's message answers.
    pub tool_call_id: Option<String>,
    /// The name of the tool that answers; of other roles without effect.
    pub name: Option<String>,
}

/// A function that the model may call.
#[derive(Debug, Clone, ToSchema)]
pub struct Tool {
    /// `function`.
    pub r#type: String,
    /// The function.
    pub function: Function,
}

/// A function's declaration.
#[derive(Debug, Clone, ToSchema)]
pub struct Function {
    /// Letters, digits and `_-.:/`, at most 128.
    pub name: String,
    /// What it is for.
    pub description: Option<String>,
    /// JSON schema of its arguments.
    #[schema(value_type = Option<Object>)]
    pub parameters: Option<Map<String, Value>>,
    /// Whether arguments are held to the schema by the sampler.
    pub strict: Option<bool>,
}

/// Which tool is to be called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolChoice {
    /// None is offered.
    None,
    /// The model decides.
    Auto,
    /// At least one.
    Required,
    /// This one.
    Named(String),
}

/// What form the answer has.
#[derive(Debug, Clone, PartialEq)]
pub enum ResponseFormat {
    /// Any text.
    Text,
    /// A JSON object.
    JsonObject,
    /// JSON that fits a schema.
    JsonSchema(Value),
}

/// A call of a function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct ToolCall {
    /// Its place among the answer's calls; only in streams.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index: Option<usize>,
    /// Names the call.
    pub id: String,
    /// `function`.
    pub r#type: &'static str,
    /// Name and arguments.
    pub function: CalledFunction,
}

/// What is called.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct CalledFunction {
    /// The function's name.
    pub name: String,
    /// Its arguments: the text of a JSON object.
    pub arguments: String,
}

/// A whole answer.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ChatReply {
    /// Names the answer.
    pub id: String,
    /// `chat.completion`.
    pub object: &'static str,
    /// Unix time in seconds.
    pub created: u64,
    /// The model's name.
    pub model: String,
    /// The version that answered.
    pub system_fingerprint: String,
    /// One for each of `n`.
    pub choices: Vec<ChatChoice>,
    /// Tokens.
    pub usage: Usage,
    /// Milliseconds.
    pub timings: Timings,
}

/// One of the answers.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ChatChoice {
    /// From 0.
    pub index: usize,
    /// The answer.
    pub message: ChatMessage,
    /// If asked for.
    pub logprobs: Option<ChatLogprobs>,
    /// `stop`, `length` or `tool_calls`.
    pub finish_reason: &'static str,
}

/// The model's message.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ChatMessage {
    /// `assistant`.
    pub role: &'static str,
    /// The text; null if there is none.
    pub content: Option<String>,
    /// Null: this model has no refusals of its own.
    #[schema(value_type = Option<String>)]
    pub refusal: Option<&'static str>,
    /// The thought, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// Calls, if there are any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
}

/// How likely the tokens were.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct ChatLogprobs {
    /// Every generated token that has a text, those of thoughts and calls included.
    pub content: Vec<TokenLogprob>,
}

/// One event of a stream.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ChatChunk {
    /// The same in every chunk.
    pub id: String,
    /// `chat.completion.chunk`.
    pub object: &'static str,
    /// Unix time in seconds.
    pub created: u64,
    /// The model's name.
    pub model: String,
    /// The version that answers.
    pub system_fingerprint: String,
    /// One, or none in the chunk with the usage.
    pub choices: Vec<ChatChunkChoice>,
    /// With `include_usage`: null in all chunks but the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Usage>)]
    pub usage: Option<Option<Usage>>,
    /// In the last chunk that has a choice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timings: Option<Timings>,
}

/// What is new in one of the answers.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ChatChunkChoice {
    /// From 0.
    pub index: usize,
    /// What is new.
    pub delta: ChatDelta,
    /// If asked for: of the tokens since the last chunk.
    pub logprobs: Option<ChatLogprobs>,
    /// In the answer's last chunk.
    #[schema(value_type = Option<String>)]
    pub finish_reason: Option<&'static str>,
}

/// A part of the model's message.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct ChatDelta {
    /// In the first chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub role: Option<&'static str>,
    /// More text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// More of the thought.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// A call, whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Vec<ToolCall>>,
}
