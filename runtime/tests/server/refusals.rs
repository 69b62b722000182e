//! Requests that are refused: with 400, by the field's name, before anything is generated.

use crate::support::*;
use serde_json::{Value, json};
use std::time::Duration;

fn refused(running: &Running, body: &Value) -> (String, String) {
    let response = running.chat(body);
    assert_eq!(response.status, 400, "{body}: {}", response.body);
    let streamed = running.chat(&with(body.clone(), json!({"stream": true})));
    assert_eq!(streamed.status, 400, "before any 200: {body}");
    assert_eq!(streamed.error(), response.error());
    response.error()
}

#[test]
fn values_out_of_their_range_are_named() {
    let running = Running::start();
    for (field, values) in [
        ("temperature", vec![json!(-0.1), json!(2.1), json!("1"), json!([]), json!(true)]),
        ("top_p", vec![json!(-0.5), json!(1.01)]),
        ("top_k", vec![json!(-2), json!(1.5)]),
        ("min_p", vec![json!(2), json!(-1)]),
        ("seed", vec![json!(1.5), json!("7")]),
        ("presence_penalty", vec![json!(-2.1), json!(3)]),
        ("frequency_penalty", vec![json!(2.5)]),
        ("repetition_penalty", vec![json!(0), json!(-1)]),
        ("max_tokens", vec![json!(0), json!(-1), json!(2.5), json!("5")]),
        ("max_completion_tokens", vec![json!(0), json!(-1)]),
        ("n", vec![json!(0), json!(17), json!(-1)]),
        ("stop", vec![json!(3), json!({"a": 1}), json!(vec!["x"; 17])]),
        (
            "logit_bias",
            vec![json!([]), json!({"x": 1}), json!({"99999999": 1}), json!({"5": 1, "05": 1})],
        ),
        ("stream", vec![json!("yes"), json!(1)]),
        ("logprobs", vec![json!(3)]),
        ("top_logprobs", vec![json!(3), json!(21)]),
        ("tools", vec![json!({}), json!([{"type": "web_search"}])]),
        ("tool_choice", vec![json!("always"), json!(3), json!("required")]),
        ("parallel_tool_calls", vec![json!("no")]),
        ("response_format", vec![json!("json")]),
        ("reasoning_effort", vec![json!("hard"), json!(3)]),
        ("chat_template_kwargs", vec![json!([])]),
        ("messages", vec![json!([]), json!("hello"), json!({})]),
        ("model", vec![json!(3)]),
    ] {
        for value in values {
            let mut body = question("x");
            body[field] = value;
            // `stream` itself cannot be asked for both ways.
            let (_, param) = match field {
                "stream" => running.chat(&body).error(),
                _ => refused(&running, &body),
            };
            assert!(param.starts_with(field), "{field}: {param}");
        }
    }
    assert_eq!(running.metric("w4pack_answers_total"), 0.0);
}

#[test]
fn null_means_absent() {
    let running = Running::start();
    let mut body = question("What's 17+25?");
    for field in [
        "top_p",
        "stop",
        "n",
        "tools",
        "tool_choice",
        "seed",
        "logit_bias",
        "response_format",
        "stream_options",
        "max_tokens",
        "user",
        "store",
        "audio",
        "modalities",
        "functions",
        "logprobs",
    ] {
        body[field] = Value::Null;
    }
    let reply = running.chat(&body);
    assert_eq!(reply.status, 200, "{}", reply.body);
    assert_eq!(reply.json()["choices"][0]["message"]["content"], "42");
}

#[test]
fn what_is_unknown_or_not_done_is_refused_by_name() {
    let running = Running::start();
    for (field, value, code) in [
        ("temprature", json!(1), "unknown_parameter"),
        ("ignore_eos", json!(true), "unknown_parameter"),
        ("modalities", json!(["text", "audio"]), "unsupported_value"),
        ("audio", json!({"voice": "x"}), "unsupported_value"),
        ("verbosity", json!("low"), "unsupported_value"),
        ("functions", json!([]), "unsupported_value"),
        ("function_call", json!("auto"), "unsupported_value"),
        ("web_search_options", json!({}), "unsupported_value"),
    ] {
        let mut body = question("x");
        body[field] = value;
        assert_eq!(refused(&running, &body), (code.to_owned(), field.to_owned()));
    }
    // What changes nothing is accepted, whatever it is.
    let idle = json!({"user": "u", "metadata": {"a": "b"}, "store": true, "service_tier": "flex",
        "prompt_cache_key": "k", "safety_identifier": "s", "prediction": {"type": "content", "content": "x"},
        "modalities": ["text"], "verbosity": "medium", "max_tokens": 1});
    assert_eq!(running.chat(&with(question("x"), idle)).status, 200);
}

#[test]
fn field_case_22_a_choice_of_tools_is_checked() {
    let running = Running::start();
    let tools = json!({"tools": [weather()]});
    let choose =
        |choice: Value| with(with(question("x"), tools.clone()), json!({"tool_choice": choice}));
    let named = |name: &str| json!({"type": "function", "function": {"name": name}});
    let (_, param) = refused(&running, &choose(named("get_time")));
    assert_eq!(param, "tool_choice");
    for faulty in
        [json!({"type": "custom"}), json!({"type": "function"}), json!({"type": "allowed_tools"})]
    {
        let (_, param) = refused(&running, &choose(faulty));
        assert!(param.starts_with("tool_choice"), "{param}");
    }
    // None: the model does not hear of the tool at all.
    let body = |choice: Value| with(choose(choice), json!({"max_tokens": 1}));
    let prompt = |body: Value| running.chat(&body).json()["usage"]["prompt_tokens"].clone();
    let without = prompt(with(question("x"), json!({"max_tokens": 1})));
    assert_eq!(prompt(body(json!("none"))), without);
    assert_ne!(prompt(body(json!("auto"))), without);
}

#[test]
fn field_case_25_what_the_context_does_not_hold_is_refused_with_both_numbers() {
    let context = 256;
    let running = Running::with(&Setup { context, ..Setup::default() });
    let count = |text: &str| {
        let body = json!({"messages": question(text)["messages"]});
        running.post("/tokenize", &body).json()["count"].as_u64().expect("a count") as usize
    };
    // One token a digit: a prompt of any length.
    let (empty, one) = (count("7"), count("77"));
    assert_eq!(one - empty, 1);
    let prompt = |tokens: usize| "7".repeat(tokens - empty + 1);
    for tokens in [context, context + 1, context * 3] {
        assert_eq!(count(&prompt(tokens)), tokens);
        for stream in [false, true] {
            let body = with(question(&prompt(tokens)), json!({"stream": stream}));
            let response = running.chat(&body);
            assert_eq!(response.status, 400, "{}", response.body);
            assert_eq!(response.error(), ("context_length_exceeded".into(), "messages".into()));
            let error = response.json()["error"].clone();
            assert_eq!(error["type"], "invalid_request_error");
            let message = error["message"].as_str().expect("text");
            assert!(message.contains(&tokens.to_string()), "{message}");
            assert!(message.contains(&context.to_string()), "{message}");
        }
        assert_eq!(running.chat(&question("What's 17+25?")).status, 200, "the next one works");
    }
    // One position is left: one token, and the answer is cut there whatever was asked for.
    let body = with(question(&prompt(context - 1)), json!({"max_tokens": 100}));
    let reply = running.chat(&body).json();
    assert_eq!(reply["usage"]["completion_tokens"], 1);
}

/// What is far too long is refused as soon as that is seen, and others are answered meanwhile.
#[test]
fn a_text_far_beyond_the_context_costs_no_more_than_one_a_little_beyond() {
    let running = Running::start();
    let words = "seventeen doors and ".repeat(700_000);
    for (path, body, field) in [
        ("/v1/chat/completions", question(&words), "messages"),
        ("/v1/completions", json!({"prompt": words}), "prompt"),
        ("/v1/responses", json!({"input": words}), "input"),
    ] {
        let response = in_time(path, Duration::from_secs(5), || running.post(path, &body));
        assert_eq!(response.error(), ("context_length_exceeded".into(), field.into()));
        let message = response.json()["error"]["message"].to_string();
        assert!(message.contains("more than 65536") && message.contains("2048"), "{message}");
    }
    // One character a million times over: nowhere can it be cut.
    let row = json!({"prompt": "l".repeat(3 << 20)});
    let response = running.post("/v1/completions", &row);
    assert_eq!(
        response.error(),
        ("unsupported_value".into(), "prompt".into()),
        "{}",
        response.body
    );
    assert_eq!(running.chat(&question("What's 17+25?")).status, 200, "the next one works");
}

#[test]
fn models_are_known_by_name() {
    let running = Running::start();
    let response = running.chat(&with(question("x"), json!({"model": "gpt-5"})));
    assert_eq!(response.status, 404);
    assert_eq!(response.error(), ("model_not_found".into(), "model".into()));
    let second = with(question("x"), json!({"model": "owner/small", "max_tokens": 1}));
    assert_eq!(running.chat(&second).json()["model"], "owner/small");
    let mut without = with(question("x"), json!({"max_tokens": 1}));
    without.as_object_mut().expect("an object").remove("model");
    assert_eq!(running.chat(&without).json()["model"], "small");
}

/// What is wrong in a schema is named by its place, in the field that it stands in.
#[test]
fn a_schema_is_refused_by_the_place_of_what_is_wrong() {
    let running = Running::start();
    let wrong =
        json!({"type": "object", "properties": {"a": {"type": "number", "multipleOf": -2}}});
    let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": wrong}});
    let body = with(question("x"), json!({"response_format": format}));
    assert_eq!(refused(&running, &body), ("invalid_value".into(), "response_format".into()));
    let said = running.chat(&body).body;
    assert!(said.contains("`/properties/a/multipleOf` is -2: expected a number above 0"), "{said}");

    let tool = |name: &str, parameters: &Value, strict: bool| {
        let function = json!({"name": name, "parameters": parameters, "strict": strict});
        json!({"type": "function", "function": function})
    };
    for (strict, choice) in [(true, "auto"), (false, "required")] {
        let tools = json!([tool("sound", &json!({}), strict), tool("wrong", &wrong, strict)]);
        let body = with(question("x"), json!({"tools": tools, "tool_choice": choice}));
        let place = "tools[1].function.parameters";
        assert_eq!(refused(&running, &body), ("invalid_value".into(), place.into()));
        let said = running.chat(&body).body;
        assert!(said.contains("`/properties/a/multipleOf` is -2"), "{said}");
    }
    // Where nothing is held to it a schema is only shown to the model.
    let shown = with(question("x"), json!({"tools": [tool("f", &wrong, false)], "max_tokens": 1}));
    assert_eq!(running.chat(&shown).status, 200);
}

/// The template writes schemas by calling itself, and has an end.
#[test]
fn a_schema_too_deep_for_the_template_is_the_fault_of_its_tool() {
    let running = Running::start();
    let mut deep = json!({"type": "string"});
    for _ in 0..40 {
        deep = json!({"type": "object", "properties": {"a": deep}});
    }
    let function = |name: &str, parameters: &Value| json!({"name": name, "parameters": parameters});
    let chat = |parameters: &Value| {
        let tools: Vec<Value> = [("f", &json!({})), ("g", parameters)]
            .iter()
            .map(|(name, parameters)| json!({"type": "function", "function": function(name, parameters)}))
            .collect();
        with(question("x"), json!({"tools": tools}))
    };
    let (code, param) = refused(&running, &chat(&deep));
    assert_eq!((&*code, &*param), ("unsupported_value", "tools[1].function.parameters"));
    let flat = |name: &str, parameters: &Value| {
        let mut tool = function(name, parameters);
        tool["type"] = "function".into();
        tool
    };
    let tools = [flat("f", &json!({})), flat("g", &deep)];
    let response = running.post("/v1/responses", &json!({"input": "x", "tools": tools}));
    assert_eq!((response.status, response.error().1.as_str()), (400, "tools[1].parameters"));
}
