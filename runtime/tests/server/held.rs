//! Answers held to a form: the small model was trained for none of this, so what fits was enforced.

use crate::support::*;
use serde_json::{Value, json};

fn tool(strict: bool) -> Value {
    json!({"type": "function", "function": {
        "name": "set.volume-level",
        "strict": strict,
        "parameters": {
            "type": "object",
            "properties": {"level": {"type": "string", "enum": ["loud", "quiet"]}},
            "required": ["level"],
            "additionalProperties": false,
        },
    }})
}

/// The calls of the whole reply, which are those of the stream.
fn calls(running: &Running, body: &Value) -> Vec<(String, Value)> {
    let reply = running.chat(body);
    assert_eq!(reply.status, 200, "{}", reply.body);
    let choice = reply.json()["choices"][0].clone();
    assert_eq!(choice["finish_reason"], "tool_calls", "{choice}");
    let chunks = running.chat(&with(body.clone(), json!({"stream": true}))).chunks();
    let (streamed, _) = joined(&chunks).swap_remove(0);
    let of = |message: &Value| -> Vec<(String, Value)> {
        let calls = message["tool_calls"].as_array().cloned().unwrap_or_default();
        let parsed = calls.iter().map(|call| {
            let arguments = call["function"]["arguments"].as_str().expect("text");
            let arguments = serde_json::from_str(arguments).expect("arguments are JSON");
            (call["function"]["name"].as_str().expect("a name").to_owned(), arguments)
        });
        parsed.collect()
    };
    assert_eq!(of(&streamed), of(&choice["message"]));
    of(&choice["message"])
}

#[test]
fn field_case_22_a_call_that_is_demanded_comes_and_fits() {
    let running = Running::start();
    let tools = json!({"tools": [weather(), tool(false)], "parallel_tool_calls": false});
    let body = with(question("What's 17+25?"), tools);
    let named = json!({"type": "function", "function": {"name": "set.volume-level"}});
    for choice in [json!("required"), named.clone()] {
        let found = calls(&running, &with(body.clone(), json!({"tool_choice": choice})));
        assert_eq!(found.len(), 1);
        let (name, arguments) = &found[0];
        match name.as_str() {
            "set.volume-level" => {
                let levels = [json!({"level": "loud"}), json!({"level": "quiet"})];
                assert!(levels.contains(arguments), "{arguments}");
            }
            "get_weather" if choice == "required" => {
                assert!(arguments["city"].is_string(), "{arguments}");
            }
            _ => panic!("{name} was not asked for"),
        }
    }
    // The same through the newer API.
    let mut flat = tool(false)["function"].clone();
    flat["type"] = "function".into();
    let body = json!({"input": "What's 17+25?", "temperature": 0, "tools": [flat],
        "tool_choice": {"type": "function", "name": "set.volume-level"}, "parallel_tool_calls": false});
    let reply = running.post("/v1/responses", &body).json();
    assert_eq!(reply["output"][0]["type"], "function_call", "{reply}");
}

#[test]
fn json_fits_its_schema_whole_and_as_a_stream() {
    let running = Running::start();
    let schema = json!({"type": "object", "properties": {"answer": {"enum": ["yes", "no"]}},
        "required": ["answer"], "additionalProperties": false});
    let format = json!({"type": "json_schema", "json_schema": {"name": "a", "schema": schema}});
    let body =
        with(question("What's 17+25?"), json!({"response_format": format, "max_tokens": 100}));
    let content = running.chat(&body).json()["choices"][0]["message"]["content"].clone();
    let parsed: Value = serde_json::from_str(content.as_str().expect("text")).expect("JSON");
    assert!([json!({"answer": "yes"}), json!({"answer": "no"})].contains(&parsed), "{parsed}");
    let chunks = running.chat(&with(body, json!({"stream": true}))).chunks();
    assert_eq!(joined(&chunks)[0].0["content"], content);
}

#[test]
fn schemas_that_cannot_be_enforced_are_refused_with_the_keywords() {
    let running = Running::start();
    let schema =
        json!({"type": "object", "properties": {"a": {"type": "array", "uniqueItems": true}}});
    let format = json!({"type": "json_schema", "json_schema": {"name": "a", "schema": schema}});
    let response = running.chat(&with(question("x"), json!({"response_format": format})));
    assert_eq!((response.status, response.error().1.as_str()), (400, "response_format"));
    assert!(response.body.contains("/properties/a/uniqueItems"), "{}", response.body);
    let mut strict = tool(true);
    strict["function"]["parameters"]["properties"]["level"] = schema["properties"]["a"].clone();
    let response = running.chat(&with(question("x"), json!({"tools": [strict]})));
    assert_eq!((response.status, response.error().1.as_str()), (400, "tools"));
    assert!(response.body.contains("uniqueItems"), "{}", response.body);
    // Beside tools that may be called, the one is told from the other.
    let both = json!({"tools": [weather()], "response_format": format});
    assert_eq!(running.chat(&with(question("x"), both)).error().1, "response_format");
    let both = json!({"tools": [strict], "response_format": {"type": "json_object"}});
    assert_eq!(running.chat(&with(question("x"), both)).error().1, "tools");
}

/// Tools that may be called, and JSON if none is: OpenAI allows both in one request.
#[test]
fn a_form_beside_tools_holds_where_none_is_called() {
    let running = Running::start();
    let schema = json!({"type": "object", "properties": {"answer": {"enum": ["yes", "no"]}},
        "required": ["answer"], "additionalProperties": false});
    let format = json!({"type": "json_schema", "json_schema": {"name": "a", "schema": schema}});
    let both = |question: &Value, bias: Value| {
        let more = json!({"tools": [weather()], "response_format": format, "max_tokens": 100,
            "parallel_tool_calls": false, "logit_bias": bias});
        with(question.clone(), more)
    };
    // The model calls when it is asked for the weather, which it was trained to do.
    let weather = question("What is the weather in Paris right now?");
    let found = calls(&running, &both(&weather, json!({})));
    assert_eq!(found[0].0, "get_weather");
    // With calls made unlikely it answers, in the form.
    let call = json!({"text": "<|tool_call>"});
    let call = running.post("/tokenize", &call).json()["tokens"][0].to_string();
    let reply = running.chat(&both(&weather, json!({call.as_str(): -100}))).json();
    let content = reply["choices"][0]["message"]["content"].as_str().expect("text");
    let parsed: Value = serde_json::from_str(content).expect("JSON");
    assert!([json!({"answer": "yes"}), json!({"answer": "no"})].contains(&parsed), "{parsed}");
    // The newer API is held in the same way.
    let mut flat = tool(false)["function"].clone();
    flat["type"] = "function".into();
    let body = json!({"input": "What's 17+25?", "temperature": 0, "tools": [flat],
        "text": {"format": {"type": "json_object"}}, "max_output_tokens": 40});
    let reply = running.post("/v1/responses", &body);
    assert_eq!(reply.status, 200, "{}", reply.body);
    let output = reply.json()["output"][0].clone();
    let begins = output["content"][0]["text"].as_str().is_some_and(|text| text.starts_with('{'));
    assert!(begins || output["type"] == "function_call", "{output}");
}

/// Several answers to one request share its grammar and nothing of their way through it.
#[test]
fn several_held_answers_are_those_of_their_seeds() {
    let running = Running::start();
    let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": {
        "type": "object", "required": ["a"], "additionalProperties": false,
        "properties": {"a": {"type": "array", "maxItems": 3, "items": {"enum": ["x", "yy", 1, 2]}}},
    }}});
    let drawn = json!({"temperature": 1.5, "top_k": 0, "top_p": 1, "max_tokens": 60});
    let held = with(with(question("x"), drawn.clone()), json!({"response_format": format}));
    let call = json!({"tools": [tool(true), weather()], "tool_choice": "required"});
    let called = with(with(question("x"), drawn.clone()), call);
    let strict =
        json!({"tools": [tool(true)], "tool_choice": "auto", "parallel_tool_calls": false});
    let free = with(with(question("x"), drawn), strict);
    for body in [held, called, free] {
        let several = running.chat(&with(body.clone(), json!({"n": 4, "seed": 11}))).json();
        // A call is named anew each time; what it says is compared.
        let said = |choice: &Value| {
            let calls = choice["message"]["tool_calls"].as_array().cloned().unwrap_or_default();
            let calls: Vec<Value> = calls.iter().map(|call| call["function"].clone()).collect();
            (choice["message"]["content"].clone(), calls)
        };
        for number in 0..4 {
            let alone = running.chat(&with(body.clone(), json!({"seed": 11 + number}))).json();
            let (one, other) = (&several["choices"][number], &alone["choices"][0]);
            assert_eq!(said(one), said(other), "answer {number} of {body}");
        }
    }
}
