//! The smaller endpoints.

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

/// `GET /v1/models`.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ModelList {
    /// `list`.
    pub object: &'static str,
    /// One for each name that the model is served by.
    pub data: Vec<ModelEntry>,
}

/// `GET /v1/models/{id}`.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ModelEntry {
    /// The name.
    pub id: String,
    /// `model`.
    pub object: &'static str,
    /// Unix time of the server's start.
    pub created: u64,
    /// `w4pack`.
    pub owned_by: &'static str,
    /// Positions of prompt and answer together.
    pub context_length: usize,
}

/// `GET /health`.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Health {
    /// `ok`.
    pub status: &'static str,
    /// What computes.
    pub device: String,
    /// Answers being generated.
    pub running: usize,
    /// Answers waiting for a slot.
    pub waiting: usize,
    /// Answers that can be generated at once.
    pub slots: usize,
}

/// Text, or a conversation, to be cut into tokens.
#[derive(Debug, Clone, ToSchema)]
pub struct TokenizeRequest {
    /// A name this server serves the model by.
    pub model: Option<String>,
    /// The text; or give `messages`.
    pub text: Option<String>,
    /// A conversation, rendered by the chat template; or give `text`.
    #[schema(value_type = Option<Vec<super::chat::Message>>)]
    pub messages: Option<Vec<Value>>,
    /// With `messages`: functions that the model may call.
    #[schema(value_type = Option<Vec<super::chat::Tool>>)]
    pub tools: Option<Vec<Value>>,
    /// With `messages`: variables of the chat template.
    #[schema(value_type = Option<Object>)]
    pub chat_template_kwargs: Option<Value>,
    /// With `text`: put `<bos>` in front; false.
    pub add_bos: Option<bool>,
}

/// Tokens of a text.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct TokenizeReply {
    /// The ids.
    pub tokens: Vec<u32>,
    /// How many.
    pub count: usize,
    /// Positions that prompt and answer have together.
    pub max_model_len: usize,
}

/// Ids to be put together to text.
#[derive(Debug, Clone, ToSchema)]
pub struct DetokenizeRequest {
    /// A name this server serves the model by.
    pub model: Option<String>,
    /// The ids.
    pub tokens: Vec<u32>,
}

/// The text of tokens.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct DetokenizeReply {
    /// The text, control tokens shown.
    pub text: String,
}
