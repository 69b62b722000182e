//! Chats: answers, streams, and the settings that shape them.

use crate::support::*;
use serde_json::{Value, json};

fn content(reply: &Value) -> &str {
    reply["choices"][0]["message"]["content"].as_str().unwrap_or_default()
}

#[test]
fn a_chat_is_answered_and_counted() {
    let running = Running::start();
    let response = running.chat(&question("What's 17+25?"));
    assert_eq!(response.status, 200, "{}", response.body);
    let reply = response.json();
    assert_eq!(content(&reply), "42");
    assert_eq!(reply["object"], "chat.completion");
    assert_eq!(reply["model"], "small");
    assert_eq!(reply["choices"][0]["finish_reason"], "stop");
    assert_eq!(reply["choices"][0]["message"]["role"], "assistant");
    assert_eq!(reply["choices"][0]["logprobs"], Value::Null);
    let (usage, timings) = (&reply["usage"], &reply["timings"]);
    let count = |name: &str| usage[name].as_u64().expect("a count");
    assert_eq!(count("total_tokens"), count("prompt_tokens") + count("completion_tokens"));
    assert!(usage["prompt_tokens_details"]["cached_tokens"].is_u64());
    assert!(timings["prompt_ms"].as_f64() > Some(0.0) && timings["decode_ms"].as_f64() > Some(0.0));
    assert!(timings["decode_tok_per_s"].as_f64() > Some(0.0));
    // The prompt is the one that /tokenize makes of the same messages.
    let messages = json!({"messages": question("What's 17+25?")["messages"]});
    assert_eq!(running.post("/tokenize", &messages).json()["count"], usage["prompt_tokens"]);
    assert_eq!(running.metric("w4pack_answers_total"), 1.0);
    assert_eq!(running.metric("w4pack_completion_tokens_total"), count("completion_tokens") as f64);
}

#[test]
fn every_way_to_ask_gives_the_stream_of_the_whole() {
    let running = Running::start();
    let tools = json!({"tools": [weather()]});
    for body in [
        question("What is the opposite of hot?"),
        with(question("What's 17+25?"), json!({"chat_template_kwargs": {"enable_thinking": true}})),
        with(question("What is the weather in Paris right now?"), tools),
        with(
            question("What's 17+25?"),
            json!({"temperature": 1.5, "seed": 7, "max_tokens": 40, "n": 3}),
        ),
        with(question("What is the opposite of hot?"), json!({"stop": ["pp", "is"]})),
    ] {
        let whole = running.chat(&body);
        assert_eq!(whole.status, 200, "{}", whole.body);
        let whole = whole.json();
        let streamed = running.chat(&with(body.clone(), json!({"stream": true}))).chunks();
        assert_eq!(streamed[0]["choices"][0]["delta"]["role"], "assistant");
        let joined = joined(&streamed);
        let choices = whole["choices"].as_array().expect("choices");
        assert_eq!(joined.len(), choices.len());
        for (choice, (message, finish)) in choices.iter().zip(joined) {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            assert_eq!(text(&message["content"]), text(&choice["message"]["content"]), "{body}");
            let thought = &choice["message"]["reasoning_content"];
            assert_eq!(text(&message["reasoning_content"]), text(thought), "{body}");
            assert_eq!(finish.as_deref(), choice["finish_reason"].as_str());
            let functions = |calls: &Value| -> Vec<Value> {
                calls
                    .as_array()
                    .into_iter()
                    .flatten()
                    .map(|call| call["function"].clone())
                    .collect()
            };
            assert_eq!(
                functions(&message["tool_calls"]),
                functions(&choice["message"]["tool_calls"]),
                "{body}"
            );
        }
    }
}

#[test]
fn a_thought_is_no_content_and_its_tokens_are_counted() {
    let running = Running::start();
    let thinking = json!({"reasoning_effort": "low"});
    let reply = running.chat(&with(question("What's 17+25?"), thinking)).json();
    let message = &reply["choices"][0]["message"];
    assert!(message["reasoning_content"].as_str().is_some_and(|text| !text.is_empty()), "{reply}");
    assert_eq!(message["content"], "42");
    let usage = &reply["usage"];
    let thought = usage["completion_tokens_details"]["reasoning_tokens"].as_u64();
    assert!(thought > Some(0) && thought < usage["completion_tokens"].as_u64(), "{usage}");
    // The switch says the same, and off is off.
    let switch = json!({"chat_template_kwargs": {"enable_thinking": true}});
    let same = running.chat(&with(question("What's 17+25?"), switch)).json();
    assert_eq!(same["choices"], reply["choices"]);
    for off in [json!({"reasoning_effort": "none"}), json!({})] {
        let reply = running.chat(&with(question("What's 17+25?"), off)).json();
        assert_eq!(reply["choices"][0]["message"].get("reasoning_content"), None);
        assert_eq!(reply["usage"]["completion_tokens_details"]["reasoning_tokens"], 0);
    }
}

#[test]
fn a_tool_is_called_answered_and_told_of() {
    let running = Running::start();
    let body =
        with(question("What is the weather in Paris right now?"), json!({"tools": [weather()]}));
    let reply = running.chat(&body).json();
    let choice = &reply["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls", "{reply}");
    assert_eq!(choice["message"]["content"], Value::Null);
    let call = &choice["message"]["tool_calls"][0];
    assert_eq!(call["type"], "function");
    assert_eq!(call["function"]["name"], "get_weather");
    assert_eq!(call["function"]["arguments"], r#"{"city":"Paris"}"#);
    // The message goes back as it came, with the result behind it.
    let mut next = body.clone();
    let messages = next["messages"].as_array_mut().expect("a list");
    messages.push(choice["message"].clone());
    messages.push(json!({"role": "tool", "tool_call_id": call["id"], "content": "21 C, sunny"}));
    let reply = running.chat(&next).json();
    assert_eq!(reply["choices"][0]["finish_reason"], "stop", "{reply}");
    assert!(content(&reply).contains("21"), "{reply}");
}

#[test]
fn stop_strings_end_the_text_and_are_no_part_of_it() {
    let running = Running::start();
    let whole = running.chat(&question("What is the opposite of hot?")).json();
    let text = content(&whole).to_owned();
    // Every place where the text could be cut, in strings of several lengths, over token borders.
    for (from, _) in text.char_indices().skip(1).step_by(3) {
        for length in [1, 4, 9] {
            let stop: String = text[from..].chars().take(length).collect();
            let at = text.find(&stop).expect("it was cut out of it");
            let body = with(question("What is the opposite of hot?"), json!({"stop": stop}));
            let reply = running.chat(&body).json();
            assert_eq!(content(&reply), &text[..at], "{stop:?}");
            assert_eq!(reply["choices"][0]["finish_reason"], "stop");
        }
    }
    let stops: Vec<String> = (0..16).map(|number| format!("never {number}")).collect();
    let reply =
        running.chat(&with(question("What is the opposite of hot?"), json!({"stop": stops})));
    assert_eq!(content(&reply.json()), text);
}

#[test]
fn field_case_20_usage_comes_in_a_stream_if_asked_for_and_once() {
    let running = Running::start();
    let body = question("What's 17+25?");
    let whole = running.chat(&body).json();
    let plain = running.chat(&with(body.clone(), json!({"stream": true}))).chunks();
    for chunk in &plain {
        assert_eq!(chunk["choices"].as_array().map(Vec::len), Some(1), "{chunk}");
        assert_eq!(chunk.get("usage"), None, "{chunk}");
    }
    assert!(plain.last().is_some_and(|last| last["timings"]["prompt_ms"].is_number()));
    let asked = json!({"stream": true, "stream_options": {"include_usage": true}});
    let mut chunks = running.chat(&with(body, asked)).chunks();
    let last = chunks.pop().expect("chunks");
    assert_eq!(last["choices"], json!([]));
    let count = |name: &str| (last["usage"][name].clone(), whole["usage"][name].clone());
    for name in ["prompt_tokens", "completion_tokens", "total_tokens"] {
        let (streamed, whole) = count(name);
        assert_eq!(streamed, whole);
    }
    for chunk in &chunks {
        assert_eq!(chunk["choices"].as_array().map(Vec::len), Some(1), "{chunk}");
        assert_eq!(chunk["usage"], Value::Null, "{chunk}");
    }
}

#[test]
fn field_case_21_the_cap_holds_by_either_name() {
    let running = Running::start();
    for name in ["max_tokens", "max_completion_tokens"] {
        for stream in [false, true] {
            let mut body =
                force(json!(["one two three four five six seven eight nine ten eleven"]));
            body.as_object_mut().expect("an object").remove("max_tokens");
            body[name] = 5.into();
            if stream {
                let asked = json!({"stream": true, "stream_options": {"include_usage": true}});
                let chunks = running.chat(&with(body, asked)).chunks();
                assert_eq!(joined(&chunks)[0].1.as_deref(), Some("length"));
                assert_eq!(chunks.last().expect("chunks")["usage"]["completion_tokens"], 5);
            } else {
                let reply = running.chat(&body).json();
                assert_eq!(reply["choices"][0]["finish_reason"], "length");
                assert_eq!(reply["usage"]["completion_tokens"], 5);
            }
        }
    }
    let both = json!({"max_tokens": 5, "max_completion_tokens": 5});
    assert_eq!(running.chat(&with(question("x"), both)).status, 200);
    let differ = json!({"max_tokens": 5, "max_completion_tokens": 6});
    let refused = running.chat(&with(question("x"), differ));
    assert_eq!((refused.status, refused.error().1.as_str()), (400, "max_completion_tokens"));
}

#[test]
fn a_seed_repeats_an_answer_and_choices_have_seeds_of_their_own() {
    let running = Running::start();
    // The model is sure of this answer; barred from ending it, it goes on at random.
    let ends = json!({"1": -100, "106": -100, "50": -100});
    let hot = json!({"temperature": 2.0, "top_k": 0, "top_p": 1.0, "max_tokens": 24, "seed": 11,
        "logit_bias": ends});
    let body = with(question("What is the opposite of hot?"), hot);
    let texts = |body: &Value| -> Vec<Value> {
        let reply = running.chat(body).json();
        let choices = reply["choices"].as_array().expect("choices").clone();
        choices.iter().map(|choice| choice["message"].clone()).collect()
    };
    let three = texts(&with(body.clone(), json!({"n": 3})));
    assert_eq!(three, texts(&with(body.clone(), json!({"n": 3}))), "repeated");
    assert!(three[0] != three[1] && three[1] != three[2], "{three:?}");
    for (number, message) in three.iter().enumerate() {
        let alone = texts(&with(body.clone(), json!({"seed": 11 + number})));
        assert_eq!(alone[0], *message, "choice {number}");
    }
}

#[test]
fn logprobs_name_the_tokens_and_the_likeliest_ones() {
    let running = Running::start();
    let asked = json!({"logprobs": true, "top_logprobs": 3});
    let body = with(question("What is the opposite of hot?"), asked);
    let reply = running.chat(&body).json();
    let tokens = reply["choices"][0]["logprobs"]["content"].as_array().expect("tokens").clone();
    let bytes: Vec<u8> = tokens
        .iter()
        .flat_map(|token| token["bytes"].as_array().expect("bytes"))
        .map(|byte| byte.as_u64().expect("a byte") as u8)
        .collect();
    assert_eq!(String::from_utf8(bytes).expect("text").trim(), content(&reply));
    for token in &tokens {
        let top = token["top_logprobs"].as_array().expect("a list");
        assert_eq!(top.len(), 3);
        // Greedy: the chosen one is the likeliest.
        assert_eq!(top[0]["token"], token["token"]);
        assert_eq!(top[0]["logprob"], token["logprob"]);
        assert!(top[0]["logprob"].as_f64() >= top[1]["logprob"].as_f64());
        assert!(token["logprob"].as_f64() <= Some(0.0));
    }
    let chunks = running.chat(&with(body, json!({"stream": true}))).chunks();
    let streamed: Vec<Value> = chunks
        .iter()
        .flat_map(|chunk| chunk["choices"][0]["logprobs"]["content"].as_array().cloned())
        .flatten()
        .collect();
    assert_eq!(streamed, tokens);
}

#[test]
fn a_bias_bars_a_token_and_forces_another() {
    let running = Running::start();
    let plain = running.chat(&question("What's 17+25?")).json();
    let ids = running.post("/tokenize", &json!({"text": "42"})).json();
    let first = ids["tokens"][0].to_string();
    let barred = with(question("What's 17+25?"), json!({"logit_bias": {first: -100}}));
    let reply = running.chat(&with(barred, json!({"max_tokens": 8}))).json();
    assert_ne!(content(&reply), content(&plain));
    assert!(!content(&reply).starts_with('4'), "{reply}");
}
