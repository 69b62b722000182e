//! A thousand bodies that nobody should send: no panic, no 5xx, and the server lives.

use crate::support::*;
use serde_json::{Value, json};
use std::time::Duration;

/// The next of a row of numbers without pattern.
fn random(state: &mut u64) -> usize {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) as usize
}

/// Values that fields do not expect.
fn strange(state: &mut u64) -> Value {
    let values = [
        Value::Null,
        json!(true),
        json!(-1),
        json!(0),
        json!(1e308),
        json!(i64::MIN),
        json!(u64::MAX),
        json!(0.5),
        json!(""),
        json!("\u{0}\u{FDD0}<|turn>"),
        json!("auto"),
        json!([]),
        json!([[]]),
        json!([null]),
        json!({}),
        json!({"type": "function"}),
        json!({"": {"": []}}),
        json!(["x", 3]),
        json!("👩‍👩‍👧".repeat(200)),
        json!({"role": "user"}),
        json!([{"role": "tool", "content": [{"type": "text"}]}]),
    ];
    values[random(state) % values.len()].clone()
}

const BODIES: [(&str, &str); 5] = [
    (
        "/v1/chat/completions",
        r#"{"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "x"}]},
        {"role": "assistant", "content": null, "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "c", "content": "r"}], "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object",
        "properties": {"x": {"type": "string", "enum": ["a"]}}, "required": ["x"]}}}], "max_tokens": 1, "stop": ["x"], "logit_bias": {"5": 1},
        "stream": false, "n": 1, "chat_template_kwargs": {"enable_thinking": true}, "temperature": 1, "seed": 1}"#,
    ),
    (
        "/v1/chat/completions",
        r#"{"messages": [{"role": "user", "content": "x"}], "max_tokens": 1, "response_format": {"type": "json_schema",
        "json_schema": {"name": "n", "schema": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": false}}}}"#,
    ),
    (
        "/v1/completions",
        r#"{"prompt": ["x", "y"], "max_tokens": 1, "logprobs": 2, "stop": "x", "stream": true, "stream_options": {"include_usage": true}}"#,
    ),
    (
        "/v1/responses",
        r#"{"input": [{"role": "user", "content": "x"}, {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "x"}], "max_output_tokens": 1, "text": {"format": {"type": "text"}}, "reasoning": {"effort": "low"}}"#,
    ),
    ("/tokenize", r#"{"messages": [{"role": "user", "content": "x"}], "tools": []}"#),
];

/// Replaces, removes or doubles something somewhere.
fn mutate(value: &mut Value, state: &mut u64) {
    let into = !random(state).is_multiple_of(4);
    match value {
        Value::Object(fields) if into && !fields.is_empty() => {
            let name =
                fields.keys().nth(random(state) % fields.len()).expect("it is there").clone();
            match random(state) % 8 {
                0 => drop(fields.shift_remove(&name)),
                1 => drop(fields.insert(format!("{name}s"), strange(state))),
                _ => mutate(&mut fields[&name], state),
            }
        }
        Value::Array(items) if into && !items.is_empty() => {
            let at = random(state) % items.len();
            match random(state) % 8 {
                0 => drop(items.remove(at)),
                1 => items.push(items[at].clone()),
                _ => mutate(&mut items[at], state),
            }
        }
        other => *other = strange(state),
    }
}

#[test]
fn a_thousand_hostile_bodies() {
    let running = Running::start();
    let mut state = 1;
    let mut statuses = std::collections::BTreeMap::new();
    for number in 0..1000 {
        let (path, body) = BODIES[number % BODIES.len()];
        let mut body: Value = serde_json::from_str(body).expect("a sound body");
        for _ in 0..=random(&mut state) % 2 {
            mutate(&mut body, &mut state);
        }
        let mut text = body.to_string().into_bytes();
        // Some are broken as text too.
        if random(&mut state).is_multiple_of(5) {
            let at = random(&mut state) % text.len();
            match random(&mut state) % 3 {
                0 => text.truncate(at),
                1 => text[at] = random(&mut state) as u8,
                _ => drop(text.remove(at)),
            }
        }
        let headers = [("content-type", "application/json")];
        let response = http::raw(running.address, &http::request("POST", path, &headers, &text));
        let shown = String::from_utf8_lossy(&text);
        assert!(response.status < 500, "{number}: {path} {shown}: {}", response.body);
        if response.status != 200 {
            response.error();
        }
        *statuses.entry(response.status).or_insert(0) += 1;
    }
    // Both kinds came about, and the server lives.
    assert!(statuses[&200] > 50 && statuses[&400] > 300, "{statuses:?}");
    assert_eq!(running.chat(&question("What's 17+25?")).status, 200);
}

/// Schemas that a grammar engine chokes on: each is refused or answered, soon, and the server lives.
#[test]
fn schemas_that_blow_up() {
    let running = Running::with(&Setup { context: 8192, ..Setup::default() });
    let texts: Vec<String> = (0..20_000).map(|number| format!("value {number}")).collect();
    let many = |count: usize| -> Value {
        let property = |number: usize| (format!("p{number}"), json!({"type": "string"}));
        let properties: serde_json::Map<String, Value> = (0..count).map(property).collect();
        json!({"type": "object", "properties": properties})
    };
    let mut deep = json!({"type": "integer"});
    for _ in 0..40 {
        deep = json!({"type": "object", "properties": {"a": deep}, "required": ["a"]});
    }
    // Of calls the prompt holds the schema too, and a context of 8,192 tokens not all of them.
    let schemas = [
        (json!({"enum": texts}), 200, 200),
        (json!({"type": "string", "pattern": "^(a{1000}){1000}$"}), 400, 400),
        (json!({"type": "string", "maxLength": 1_000_000_000u64}), 200, 200),
        (many(60), 200, 200),
        (many(1_000), 400, 200),
        // Deeper than the template follows.
        (deep, 400, 200),
        (json!({"$ref": "#"}), 400, 400),
    ];
    for (schema, of_call, of_text) in schemas {
        let parameters = json!({"type": "object", "properties": {"x": schema}, "required": ["x"]});
        let tool = json!({"type": "function", "function": {"name": "f", "parameters": parameters}});
        let form = json!({"type": "json_schema", "json_schema": {"name": "n", "schema": schema}});
        let requests = [
            (json!({"tools": [tool], "tool_choice": "required"}), of_call),
            (json!({"response_format": form}), of_text),
        ];
        for (more, expected) in requests {
            let body = with(question("x"), with(more, json!({"max_tokens": 30})));
            let shown: String = schema.to_string().chars().take(80).collect();
            let response = in_time(&shown, Duration::from_secs(20), || running.chat(&body));
            assert_eq!(response.status, expected, "{shown}: {}", response.body);
            assert!(!response.body.contains("start:"), "{}", response.body);
        }
    }
    assert_eq!(running.chat(&question("What's 17+25?")).status, 200);
}
