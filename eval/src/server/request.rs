//! The body of a request.

use crate::answerer::Asked;
use serde_json::{Value, json};
use w4pack_runtime::Sampling;

/// OpenAI's fields, and beyond them only what a setting asks for: a plain greedy request is one
/// that every server takes.
pub fn body(model: &str, asked: &Asked<'_>) -> Value {
    let sampling = &asked.sampling;
    let mut body = json!({
        "model": model,
        "messages": asked.messages,
        "max_tokens": asked.max_tokens,
        "temperature": sampling.temperature,
        "stream": false,
    });
    if !asked.tools.is_empty() {
        body["tools"] = asked.tools.into();
    }
    if sampling.top_p != Sampling::GREEDY.top_p {
        body["top_p"] = sampling.top_p.into();
    }
    if sampling.top_k != Sampling::GREEDY.top_k {
        body["top_k"] = sampling.top_k.into();
    }
    if sampling.min_p != Sampling::GREEDY.min_p {
        body["min_p"] = sampling.min_p.into();
    }
    if let Some(seed) = sampling.seed {
        body["seed"] = seed.into();
    }
    if let Some(thinking) = asked.thinking {
        body["chat_template_kwargs"] = json!({"enable_thinking": thinking});
    }
    body
}
