//! Who may ask: API keys, and pages of other sites.

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use subtle::ConstantTimeEq;
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

use super::ServerOptions;
use super::error::{ApiError, shown};
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

/// Lets a request through unless it may come from a page of another site that has had its own name
/// resolved to this machine (DNS rebinding): such a page is of the same origin, and no rule of the
/// browser's keeps it from asking. What gives it away is the name in `Host`.
///
/// Only a server on loopback without keys depends on who can reach it; others let every name through.
pub async fn check_host(
    State(shared): State<Arc<Shared>>,
    request: Request,
    next: Next,
) -> Response {
    let host = request.headers().get(header::HOST).map(|host| host.as_bytes());
    let Some(host) = host else { return next.run(request).await };
    let host = String::from_utf8_lossy(host).into_owned();
    if is_own(&host, &shared.options) {
        return next.run(request).await;
    }
    let message = format!(
        "this server is asked by addresses or as localhost, not as `{}`; to serve it under that name, \
         start it with --api-key, or with --cors and the page's origin",
        shown(&host)
    );
    ApiError::new(StatusCode::FORBIDDEN, "host_not_allowed", message).into_response()
}

/// Whether `Host` is an address, a name of this machine alone, or one the server was started with.
fn is_own(host: &str, options: &ServerOptions) -> bool {
    let name = host.rsplit_once(':').filter(|(_, port)| port.bytes().all(|b| b.is_ascii_digit()));
    let name = name.map_or(host, |(name, _)| name).trim_end_matches('.').to_ascii_lowercase();
    let is_address = name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
    let of_origin = |origin: &HeaderValue| {
        let origin = origin.to_str().unwrap_or_default();
        origin == "*" || origin.split_once("://").is_some_and(|(_, named)| named == host)
    };
    is_address
        || name == "localhost"
        || name.ends_with(".localhost")
        || name == options.host.to_ascii_lowercase()
        || options.cors.iter().any(of_origin)
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
        // How long a page that was refused shall wait.
        .expose_headers([header::RETRY_AFTER])
        .max_age(Duration::from_secs(600))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_others_are_told_from_addresses_and_localhost() {
        let options = ServerOptions {
            host: "Workshop".to_owned(),
            cors: vec![HeaderValue::from_static("https://chat.example:3000")],
            ..ServerOptions::default()
        };
        for own in [
            "127.0.0.1:8080",
            "[::1]:8080",
            "192.168.1.7",
            "localhost",
            "LocalHost.:1",
            "a.localhost:8080",
            "workshop:8080",
            "chat.example:3000",
        ] {
            assert!(is_own(own, &options), "{own}");
        }
        for other in [
            "evil.example",
            "evil.example:8080",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "",
            "chat.example",
        ] {
            assert!(!is_own(other, &options), "{other}");
        }
    }

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
