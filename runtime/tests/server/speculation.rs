//! A server that guesses tokens ahead gives the replies of one that does not.

use crate::support::*;
use serde_json::{Value, json};
use w4pack_runtime::Speculation;

/// A reply but for what is new in each: its name, its times, the ids of calls.
fn lasting(mut reply: Value) -> Value {
    let fields = reply.as_object_mut().expect("an object");
    for name in ["id", "created", "timings"] {
        fields.remove(name);
    }
    // What the slot held before depends on what was asked before, which is the same: it stays.
    for choice in fields["choices"].as_array_mut().expect("choices") {
        for call in choice["message"]["tool_calls"].as_array_mut().into_iter().flatten() {
            call.as_object_mut().expect("a call").remove("id");
        }
    }
    reply
}

/// Calls demanded, chosen and held to a schema; forms; stop strings; several answers; penalties, bias,
/// log-probabilities; lengths.
fn bodies() -> Vec<Value> {
    let weather = json!({"tools": [weather()]});
    let schema = json!({"response_format": {"type": "json_schema", "json_schema": {
        "name": "list",
        "schema": {"type": "array", "minItems": 6, "maxItems": 12,
                   "items": {"type": "object", "properties": {"name": {"enum": ["one", "two"]}},
                             "required": ["name"], "additionalProperties": false}},
    }}});
    let asked = "What is the weather in Paris right now?";
    let list =
        "List: red 4121, blue 7730, green 4121, red 4121, blue 7730. What is the code of blue?";
    let long = json!({"temperature": 0.9, "seed": 3, "max_tokens": 60});
    vec![
        question(list),
        with(question(asked), weather.clone()),
        with(question(asked), with(weather.clone(), json!({"tool_choice": "required"}))),
        with(
            question("What's 17+25?"),
            with(weather, json!({"tool_choice": "required", "seed": 1, "temperature": 1.0})),
        ),
        with(question("Name some."), schema.clone()),
        with(question("Name some."), with(schema, json!({"temperature": 1.2, "seed": 9}))),
        with(question("What is the opposite of hot?"), json!({"stop": ["ld", "zz"]})),
        with(question(list), json!({"stop": ["30"], "logprobs": true, "top_logprobs": 5})),
        with(question("What's 17+25?"), with(long.clone(), json!({"n": 3}))),
        with(question(list), with(long.clone(), json!({"logprobs": true, "top_logprobs": 20}))),
        with(
            question(list),
            with(
                long,
                json!({"presence_penalty": 0.6, "frequency_penalty": 0.4,
                                              "logit_bias": {"300": 5, "301": -100}}),
            ),
        ),
        with(question(list), json!({"logit_bias": {"106": -100}, "max_tokens": 250})),
        with(
            question(list),
            json!({"logit_bias": {"106": -100}, "max_tokens": 90,
                                    "frequency_penalty": 0.5, "logprobs": true}),
        ),
    ]
}

#[test]
fn replies_are_those_of_a_server_that_does_not_guess() {
    for slots in [1, 2] {
        let start = |speculation| Running::with(&Setup { slots, speculation, ..Setup::default() });
        let (plain, guessing) = (start(Speculation::Off), start(Speculation::Ngram));
        let (mut drafted, mut accepted) = (0, 0);
        for body in bodies() {
            let [expected, found] = [&plain, &guessing].map(|running| running.chat(&body));
            assert_eq!(expected.status, 200, "{}", expected.body);
            assert_eq!(found.status, 200, "{}", found.body);
            let (expected, found) = (expected.json(), found.json());
            let count = |name: &str| found["timings"][name].as_u64().expect("a count");
            drafted += count("drafted_tokens");
            accepted += count("accepted_tokens");
            assert_eq!(expected["timings"]["drafted_tokens"], 0);
            assert_eq!(lasting(found), lasting(expected), "{slots} slots: {body}");
            // The stream, token by token the same pieces.
            let pieces = |running: &Running| {
                joined(&running.chat(&with(body.clone(), json!({"stream": true}))).chunks())
            };
            let [expected, found] = [&plain, &guessing].map(pieces);
            for ((found, why), (expected, expected_why)) in found.iter().zip(&expected) {
                for name in ["content", "reasoning_content"] {
                    assert_eq!(found[name], expected[name], "{slots} slots, streamed: {body}");
                }
                assert_eq!(why, expected_why);
            }
        }
        assert!(accepted > 200 && accepted <= drafted, "{accepted} of {drafted}");
        // Streams were counted as well.
        assert!(guessing.metric("w4pack_drafted_tokens_total") >= drafted as f64);
        assert!(guessing.metric("w4pack_accepted_tokens_total") >= accepted as f64);
        assert_eq!(plain.metric("w4pack_drafted_tokens_total"), 0.0);
    }
}
