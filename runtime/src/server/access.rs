//! Who may ask: API keys, and pages of other sites.

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::sync::Arc;
use std::time::Duration;
use subtle::ConstantTimeEq;
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

use super::error::ApiError;
use super::shared::Shared;

/// Open to all: they tell nothing of anyone's requests.
const OPEN: [&str; 3] = ["/", "/health", "/openapi.json"];

/// Lets a request through if it has a key, where there are keys.
pub async fn check_key(
    State(shared): State<Arc<Shared>>,
    request: Request,
    next: Next,
) -> Response {
    let keys = &shared.options.api_keys;
    if keys.is_empty() || OPEN.contains(&request.uri().path()) {
        return next.run(request).await;
    }
    let given = request.headers().get(header::AUTHORIZATION);
    let given = given.and_then(|value| bearer(value.as_bytes()));
    let message = match given {
        Some(given) if is_known(given, keys) => return next.run(request).await,
        Some(_) => "the API key is not one of this server's",
        None => "this server wants an API key: `Authorization: Bearer KEY`",
    };
    ApiError::new(StatusCode::UNAUTHORIZED, "invalid_api_key", message).into_response()
}

/// The key in `Bearer KEY`.
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, key) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| key.trim_ascii())
}

/// Compares with every key, each in a time that does not depend on where they differ.
fn is_known(given: &[u8], keys: &[String]) -> bool {
    let equal = keys.iter().map(|key| key.as_bytes().ct_eq(given));
    equal.fold(subtle::Choice::from(0), |any, equal| any | equal).into()
}

/// Counts every request by its route and status.
pub async fn count(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>();
    let route = route.map_or("other", MatchedPath::as_str).to_owned();
    let response = next.run(request).await;
    shared.metrics.request(&route, response.status().as_u16());
    response
}

/// What browsers are told about pages of these origins; `*` is every origin.
///
/// OpenAI's JavaScript client sends headers of its own (`x-stainless-…`), so a preflight is allowed
/// whatever headers it asks for.
pub fn cors(origins: &[HeaderValue]) -> CorsLayer {
    let allowed = match origins {
        origins if origins.iter().any(|origin| origin == "*") => AllowOrigin::any(),
        origins => AllowOrigin::list(origins.iter().cloned()),
    };
    CorsLayer::new()
        .allow_origin(allowed)
        .allow_methods([Method::GET, Method::POST])
        .allow_headers(AllowHeaders::mirror_request())
        .max_age(Duration::from_secs(600))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_compared_whole() {
        let keys = ["one".to_owned(), "two-two".to_owned()];
        for good in ["Bearer one", "bearer two-two", "BEARER  one "] {
            assert!(bearer(good.as_bytes()).is_some_and(|key| is_known(key, &keys)), "{good}");
        }
        for bad in ["Bearer on", "Bearer onee", "Bearer ", "Bearer", "Basic one", "one", ""] {
            assert!(!bearer(bad.as_bytes()).is_some_and(|key| is_known(key, &keys)), "{bad}");
        }
    }
}
