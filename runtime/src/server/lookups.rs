//! The endpoints that generate nothing: models, health, metrics, tokens, the page.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::{HeaderValue, header};
use axum::response::{Html, IntoResponse, Response};
use serde_json::Value;
use std::sync::Arc;

use super::body::JsonBody;
use super::chat::request::messages;
use super::chat::tools;
use super::completions::request::ids;
use super::error::ApiError;
use super::fields::Fields;
use super::service::Service;
use super::shared::Shared;
use super::wire::other::{
    DetokenizeReply, DetokenizeRequest, Health, ModelEntry, ModelList, TokenizeReply,
    TokenizeRequest,
};
use super::wire::{ErrorReply, Refusals};
use crate::chat::{Conversation, Most, SpecialTokens};

/// The names that the model is served by.
#[utoipa::path(
    get,
    path = "/v1/models",
    tag = "model",
    responses(
        (status = 200, description = "All names.", body = ModelList),
        (status = 401, description = "The API key is missing or unknown.", body = ErrorReply),
        (status = 503, description = "The model is being loaded.", body = ErrorReply),
    )
)]
pub async fn models(State(shared): State<Arc<Shared>>) -> Result<Json<ModelList>, ApiError> {
    let service = shared.service()?;
    let names = &shared.options.model_names;
    let data = names.iter().map(|name| entry(&shared, service, name)).collect();
    Ok(Json(ModelList { object: "list", data }))
}

/// One name.
#[utoipa::path(
    get,
    path = "/v1/models/{model}",
    tag = "model",
    params(("model" = String, Path, description = "The name; it may hold slashes.")),
    responses(
        (status = 200, description = "It is served.", body = ModelEntry),
        (status = 400, description = "The name is not UTF-8.", body = ErrorReply),
        (status = 401, description = "The API key is missing or unknown.", body = ErrorReply),
        (status = 404, description = "No such model.", body = ErrorReply),
        (status = 503, description = "The model is being loaded.", body = ErrorReply),
    )
)]
pub async fn model(
    State(shared): State<Arc<Shared>>,
    name: Result<Path<String>, axum::extract::rejection::PathRejection>,
) -> Result<Json<ModelEntry>, ApiError> {
    let Path(name) = name.map_err(|error| ApiError::conflict("model", error.body_text()))?;
    let service = shared.service()?;
    let name = shared.model_name(Some(&name))?;
    Ok(Json(entry(&shared, service, &name)))
}

fn entry(shared: &Shared, service: &Service, name: &str) -> ModelEntry {
    ModelEntry {
        id: name.to_owned(),
        object: "model",
        created: shared.started,
        owned_by: "w4pack",
        context_length: service.scheduler.context(),
    }
}

/// Whether the server is ready for requests.
#[utoipa::path(
    get,
    path = "/health",
    tag = "operation",
    responses(
        (status = 200, description = "It is.", body = Health),
        (status = 503, description = "The model is being loaded, or the server is stopping.", body = ErrorReply),
    )
)]
pub async fn health(State(shared): State<Arc<Shared>>) -> Result<Json<Health>, ApiError> {
    let service = shared.service()?;
    if shared.is_stopping() {
        return Err(ApiError::shutting_down());
    }
    let gauges = service.scheduler.gauges();
    Ok(Json(Health {
        status: "ok",
        device: service.scheduler.device().to_owned(),
        running: gauges.running,
        waiting: gauges.waiting,
        slots: gauges.slots,
    }))
}

/// Counts and times, in Prometheus' text format.
#[utoipa::path(
    get,
    path = "/metrics",
    tag = "operation",
    responses(
        (status = 200, description = "All of them.", body = String, content_type = "text/plain"),
        (status = 401, description = "The API key is missing or unknown.", body = ErrorReply),
    )
)]
pub async fn metrics(State(shared): State<Arc<Shared>>) -> Response {
    let page = shared.metrics.page(shared.loaded().map(AsRef::as_ref));
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    ([(header::CONTENT_TYPE, kind)], page).into_response()
}

/// A text, or a conversation as the template writes it, cut into tokens.
#[utoipa::path(
    post,
    path = "/tokenize",
    tag = "tokens",
    request_body = TokenizeRequest,
    responses(
        (status = 200, description = "The ids.", body = TokenizeReply),
        Refusals,
    )
)]
pub async fn tokenize(
    State(shared): State<Arc<Shared>>,
    body: JsonBody,
) -> Result<Json<TokenizeReply>, ApiError> {
    let names = shared.clone();
    let work = move |service: &Service| {
        let body = body.parse()?;
        let mut fields = Fields::of_body(&body);
        names.model_name(fields.text("model")?)?;
        let text = fields.text("text")?;
        let conversation = fields.take("messages").map(|field| messages(&field)).transpose()?;
        let declared = tools::read(&mut fields)?;
        let variables = super::chat::request::template_variables(&mut fields, None)?;
        let add_bos = fields.boolean("add_bos")?;
        fields.finish()?;
        let tokenizer = service.text.tokenizer();
        let tokens = match (text, conversation) {
            (Some(text), None) => {
                if !declared.is_empty() || variables.is_some() {
                    let message = "`tools` and `chat_template_kwargs` belong to `messages`";
                    return Err(ApiError::conflict("text", message));
                }
                match add_bos.unwrap_or(false) {
                    true => tokenizer.encode_raw(text, Most::ANY)?,
                    false => tokenizer.encode_prompt(text)?,
                }
            }
            (None, Some(messages)) => {
                if add_bos.is_some() {
                    let message = "`add_bos` belongs to `text`: a template writes its own";
                    return Err(ApiError::conflict("add_bos", message));
                }
                let (enable_thinking, extra) = super::chat::split_variables(variables.as_ref());
                let conversation = Conversation {
                    messages: &messages,
                    tools: &declared,
                    enable_thinking,
                    extra: extra.as_ref(),
                };
                service.text.prompt(&conversation)?.ids
            }
            _ => {
                let message = "give either `text` or `messages`";
                return Err(ApiError::conflict("text", message));
            }
        };
        let (count, max_model_len) = (tokens.len(), service.scheduler.context());
        Ok(Json(TokenizeReply { tokens, count, max_model_len }))
    };
    shared.work(work).await
}

/// Token ids put together to text.
#[utoipa::path(
    post,
    path = "/detokenize",
    tag = "tokens",
    request_body = DetokenizeRequest,
    responses(
        (status = 200, description = "The text, control tokens shown.", body = DetokenizeReply),
        Refusals,
    )
)]
pub async fn detokenize(
    State(shared): State<Arc<Shared>>,
    body: JsonBody,
) -> Result<Json<DetokenizeReply>, ApiError> {
    let names = shared.clone();
    let work = move |service: &Service| {
        let body = body.parse()?;
        let mut fields = Fields::of_body(&body);
        names.model_name(fields.text("model")?)?;
        let tokens = ids(&fields.need("tokens")?.list()?, service.vocabulary())?;
        fields.finish()?;
        let text = service.text.tokenizer().decode(&tokens, SpecialTokens::Show)?;
        Ok(Json(DetokenizeReply { text }))
    };
    shared.work(work).await
}

/// The chat page.
pub async fn page() -> Response {
    // Nothing from elsewhere, and nobody else's frame.
    let policy = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; \
                  connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; \
                  frame-ancestors 'none'";
    let policy = (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy));
    ([policy], Html(include_str!("page.html"))).into_response()
}

/// The description of all endpoints.
pub async fn openapi(State(shared): State<Arc<Shared>>) -> Json<Value> {
    Json(shared.openapi.clone())
}

/// A path that nothing is at.
pub async fn no_such_path(uri: axum::http::Uri) -> ApiError {
    let path = super::error::shown(uri.path());
    let message = format!("nothing is at `{path}`; /openapi.json says what there is");
    ApiError::new(axum::http::StatusCode::NOT_FOUND, "unknown_url", message)
}

/// A path that is there, for another method.
pub async fn wrong_method(method: axum::http::Method, uri: axum::http::Uri) -> ApiError {
    let path = super::error::shown(uri.path());
    let message = format!("`{path}` does not take {method}; /openapi.json says what it takes");
    ApiError::new(axum::http::StatusCode::METHOD_NOT_ALLOWED, "method_not_supported", message)
}
