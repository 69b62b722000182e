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

use serde_json::{Map, Value, json};

use super::error::ChatError;
use super::markers::{CHANNEL, CHANNEL_END};

/// Fields of a message that are read here or by the template.
const FIELDS: [&str; 9] = [
    "role",
    "content",
    "name",
    "tool_calls",
    "tool_call_id",
    "reasoning",
    "reasoning_content",
    // Gemma's own way to give results, inside the assistant's message.
    "tool_responses",
    // An empty list is what OpenAI's own replies hold, and what clients send back.
    "annotations",
];

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
        let wrong = |(path, finding): Wrong| ChatError::Message { message: index, path, finding };
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
        let wrong = |(path, finding): Wrong| ChatError::Message { message: index, path, finding };
        let mut message = object(message).map_err(wrong)?.clone();
        parse_arguments(&mut message).map_err(wrong)?;
        Ok(Value::Object(message))
    });
    parsed.collect()
}

/// Place in a message, and what is wrong there.
type Wrong = (String, String);

fn wrong<T>(path: impl Into<String>, finding: impl Into<String>) -> Result<T, Wrong> {
    Err((path.into(), finding.into()))
}

fn object(message: &Value) -> Result<&Map<String, Value>, Wrong> {
    message.as_object().ok_or_else(|| (String::new(), "is not a JSON object".to_owned()))
}

/// One message, checked by itself.
fn one(message: &Value) -> Result<Map<String, Value>, Wrong> {
    let mut message = object(message)?.clone();
    // null means absent, but for the content, where it means that there is none.
    message.retain(|key, value| !value.is_null() || key == "content");
    for (key, value) in &message {
        let empty = value.as_array().is_some_and(Vec::is_empty);
        if !FIELDS.contains(&key.as_str()) || (key == "annotations" && !empty) {
            return wrong(format!(".{key}"), "is not a field that a message can have here");
        }
    }
    let role = match message.get("role").and_then(Value::as_str) {
        Some("developer") => "system",
        Some(role @ ("system" | "user" | "assistant" | "tool")) => role,
        _ => {
            let found = message.get("role").unwrap_or(&Value::Null);
            let roles = "expected system, developer, user, assistant or tool";
            return wrong(".role", format!("is {found}: {roles}"));
        }
    }
    .to_owned();
    for key in ["name", "tool_call_id", "reasoning", "reasoning_content"] {
        if message.get(key).is_some_and(|value| !value.is_string()) {
            return wrong(format!(".{key}"), "is not a text");
        }
    }
    for key in ["tool_calls", "tool_responses", "reasoning", "reasoning_content"] {
        if role != "assistant" && message.contains_key(key) {
            return wrong(
                format!(".{key}"),
                format!("belongs to assistant messages, not to {role}"),
            );
        }
    }
    if let Some(content) = message.get_mut("content") {
        check_content(content)?;
        if role == "assistant" {
            cut_thoughts(content);
        }
    }
    if let Some(calls) = message.get("tool_calls") {
        check_calls(calls)?;
    }
    parse_arguments(&mut message)?;
    message.insert("role".to_owned(), role.into());
    Ok(message)
}

/// A text, a list of text parts, or null.
fn check_content(content: &Value) -> Result<(), Wrong> {
    let parts = match content {
        Value::Null | Value::String(_) => return Ok(()),
        Value::Array(parts) => parts,
        _ => return wrong(".content", "is neither a text nor a list of parts"),
    };
    for (index, part) in parts.iter().enumerate() {
        let path = format!(".content[{index}]");
        match part.get("type").and_then(Value::as_str) {
            Some("text") => {}
            Some(kind) => {
                let finding = format!("is a part of type {kind:?}: this model reads text alone");
                return wrong(path, finding);
            }
            None => return wrong(path, "has no type; expected {\"type\": \"text\", \"text\": …}"),
        }
        if !part.get("text").is_some_and(Value::is_string) {
            return wrong(format!("{path}.text"), "is not a text");
        }
        let mut fields = part.as_object().into_iter().flatten();
        if let Some((key, _)) =
            fields.find(|(key, value)| !matches!(key.as_str(), "type" | "text") && !value.is_null())
        {
            return wrong(format!("{path}.{key}"), "is not a field that a part can have here");
        }
    }
    Ok(())
}

fn check_calls(calls: &Value) -> Result<(), Wrong> {
    let Value::Array(calls) = calls else { return wrong(".tool_calls", "is not a list") };
    for (index, call) in calls.iter().enumerate() {
        let path = format!(".tool_calls[{index}]");
        let kind = call.get("type").unwrap_or(&Value::Null);
        if !kind.is_null() && kind != "function" {
            return wrong(format!("{path}.type"), format!("is {kind}: expected \"function\""));
        }
        let name = call.pointer("/function/name").and_then(Value::as_str);
        if name.is_none_or(str::is_empty) {
            return wrong(format!("{path}.function.name"), "is missing, or is not a text");
        }
    }
    Ok(())
}

fn parse_arguments(message: &mut Map<String, Value>) -> Result<(), Wrong> {
    let calls = match message.get_mut("tool_calls") {
        None | Some(Value::Null) => return Ok(()),
        Some(Value::Array(calls)) => calls,
        Some(_) => return wrong(".tool_calls", "is not a list"),
    };
    for (index, call) in calls.iter_mut().enumerate() {
        let Some(arguments) = call.pointer_mut("/function/arguments") else { continue };
        match parsed(arguments) {
            Ok(object) => *arguments = object,
            Err(finding) => {
                return wrong(format!(".tool_calls[{index}].function.arguments"), finding);
            }
        }
    }
    Ok(())
}

fn parsed(arguments: &Value) -> Result<Value, String> {
    match arguments {
        Value::Object(_) | Value::Null => Ok(arguments.clone()),
        Value::String(text) if text.trim().is_empty() => Ok(Value::Object(Map::new())),
        Value::String(text) => match serde_json::from_str(text) {
            Ok(Value::Object(object)) => Ok(Value::Object(object)),
            Ok(_) => Err(format!("holds JSON that is not an object: {text}")),
            Err(error) => Err(format!("is not JSON ({error}): {text}")),
        },
        other => Err(format!("is neither an object nor JSON text: {other}")),
    }
}

/// A result must follow the call it answers, with nothing but results between: templates pass
/// over any other without a word.
fn check_result(message: &Map<String, Value>, before: &[Value]) -> Result<(), Wrong> {
    let caller = before.iter().rev().find(|message| message["role"] != "tool");
    let calls = caller.and_then(|message| message.get("tool_calls")).and_then(Value::as_array);
    let Some(calls) = calls.filter(|calls| !calls.is_empty()) else {
        return wrong(
            "",
            "is a tool's result, but no assistant message with tool_calls stands before it",
        );
    };
    match (message.get("tool_call_id"), message.contains_key("name")) {
        (Some(id), named) if !named && !calls.iter().any(|call| call.get("id") == Some(id)) => {
            wrong(".tool_call_id", format!("is {id}, which no call of the message before has"))
        }
        (None, false) => {
            wrong("", "has neither tool_call_id nor name, so nobody knows what it answers")
        }
        _ => Ok(()),
    }
}

/// The two messages of one that has both text and calls.
fn split(message: &Map<String, Value>, thoughts_with_calls: bool) -> Option<[Value; 2]> {
    let calls = message.get("tool_calls").and_then(Value::as_array)?;
    if calls.is_empty() || !has_text(message.get("content")?) {
        return None;
    }
    let (mut text, mut calling) = (message.clone(), message.clone());
    for key in ["tool_calls", "tool_responses"] {
        text.remove(key);
    }
    calling.insert("content".to_owned(), Value::Null);
    let without_thought = if thoughts_with_calls { &mut text } else { &mut calling };
    for key in ["reasoning", "reasoning_content"] {
        without_thought.remove(key);
    }
    Some([text.into(), calling.into()])
}

fn has_text(content: &Value) -> bool {
    match content {
        Value::String(text) => !text.trim().is_empty(),
        Value::Array(parts) => parts.iter().any(|part| has_text(&part["text"])),
        _ => false,
    }
}

/// Cuts thoughts out of an assistant's text, part by part.
fn cut_thoughts(content: &mut Value) {
    match content {
        Value::String(text) if text.contains(CHANNEL) || text.contains(CHANNEL_END) => {
            *text = without_thoughts(text);
        }
        Value::Array(parts) => parts.iter_mut().for_each(|part| cut_thoughts(&mut part["text"])),
        _ => {}
    }
}

/// What stands outside `<|channel>…<channel|>`; a channel without an end reaches to the end.
fn without_thoughts(text: &str) -> String {
    let outside = |part: &str| part.find(CHANNEL).map_or(part.len(), |at| at);
    text.split(CHANNEL_END).map(|part| &part[..outside(part)]).collect()
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
        for bad in [json!("[1]"), json!("{a:1}"), json!(3)] {
            let error = with_parsed_arguments(&call(bad)).expect_err("no object").to_string();
            assert!(error.starts_with("messages[1].tool_calls[0].function.arguments:"), "{error}");
        }
    }

    #[test]
    fn wrong_shapes_are_refused_with_their_place() {
        let cases = [
            (json!(["hi"]), "messages[0]:"),
            (json!([{"role": "robot", "content": "x"}]), "messages[0].role: is \"robot\""),
            (json!([{"content": "x"}]), "messages[0].role: is null"),
            (json!([{"role": "user", "content": 3}]), "messages[0].content:"),
            (
                json!([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]),
                "messages[0].content[0]: is a part of type \"image_url\"",
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
            (json!([{"role": "tool", "content": "x"}]), "messages[0]: is a tool's result"),
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
            (json!([calling, result(json!({}))]), "neither tool_call_id nor name"),
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
        let ready = prepared(&[json!({"role": "developer", "content": null}), reply], false);
        let expected = [
            json!({"role": "system", "content": null}),
            json!({"role": "assistant", "content": "x", "annotations": []}),
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
