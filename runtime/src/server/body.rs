//! The body of a request: JSON, of bounded length, no key twice.

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::{StatusCode, header};
use serde_json::{Map, Value};
use w4pack_format::FormatError;

use super::error::{ApiError, shown};

/// The bytes of a JSON body. They are taken apart off the server's threads, see [`JsonBody::parse`].
pub struct JsonBody(Bytes);

impl<S: Send + Sync> FromRequest<S> for JsonBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let kind = request.headers().get(header::CONTENT_TYPE);
        let kind = kind.map(|kind| String::from_utf8_lossy(kind.as_bytes()).into_owned());
        // A page of another site may post plain text to this address unasked, but not JSON.
        if !kind.as_deref().is_some_and(is_json) {
            let found =
                kind.map_or_else(|| "is missing".into(), |kind| format!("is `{}`", shown(&kind)));
            let message = format!("the header content-type {found}: expected `application/json`");
            return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "content_type", message));
        }
        Bytes::from_request(request, state).await.map(Self).map_err(|rejection| {
            let (status, code) = match rejection.status() {
                StatusCode::PAYLOAD_TOO_LARGE => (StatusCode::PAYLOAD_TOO_LARGE, "body_too_large"),
                _ => (StatusCode::BAD_REQUEST, "body_incomplete"),
            };
            ApiError::new(status, code, format!("the body was not read: {}", rejection.body_text()))
        })
    }
}

fn is_json(kind: &str) -> bool {
    let essence = kind.split(';').next().unwrap_or_default().trim();
    essence.eq_ignore_ascii_case("application/json")
}

impl JsonBody {
    /// The object that the body is.
    pub fn parse(&self) -> Result<Map<String, Value>, ApiError> {
        let wrong = |problem: String| {
            let message =
                format!("the body is not the JSON object it must be: {}", shown(&problem));
            ApiError::new(StatusCode::BAD_REQUEST, "invalid_json", message)
        };
        match w4pack_format::json::parse("the body", &self.0) {
            Ok(Value::Object(object)) => Ok(object),
            Ok(other) => Err(wrong(format!("it is {other}"))),
            Err(FormatError::Json { problem, .. }) => Err(wrong(problem)),
            Err(other) => Err(wrong(other.to_string())),
        }
    }
}
