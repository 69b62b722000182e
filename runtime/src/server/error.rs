//! What a request is refused with: OpenAI's error object and a status.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::chat::{ChatError, Fault};
use crate::error::RuntimeError;
use crate::scheduler::Refusal;

/// A refusal or a failure, as clients of OpenAI's API expect it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    pub(super) status: StatusCode,
    kind: &'static str,
    code: &'static str,
    param: Option<String>,
    message: String,
    retry_after: Option<u64>,
}

/// Most characters of a client's value that a message repeats.
const SHOWN: usize = 80;

impl ApiError {
    pub(super) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        let kind = match status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        };
        Self { status, kind, code, param: None, message: message.into(), retry_after: None }
    }

    fn bad(code: &'static str, param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code, message).at(param)
    }

    /// Names the field.
    pub(super) fn at(mut self, param: impl Into<String>) -> Self {
        self.param = Some(param.into()).filter(|param| !param.is_empty());
        self
    }

    /// A value that is not what the field holds.
    pub(super) fn value(path: &str, found: &Value, expected: &str) -> Self {
        let found = shown(&found.to_string());
        Self::bad("invalid_value", path, format!("`{path}` is {found}: expected {expected}"))
    }

    /// Fields that are sound by themselves and not together.
    pub(super) fn conflict(path: &str, message: impl Into<String>) -> Self {
        Self::bad("invalid_value", path, message)
    }

    /// A value that would change the answer and that this server does not do.
    pub(super) fn unsupported(path: &str, message: impl Into<String>) -> Self {
        Self::bad("unsupported_value", path, message)
    }

    /// A name nobody knows; `known` is what could stand there.
    pub(super) fn unknown_field(path: &str, known: &[&str]) -> Self {
        let known = known.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        let message = format!("unknown field `{}`; known here: {known}", shown(path));
        Self::bad("unknown_parameter", path, message)
    }

    pub(super) fn missing(path: &str) -> Self {
        let message = format!("`{path}` is missing");
        Self::bad("missing_required_parameter", path, message)
    }

    /// A prompt that the context does not hold. `prompt` is its length in words: a number, or that it
    /// is more than one.
    pub(super) fn context(param: &str, prompt: &str, context: usize) -> Self {
        let message = format!(
            "This model's maximum context length is {context} tokens. However, your `{param}` \
             came to {prompt} tokens, and an answer needs at least one more. Please shorten them."
        );
        Self::bad("context_length_exceeded", param, message)
    }

    /// A job that the scheduler does not take. `field` is where its prompt came from.
    pub(super) fn refusal(refusal: Refusal, field: &str) -> Self {
        match refusal {
            Refusal::QueueFull { waiting, limit } => Self::queue_full(waiting, limit),
            Refusal::Context { prompt, context, .. } => {
                Self::context(field, &prompt.to_string(), context)
            }
            Refusal::Setting(error) => error.into(),
            Refusal::ShuttingDown => Self::shutting_down(),
        }
    }

    pub(super) fn model_not_found(model: &str, served: &[String]) -> Self {
        let served = served.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        let message = format!("the model `{}` is not served here; served: {served}", shown(model));
        Self::new(StatusCode::NOT_FOUND, "model_not_found", message).at("model")
    }

    /// Too many requests wait already.
    fn queue_full(waiting: usize, limit: usize) -> Self {
        let message = format!(
            "{waiting} answers wait for a free slot, and the queue holds {limit}. \
             Please try again in a moment."
        );
        let error = Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_exceeded", message);
        Self { retry_after: Some(1), ..error }
    }

    pub(super) fn not_ready() -> Self {
        let message = "the model is still being loaded";
        let error = Self::new(StatusCode::SERVICE_UNAVAILABLE, "not_ready", message);
        Self { retry_after: Some(1), ..error }
    }

    pub(super) fn shutting_down() -> Self {
        let message = "the server is shutting down";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "shutting_down", message)
    }

    /// The engine could not go on.
    pub(super) fn engine(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "engine_failed", message)
    }

    /// The object `{"error": …}`.
    pub(super) fn body(&self) -> Value {
        json!({"error": {
            "message": self.message,
            "type": self.kind,
            "param": self.param,
            "code": self.code,
        }})
    }
}

/// A setting that the engine refuses is the request's fault.
impl From<RuntimeError> for ApiError {
    fn from(error: RuntimeError) -> Self {
        match &error {
            RuntimeError::Setting { name, .. } => {
                Self::bad("invalid_value", *name, error.to_string())
            }
            RuntimeError::TokenId { .. } | RuntimeError::EmptyPrompt => {
                Self::bad("invalid_value", "prompt", error.to_string())
            }
            _ => Self::engine(error.to_string()),
        }
    }
}

/// What the template or the tokenizer does not take is the request's fault, or the checkpoint's.
impl From<ChatError> for ApiError {
    fn from(error: ChatError) -> Self {
        let message = error.to_string();
        match error {
            ChatError::Message { message: index, path, fault, .. } => {
                Self::bad(code(fault), format!("messages[{index}]{path}"), cut(&message))
            }
            ChatError::Tool { tool, path, fault, .. } => {
                Self::bad(code(fault), format!("tools[{tool}]{path}"), cut(&message))
            }
            ChatError::Refused { .. } | ChatError::Rendering { .. } => {
                Self::bad("invalid_value", "messages", message)
            }
            ChatError::ReservedVariable { name, .. } => {
                Self::bad("invalid_value", format!("chat_template_kwargs.{name}"), message)
            }
            ChatError::NoTemplate => {
                let message = "this model has no chat template: use /v1/completions";
                Self::bad("unsupported_value", "messages", message)
            }
            ChatError::UnknownId { .. } => Self::bad("invalid_value", "tokens", message),
            _ => Self::engine(message),
        }
    }
}

fn code(fault: Fault) -> &'static str {
    match fault {
        Fault::Missing => "missing_required_parameter",
        Fault::Unknown => "unknown_parameter",
        Fault::Unsupported => "unsupported_value",
        Fault::Value => "invalid_value",
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            let scheme = HeaderValue::from_static("Bearer");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, scheme);
        }
        response
    }
}

/// A client's text, cut where it would fill a log.
pub(super) fn shown(text: &str) -> String {
    cut_behind(text, SHOWN)
}

/// A message that repeats a client's text, cut in the same way.
fn cut(message: &str) -> String {
    cut_behind(message, 3 * SHOWN)
}

fn cut_behind(text: &str, characters: usize) -> String {
    match text.char_indices().nth(characters) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}
