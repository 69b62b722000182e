//! Text that goes on as it is.

use crate::support::*;
use serde_json::{Value, json};

const PATH: &str = "/v1/completions";
/// What the template makes of a question.
const PROMPT: &str = "<|turn>user\nWhat's 17+25?<turn|>\n<|turn>model\n";

fn completion() -> Value {
    json!({"model": "small", "prompt": PROMPT, "temperature": 0})
}

#[test]
fn a_text_goes_on_whole_and_as_a_stream() {
    let running = Running::start();
    let reply = running.post(PATH, &completion());
    assert_eq!(reply.status, 200, "{}", reply.body);
    let reply = reply.json();
    assert_eq!(reply["object"], "text_completion");
    assert_eq!(
        (&reply["choices"][0]["text"], &reply["choices"][0]["finish_reason"]),
        (&json!("42"), &json!("stop"))
    );
    let asked = json!({"stream": true, "stream_options": {"include_usage": true}});
    let mut chunks = running.post(PATH, &with(completion(), asked)).chunks();
    let last = chunks.pop().expect("chunks");
    assert_eq!(
        (&last["choices"], &last["usage"]["total_tokens"]),
        (&json!([]), &reply["usage"]["total_tokens"])
    );
    let text: String =
        chunks.iter().filter_map(|chunk| chunk["choices"][0]["text"].as_str()).collect();
    assert_eq!(text, "42");
    assert_eq!(chunks.last().expect("chunks")["choices"][0]["finish_reason"], "stop");
}

#[test]
fn several_prompts_of_text_and_ids_are_answered_in_their_order() {
    let running = Running::start();
    let ids = running.post("/tokenize", &json!({"text": PROMPT, "add_bos": true})).json()["tokens"]
        .clone();
    let opposite = "<|turn>user\nWhat is the opposite of hot?<turn|>\n<|turn>model\n";
    let body = with(completion(), json!({"prompt": [PROMPT, opposite], "n": 2, "max_tokens": 20}));
    let reply = running.post(PATH, &body).json();
    let texts: Vec<&str> = reply["choices"]
        .as_array()
        .expect("choices")
        .iter()
        .filter_map(|c| c["text"].as_str())
        .collect();
    assert_eq!(texts.len(), 4);
    assert_eq!((texts[0], texts[1]), ("42", "42"));
    assert_eq!(texts[2], texts[3]);
    assert!(texts[2].to_lowercase().contains("cold"), "{texts:?}");
    let reply = running.post(PATH, &with(completion(), json!({"prompt": ids}))).json();
    assert_eq!(reply["choices"][0]["text"], "42");
}

#[test]
fn the_older_form_of_logprobs_has_columns() {
    let running = Running::start();
    let body = with(completion(), json!({"logprobs": 2}));
    let columns = running.post(PATH, &body).json()["choices"][0]["logprobs"].clone();
    let tokens: Vec<&str> =
        columns["tokens"].as_array().expect("tokens").iter().filter_map(Value::as_str).collect();
    assert_eq!(tokens.concat(), "42");
    for name in ["token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(columns[name].as_array().map(Vec::len), Some(tokens.len()), "{name}");
    }
    assert_eq!(columns["text_offset"][0], 0);
    // The chosen token is the likeliest: clients look its number up in both places.
    for (place, token) in tokens.iter().enumerate() {
        assert_eq!(columns["token_logprobs"][place], columns["top_logprobs"][place][token]);
    }
    assert_eq!(columns["top_logprobs"][0].as_object().map(|top| top.len()), Some(2));
    let chunks = running.post(PATH, &with(body, json!({"stream": true}))).chunks();
    let column = |name: &str| -> Vec<Value> {
        let of = |chunk: &Value| chunk["choices"][0]["logprobs"][name].as_array().cloned();
        chunks.iter().filter_map(of).flatten().collect()
    };
    for name in ["tokens", "token_logprobs", "text_offset"] {
        assert_eq!(Value::from(column(name)), columns[name], "{name}");
    }
}

#[test]
fn stop_strings_keep_the_white_space_before_them() {
    let running = Running::start();
    let prompt = "<|turn>user\nWhat is the opposite of hot?<turn|>\n<|turn>model\n";
    let whole = running.post(PATH, &with(completion(), json!({"prompt": prompt}))).json();
    let text = whole["choices"][0]["text"].as_str().expect("text").to_owned();
    let (before, word) = text.rsplit_once(' ').expect("several words");
    let body = with(completion(), json!({"prompt": prompt, "stop": word}));
    assert_eq!(running.post(PATH, &body).json()["choices"][0]["text"], format!("{before} "));
}

#[test]
fn refusals_are_by_name_and_before_any_200() {
    let running = Running::start();
    for (field, value) in [
        ("echo", json!(true)),
        ("suffix", json!("x")),
        ("best_of", json!(3)),
        ("logprobs", json!(21)),
        ("prompt", json!([])),
        ("prompt", json!([99_999_999])),
        ("messages", json!([])),
    ] {
        for stream in [false, true] {
            let mut body = with(completion(), json!({"stream": stream}));
            body[field] = value.clone();
            let response = running.post(PATH, &body);
            assert_eq!(response.status, 400, "{body}");
            assert!(response.error().1.starts_with(field), "{}", response.body);
        }
    }
    let response = running.post(PATH, &with(completion(), json!({"prompt": "7".repeat(5000)})));
    assert_eq!(response.error(), ("context_length_exceeded".into(), "prompt".into()));
}
