//! The body of a request: JSON, of bounded length, no key twice.

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use serde_json::{Map, Value};
use std::sync::Arc;
use w4pack_format::FormatError;

use super::error::{ApiError, shown};
use super::shared::Shared;

/// The bytes of a JSON body. They are taken apart off the server's threads, see [`JsonBody::parse`].
pub struct JsonBody(Bytes);

impl FromRequest<Arc<Shared>> for JsonBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &Arc<Shared>) -> Result<Self, ApiError> {
        check_kind(request.headers())?;
        let patience = state.options.patience;
        let read = tokio::time::timeout(patience, Bytes::from_request(request, state)).await;
        let read = read.map_err(|_| {
            let message = format!("the body did not come within {} s", patience.as_secs_f64());
            ApiError::new(StatusCode::REQUEST_TIMEOUT, "body_too_slow", message)
        })?;
        read.map(Self).map_err(|rejection| {
            let status = rejection.status();
            if status == StatusCode::PAYLOAD_TOO_LARGE {
                let limit = state.options.body_limit;
                let message = format!("the body is longer than {limit} bytes (--body-limit)");
                return ApiError::new(status, "body_too_large", message);
            }
            let message = format!("the body was not read: {}", rejection.body_text());
            ApiError::new(StatusCode::BAD_REQUEST, "body_incomplete", message)
        })
    }
}

/// Refuses bodies that do not say that they are JSON, or are written otherwise than as they are.
fn check_kind(headers: &HeaderMap) -> Result<(), ApiError> {
    let text = |name: HeaderName| {
        let value = headers.get(name)?;
        Some(String::from_utf8_lossy(value.as_bytes()).into_owned())
    };
    let refusal = |code: &'static str, header: &str, found: Option<&str>, expected: &str| {
        let found = found.map_or_else(|| "is missing".into(), |is| format!("is `{}`", shown(is)));
        let message = format!("the header {header} {found}: expected {expected}");
        ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, code, message)
    };
    let kind = text(header::CONTENT_TYPE);
    // A page of another site may post plain text to this address unasked, but not JSON.
    if !kind.as_deref().is_some_and(is_json) {
        let expected = "`application/json`, in UTF-8";
        return Err(refusal("content_type", "content-type", kind.as_deref(), expected));
    }
    match text(header::CONTENT_ENCODING) {
        Some(coding) if !coding.eq_ignore_ascii_case("identity") => {
            let expected = "none: send the JSON as it is";
            Err(refusal("content_encoding", "content-encoding", Some(&coding), expected))
        }
        _ => Ok(()),
    }
}

/// JSON is UTF-8; a parameter that says otherwise is not passed over.
fn is_json(kind: &str) -> bool {
    let mut parts = kind.split(';').map(str::trim);
    let is_named = parts.next().is_some_and(|name| name.eq_ignore_ascii_case("application/json"));
    let other_charset = |part: &str| {
        let Some((name, value)) = part.split_once('=') else { return false };
        let value = value.trim().trim_matches('"');
        let fits = ["utf-8", "utf8", "us-ascii"].iter().any(|fit| value.eq_ignore_ascii_case(fit));
        name.trim().eq_ignore_ascii_case("charset") && !fits
    };
    is_named && !parts.any(other_charset)
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
