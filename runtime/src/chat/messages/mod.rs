//! OpenAI's messages made ready for a template: checked, and in the shape that Gemma's templates
//! expect.
//!
//! What is changed, beyond checking:
//!
//! - the role `developer` becomes `system`, its older name;
//! - the arguments of calls, which OpenAI's clients send as JSON text, become the values;
//! - thoughts in an assistant's text (`<|channel>…<channel|>`) are cut out, as Gemma's templates do
//!   it, since after marking ([`marks`](super::marks)) a template cannot see them any more;
//! - an assistant's message with text and calls becomes two: text first, as the model wrote them.
//!   Gemma's templates write the text of such a message behind the results and close the turn, after
//!   which nobody asks the model to go on.

mod calls;
mod check;
mod thoughts;

use serde_json::{Map, Value, json};

use super::error::{ChatError, Fault};
pub(crate) use calls::parsed as parsed_arguments;
use calls::{check_result, parse_arguments};
use check::one;
use thoughts::split;

/// The messages as a template wants them.
///
/// `thoughts_with_calls`: of an assistant's message that is split, the thought goes with the calls
/// and not with the text. Templates that keep old thoughts keep those of messages with calls only.
///
/// # Errors A message, a part or a call has the wrong shape, an unknown role or field, or a tool's
/// result belongs to no call; the error names message and place.
pub(super) fn prepared(
    messages: &[Value],
    thoughts_with_calls: bool,
) -> Result<Vec<Value>, ChatError> {
    let mut ready = Vec::with_capacity(messages.len());
    for (index, message) in messages.iter().enumerate() {
        let wrong = |wrong: Wrong| wrong.in_message(index);
        let message = one(message).map_err(wrong)?;
        if message["role"] == "tool" {
            check_result(&message, &ready).map_err(wrong)?;
        }
        match split(&message, thoughts_with_calls) {
            Some(parts) => ready.extend(parts),
            None => ready.push(Value::Object(message)),
        }
    }
    Ok(ready)
}

/// A copy of `messages` in which the arguments of tool calls are objects. Empty text counts as no
/// arguments.
///
/// # Errors A message is no object, or arguments are no JSON object; the error names message and
/// place.
pub fn with_parsed_arguments(messages: &[Value]) -> Result<Vec<Value>, ChatError> {
    let parsed = messages.iter().enumerate().map(|(index, message)| {
        let wrong = |wrong: Wrong| wrong.in_message(index);
        let mut message = object(message).map_err(wrong)?.clone();
        parse_arguments(&mut message).map_err(wrong)?;
        Ok(Value::Object(message))
    });
    parsed.collect()
}

/// Where in a message something is wrong, and what.
struct Wrong {
    path: String,
    fault: Fault,
    finding: String,
}

impl Wrong {
    fn missing(path: impl Into<String>) -> Self {
        Self { path: path.into(), fault: Fault::Missing, finding: "is missing".to_owned() }
    }

    /// A field that `whose` cannot have.
    fn unknown(path: impl Into<String>, whose: &str) -> Self {
        let finding = format!("is not a field that {whose} can have here");
        Self { path: path.into(), fault: Fault::Unknown, finding }
    }

    fn unsupported(path: impl Into<String>, finding: impl Into<String>) -> Self {
        Self { path: path.into(), fault: Fault::Unsupported, finding: finding.into() }
    }

    fn in_message(self, message: usize) -> ChatError {
        let Self { path, fault, finding } = self;
        ChatError::Message { message, path, fault, finding }
    }
}

fn wrong<T>(path: impl Into<String>, finding: impl Into<String>) -> Result<T, Wrong> {
    Err(Wrong { path: path.into(), fault: Fault::Value, finding: finding.into() })
}

fn object(message: &Value) -> Result<&Map<String, Value>, Wrong> {
    message.as_object().ok_or_else(|| Wrong {
        path: String::new(),
        fault: Fault::Value,
        finding: "is not a JSON object".to_owned(),
    })
}

/// One message of a user.
pub fn from_user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(arguments: Value) -> Vec<Value> {
        vec![
            json!({"role": "user", "content": "x"}),
            json!({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}),
        ]
    }

    fn refusal(messages: Value) -> String {
        let messages: Vec<Value> = serde_json::from_value(messages).expect("a list");
        prepared(&messages, false).expect_err("refused").to_string()
    }

    #[test]
    fn text_becomes_an_object_with_its_keys_in_order() {
        let given = call(json!(r#"{"z": 1, "a": {"c": 2, "b": 3}}"#));
        let ready = with_parsed_arguments(&given).expect("sound arguments");
        let arguments = ready[1].pointer("/tool_calls/0/function/arguments").expect("arguments");
        assert_eq!(arguments.to_string(), r#"{"z":1,"a":{"c":2,"b":3}}"#);
        let empty = with_parsed_arguments(&call(json!(""))).expect("no arguments");
        assert_eq!(empty[1].pointer("/tool_calls/0/function/arguments"), Some(&json!({})));
        let object = call(json!({"a": 1}));
        assert_eq!(with_parsed_arguments(&object).expect("an object"), object);
    }

    #[test]
    fn arguments_that_are_no_object_are_refused_with_their_place() {
        for bad in [json!("[1]"), json!("{a:1}"), json!(3), json!("{\"a\":1,\"a\":2}")] {
            let error = with_parsed_arguments(&call(bad)).expect_err("no object").to_string();
            assert!(error.starts_with("messages[1].tool_calls[0].function.arguments:"), "{error}");
        }
    }

    #[test]
    fn wrong_shapes_are_refused_with_their_place() {
        let cases = [
            (json!(["hi"]), "messages[0]:"),
            (json!([{"role": "robot", "content": "x"}]), "messages[0].role: is \"robot\""),
            (json!([{"content": "x"}]), "messages[0].role: is missing"),
            (json!([{"role": "function", "content": "x"}]), "messages[0].role: that form is gone"),
            (json!([{"role": "user"}]), "messages[0].content: is missing"),
            (json!([{"role": "user", "content": null}]), "messages[0].content: is missing"),
            (json!([{"role": "user", "content": 3}]), "messages[0].content:"),
            (
                json!([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]),
                "messages[0].content[0].type: is \"image_url\"",
            ),
            (
                json!([{"role": "user", "content": [{"type": "text", "text": 1}]}]),
                "messages[0].content[0].text:",
            ),
            (
                json!([{"role": "user", "content": [{"type": "text", "text": "x", "size": 1}]}]),
                "messages[0].content[0].size:",
            ),
            (json!([{"role": "user", "content": "x", "mood": "good"}]), "messages[0].mood:"),
            (
                json!([{"role": "user", "content": "x", "tool_calls": []}]),
                "messages[0].tool_calls:",
            ),
            (json!([{"role": "assistant", "tool_calls": {}}]), "messages[0].tool_calls:"),
            (
                json!([{"role": "assistant", "tool_calls": [{"type": "custom"}]}]),
                "messages[0].tool_calls[0].type:",
            ),
            (
                json!([{"role": "assistant", "tool_calls": [{"function": {}}]}]),
                "messages[0].tool_calls[0].function.name:",
            ),
            (
                json!([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "mood": 1}}]}]),
                "messages[0].tool_calls[0].function.mood:",
            ),
            (json!([{"role": "tool", "content": "x"}]), "messages[0].role: is \"tool\""),
            (json!([{"role": "assistant", "refusal": "no"}]), "messages[0].refusal:"),
        ];
        for (messages, beginning) in cases {
            let error = refusal(messages);
            assert!(error.starts_with(beginning), "{error}");
        }
    }

    #[test]
    fn results_that_belong_to_no_call_are_refused() {
        let calling =
            json!({"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f"}}]});
        let result = |more: Value| {
            let mut result = json!({"role": "tool", "content": "x"});
            result
                .as_object_mut()
                .expect("an object")
                .extend(more.as_object().expect("an object").clone());
            result
        };
        let user = from_user("?");
        for (messages, finding) in [
            (json!([calling, result(json!({"tool_call_id": "2"}))]), "which no call"),
            (json!([calling, result(json!({}))]), "nobody knows what"),
            (json!([calling, user, result(json!({"tool_call_id": "1"}))]), "no assistant message"),
        ] {
            let error = refusal(messages);
            assert!(error.contains(finding), "{error}");
        }
        let sound = [calling, result(json!({"tool_call_id": "1"})), result(json!({"name": "g"}))];
        assert_eq!(prepared(&sound, false).expect("sound"), sound);
    }

    #[test]
    fn nulls_and_what_openai_replies_hold_are_taken() {
        let reply = json!({"role": "assistant", "content": "x", "refusal": null, "audio": null,
            "annotations": [], "function_call": null, "tool_calls": null});
        let silent = json!({"role": "assistant", "content": null});
        let told = json!({"role": "developer", "content": "Be short."});
        let ready = prepared(&[told, reply, silent.clone()], false);
        let expected = [
            json!({"role": "system", "content": "Be short."}),
            json!({"role": "assistant", "content": "x"}),
            silent,
        ];
        assert_eq!(ready.expect("sound"), expected);
    }

    #[test]
    fn thoughts_are_cut_from_the_assistant_alone() {
        let text = "a<|channel>thought\nb<channel|>c<|channel>d";
        let parts = json!([{"type": "text", "text": text}]);
        let ready = prepared(
            &[
                json!({"role": "user", "content": text}),
                json!({"role": "assistant", "content": text}),
                json!({"role": "assistant", "content": parts}),
            ],
            false,
        )
        .expect("sound");
        assert_eq!(ready[0]["content"], text);
        assert_eq!(ready[1]["content"], "ac");
        assert_eq!(ready[2]["content"][0]["text"], "ac");
    }

    #[test]
    fn text_and_calls_become_two_messages() {
        let calls = json!([{"id": "1", "function": {"name": "f", "arguments": {}}}]);
        let both = json!({"role": "assistant", "content": "Let me look.", "reasoning": "why", "tool_calls": calls});
        let text = json!({"role": "assistant", "content": "Let me look.", "reasoning": "why"});
        let calling = json!({"role": "assistant", "content": null, "tool_calls": calls});
        assert_eq!(prepared(std::slice::from_ref(&both), false).expect("sound"), [text, calling]);
        let kept = prepared(&[both], true).expect("sound");
        assert_eq!(
            (kept[0].get("reasoning"), kept[1].get("reasoning")),
            (None, Some(&json!("why")))
        );
        let blank = json!({"role": "assistant", "content": " \n", "tool_calls": calls});
        assert_eq!(prepared(std::slice::from_ref(&blank), false).expect("sound"), [blank]);
    }
}
