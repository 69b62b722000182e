//! The newer API, without a memory.

use crate::support::*;
use serde_json::{Value, json};

const PATH: &str = "/v1/responses";

fn ask(input: Value) -> Value {
    json!({"model": "small", "input": input, "temperature": 0})
}

fn flat_weather() -> Value {
    let mut tool = weather()["function"].clone();
    tool["type"] = "function".into();
    tool
}

/// Events by name, after a look at their numbers.
fn events(running: &Running, body: &Value) -> Vec<Value> {
    let response = running.post(PATH, &with(body.clone(), json!({"stream": true})));
    let events: Vec<Value> =
        response.events().iter().map(|data| serde_json::from_str(data).expect("JSON")).collect();
    // Its name stands before its data, for clients that read line by line.
    let blocks = response.body.split_terminator("\n\n");
    let names: Vec<&str> =
        blocks.filter_map(|block| block.strip_prefix("event: ")?.lines().next()).collect();
    assert_eq!(names.len(), events.len(), "{}", response.body);
    for (number, (event, name)) in events.iter().zip(names).enumerate() {
        assert_eq!(event["sequence_number"], number);
        assert_eq!(event["type"], name);
    }
    events
}

#[test]
fn a_text_is_answered_whole_and_as_events() {
    let running = Running::start();
    let body = ask(json!("What's 17+25?"));
    let reply = running.post(PATH, &body);
    assert_eq!(reply.status, 200, "{}", reply.body);
    let reply = reply.json();
    assert_eq!((&reply["object"], &reply["status"]), (&json!("response"), &json!("completed")));
    assert_eq!(reply["output"][0]["type"], "message");
    assert_eq!(reply["output"][0]["content"][0]["text"], "42");
    assert_eq!((&reply["store"], &reply["previous_response_id"]), (&json!(false), &Value::Null));
    let usage = &reply["usage"];
    assert_eq!(
        usage["total_tokens"].as_u64(),
        Some(usage["input_tokens"].as_u64().unwrap() + usage["output_tokens"].as_u64().unwrap())
    );
    let events = events(&running, &body);
    let names: Vec<&str> = events.iter().filter_map(|event| event["type"].as_str()).collect();
    assert_eq!(
        names[..4],
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added"
        ]
    );
    assert_eq!(
        names[names.len() - 4..],
        [
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.completed"
        ]
    );
    let deltas: String = events.iter().filter_map(|event| event["delta"].as_str()).collect();
    assert_eq!(deltas, "42");
    let last = &events.last().expect("events")["response"];
    for name in ["input_tokens", "output_tokens", "total_tokens"] {
        assert_eq!(last["usage"][name], reply["usage"][name]);
    }
    assert_eq!(last["output"][0]["content"], reply["output"][0]["content"]);
}

#[test]
fn a_call_goes_out_and_its_result_comes_back() {
    let running = Running::start();
    let question = json!({"role": "user", "content": "What is the weather in Paris right now?"});
    let tools = json!({"tools": [flat_weather()]});
    let body = with(ask(json!([question])), tools.clone());
    let reply = running.post(PATH, &body).json();
    let call = &reply["output"][0];
    assert_eq!((&call["type"], &call["name"]), (&json!("function_call"), &json!("get_weather")));
    assert_eq!(call["arguments"], r#"{"city":"Paris"}"#);
    assert_eq!(reply["tools"], json!([flat_weather()]));
    let events = events(&running, &body);
    let item = events.iter().find(|event| event["type"] == "response.function_call_arguments.done");
    assert_eq!(item.expect("a call")["arguments"], call["arguments"]);
    let result = json!({"type": "function_call_output", "call_id": call["call_id"], "output": "21 C, sunny"});
    let next = running.post(PATH, &with(ask(json!([question, call, result])), tools)).json();
    let text = next["output"][0]["content"][0]["text"].as_str().expect("text");
    assert!(text.contains("21"), "{text}");
}

#[test]
fn a_thought_is_an_item_of_its_own_and_can_be_sent_back() {
    let running = Running::start();
    let body = with(
        ask(json!("What's 17+25?")),
        json!({"reasoning": {"effort": "low", "summary": "auto"}}),
    );
    let reply = running.post(PATH, &body).json();
    let kinds: Vec<&Value> =
        reply["output"].as_array().expect("items").iter().map(|item| &item["type"]).collect();
    assert_eq!(kinds, ["reasoning", "message"], "{reply}");
    assert!(reply["output"][0]["content"][0]["text"].as_str().is_some_and(|text| !text.is_empty()));
    let events = events(&running, &body);
    let done = events.iter().find(|event| event["type"] == "response.reasoning_text.done");
    assert_eq!(done.expect("a thought")["text"], reply["output"][0]["content"][0]["text"]);
    let mut input = vec![json!({"role": "user", "content": "What's 17+25?"})];
    input.extend(reply["output"].as_array().expect("items").clone());
    input.push(json!({"role": "user", "content": [{"type": "input_text", "text": "What's 2+3?"}]}));
    let next = running.post(PATH, &ask(input.into()));
    assert_eq!(next.status, 200, "{}", next.body);
    assert_eq!(next.json()["output"][0]["content"][0]["text"], "5");
}

#[test]
fn an_answer_that_is_cut_is_incomplete() {
    let running = Running::start();
    let mut body = ask(force(json!(["one two three four five"]))["messages"][0]["content"].clone());
    body["max_output_tokens"] = 3.into();
    let reply = running.post(PATH, &body).json();
    assert_eq!(reply["status"], "incomplete");
    assert_eq!(reply["incomplete_details"]["reason"], "max_output_tokens");
    let events = events(&running, &body);
    assert_eq!(events.last().expect("events")["type"], "response.incomplete");
}

#[test]
fn what_would_need_a_memory_is_refused() {
    let running = Running::start();
    for (field, value) in [
        ("previous_response_id", json!("resp_1")),
        ("conversation", json!("c")),
        ("background", json!(true)),
        ("prompt", json!({"id": "p"})),
        ("truncation", json!("auto")),
        ("max_tool_calls", json!(1)),
        ("include", json!(["file_search_call.results"])),
        ("tools", json!([{"type": "web_search"}])),
        ("messages", json!([])),
    ] {
        let mut body = ask(json!("x"));
        body[field] = value;
        let response = running.post(PATH, &body);
        assert_eq!(response.status, 400, "{body}");
        assert!(response.error().1.starts_with(field), "{}", response.body);
    }
    let accepted = json!({"store": true, "background": false, "truncation": "disabled", "include": [],
        "max_output_tokens": 1, "metadata": {"k": "v"}});
    let reply = running.post(PATH, &with(ask(json!("x")), accepted)).json();
    assert_eq!((&reply["store"], &reply["metadata"]), (&json!(false), &json!({"k": "v"})));
}
