//! Keys, and pages of other origins.

use crate::support::*;
use w4pack_runtime::server::HeaderValue;

#[test]
fn a_server_with_keys_wants_one() {
    let mut setup = Setup::default();
    setup.server.api_keys = vec!["first-key".into(), "second-key".into()];
    let running = Running::with(&setup);
    let send = |path: &str, key: Option<&str>| {
        let headers: Vec<(&str, &str)> =
            key.map(|key| ("authorization", key)).into_iter().collect();
        http::raw(running.address, &http::request("GET", path, &headers, b""))
    };
    for path in ["/v1/models", "/metrics", "/v1/chat/completions", "/nowhere"] {
        for key in [None, Some("Bearer wrong-key"), Some("Bearer first-key2"), Some("first-key")] {
            let response = send(path, key);
            assert_eq!(response.status, 401, "{path} {key:?}");
            assert_eq!(response.error().0, "invalid_api_key");
            assert_eq!(response.header("www-authenticate"), Some("Bearer"));
        }
    }
    assert_eq!(send("/v1/models", Some("Bearer first-key")).status, 200);
    assert_eq!(send("/metrics", Some("bearer second-key")).status, 200);
    for open in ["/", "/health", "/openapi.json"] {
        assert_eq!(send(open, None).status, 200, "{open}");
    }
}

fn preflight(running: &Running, origin: &str) -> http::Response {
    let headers = [
        ("origin", origin),
        ("access-control-request-method", "POST"),
        (
            "access-control-request-headers",
            "authorization,content-type,x-stainless-lang,x-stainless-os",
        ),
    ];
    http::raw(running.address, &http::request("OPTIONS", "/v1/chat/completions", &headers, b""))
}

#[test]
fn pages_of_other_origins_ask_only_where_they_may() {
    let closed = Running::start();
    let response = preflight(&closed, "http://a.example");
    assert_eq!(response.header("access-control-allow-origin"), None);

    let mut setup = Setup::default();
    setup.server.api_keys = vec!["key".into()];
    setup.server.cors = vec![HeaderValue::from_static("http://a.example")];
    let open = Running::with(&setup);
    // A preflight has no key, and its headers are allowed whatever they are called.
    let response = preflight(&open, "http://a.example");
    assert_eq!(response.status, 200);
    assert_eq!(response.header("access-control-allow-origin"), Some("http://a.example"));
    let allowed = response.header("access-control-allow-headers").unwrap_or_default();
    assert!(allowed.contains("x-stainless-lang") && allowed.contains("authorization"), "{allowed}");
    assert_ne!(
        preflight(&open, "http://b.example").header("access-control-allow-origin"),
        Some("http://b.example")
    );
    // A refusal can be read by the page that gets it.
    let origin = [("origin", "http://a.example")];
    let response = http::raw(open.address, &http::request("GET", "/v1/models", &origin, b""));
    assert_eq!(response.status, 401);
    assert_eq!(response.header("access-control-allow-origin"), Some("http://a.example"));
    assert_eq!(response.header("access-control-expose-headers"), Some("retry-after"));
}

/// A page whose own name was resolved to this machine is of the server's origin for its browser.
#[test]
fn a_foreign_name_is_refused_on_loopback_without_keys() {
    let ask = |running: &Running, host: &str| {
        let bytes = format!("GET /v1/models HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        http::raw(running.address, bytes.as_bytes())
    };
    let running = Running::start();
    let response = ask(&running, "rebound.example:8080");
    assert_eq!((response.status, response.error().0.as_str()), (403, "host_not_allowed"));
    assert_eq!(ask(&running, &running.address.to_string()).status, 200);

    let mut setup = Setup::default();
    setup.server.cors = vec![HeaderValue::from_static("https://known.example")];
    let open = Running::with(&setup);
    assert_eq!(ask(&open, "known.example").status, 200);
    assert_eq!(ask(&open, "rebound.example").status, 403);

    let mut setup = Setup::default();
    setup.server.api_keys = vec!["key".into()];
    let keyed = Running::with(&setup);
    assert_eq!(ask(&keyed, "rebound.example").status, 401, "a key says who asks");
}
