//! What those look at who run a server.

use crate::support::*;
use serde_json::{Value, json};
use w4pack_runtime::server::Server;

#[test]
fn a_server_without_its_model_listens_and_says_so() {
    let setup = Setup::default();
    let server = Server::start(setup.server.clone()).expect("it listens");
    let address = server.address();
    let running = Running { server, address };
    for path in ["/health", "/v1/models"] {
        let response = running.get(path);
        assert_eq!((response.status, response.error().0.as_str()), (503, "not_ready"));
        assert!(response.header("retry-after").is_some());
    }
    assert_eq!(running.chat(&question("x")).status, 503);
    assert_eq!(running.get("/").status, 200, "the page waits by itself");
    assert_eq!(running.metric("w4pack_ready"), 0.0);
    running.server.ready(service(&setup));
    let health = running.get("/health").json();
    assert_eq!((&health["status"], &health["slots"]), (&json!("ok"), &json!(2)));
    assert_eq!(running.chat(&with(question("x"), json!({"max_tokens": 1}))).status, 200);
}

#[test]
fn models_tokens_and_text() {
    let running = Running::start();
    let models = running.get("/v1/models").json();
    let names: Vec<&Value> =
        models["data"].as_array().expect("a list").iter().map(|m| &m["id"]).collect();
    assert_eq!(names, ["small", "owner/small"]);
    assert_eq!(models["data"][0]["context_length"], 2048);

    let text = "The opposite of hot: <|turn> 👩‍👩‍👧";
    let tokens = running.post("/tokenize", &json!({"text": text, "add_bos": true})).json();
    assert_eq!(tokens["tokens"][0], 2);
    let body = json!({"tokens": tokens["tokens"]});
    assert_eq!(running.post("/detokenize", &body).json()["text"], format!("<bos>{text}"));
    for (path, body) in [
        ("/tokenize", json!({})),
        ("/tokenize", json!({"text": "a", "messages": []})),
        ("/tokenize", json!({"text": "a", "colour": 1})),
        ("/detokenize", json!({"tokens": [99_999_999]})),
        ("/detokenize", json!({"tokens": "a"})),
        ("/detokenize", json!({})),
    ] {
        let response = running.post(path, &body);
        assert_eq!(response.status, 400, "{body}");
        response.error();
    }
}

#[test]
fn metrics_are_in_prometheus_form() {
    let running = Running::start();
    running.chat(&question("What's 17+25?"));
    running.get("/nowhere");
    let response = running.get("/metrics");
    assert_eq!(response.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let mut typed = std::collections::BTreeSet::new();
    for line in response.body.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("name and kind");
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            assert!(typed.insert(name.to_owned()), "{name} is described once");
        } else if !line.starts_with("# HELP ") {
            let (series, value) = line.rsplit_once(' ').expect("a series and a value");
            assert!(value.parse::<f64>().is_ok(), "{line}");
            let name = series.split('{').next().expect("a name");
            let family =
                ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
            assert!(
                typed.contains(name) || family.is_some_and(|name| typed.contains(name)),
                "{line}"
            );
        }
    }
    let chats = "w4pack_requests_total{path=\"/v1/chat/completions\",status=\"200\"} 1\n";
    assert!(response.body.contains(chats), "{}", response.body);
    assert!(response.body.contains("{path=\"other\",status=\"404\"} 1\n"), "{}", response.body);
    assert!(running.metric("w4pack_weights_bytes") > 1e6);
    assert_eq!(running.metric("w4pack_time_to_first_token_seconds_count"), 1.0);
}

#[test]
fn the_page_needs_nothing_from_elsewhere() {
    let running = Running::start();
    let response = running.get("/");
    assert_eq!(response.header("content-type"), Some("text/html; charset=utf-8"));
    let policy = response.header("content-security-policy").expect("a policy");
    assert!(policy.contains("default-src 'none'") && policy.contains("connect-src 'self'"));
    for address in ["http://", "https://", "//cdn", "src="] {
        assert!(!response.body.contains(address), "{address}");
    }
    // What comes from models and servers goes in as text, never as markup.
    for way in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("] {
        assert!(!response.body.contains(way), "{way}");
    }
}

#[test]
fn the_description_is_openapi_and_names_every_path() {
    let running = Running::start();
    let description = running.get("/openapi.json").json();
    assert!(description["openapi"].as_str().is_some_and(|version| version.starts_with("3.1")));
    let paths: Vec<&String> = description["paths"].as_object().expect("paths").keys().collect();
    for path in [
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/models",
        "/v1/models/{model}",
        "/health",
        "/metrics",
        "/tokenize",
        "/detokenize",
    ] {
        assert!(paths.iter().any(|known| *known == path), "{path}");
    }
    // Every reference leads somewhere.
    let text = description.to_string();
    for reference in text.split("\"#/components/schemas/").skip(1) {
        let name = reference.split('"').next().expect("a name");
        assert!(description["components"]["schemas"].get(name).is_some(), "{name}");
    }
    let chat = &description["components"]["schemas"]["ChatRequest"];
    assert_eq!(chat["additionalProperties"], false);
    assert_eq!(chat["required"], json!(["messages"]));
}
