//! The messages of a conversation, checked, and in the form that a template takes.

use serde_json::{Map, Value, json};

use crate::server::error::ApiError;
use crate::server::fields::{Field, Fields};

/// Most messages of a conversation.
const MOST_MESSAGES: usize = 10_000;
/// Longest name of a function or of a call.
const LONGEST_NAME: usize = 128;

/// Checks the messages and returns them with what the template looks at, and nothing else.
pub fn read(field: &Field<'_>) -> Result<Vec<Value>, ApiError> {
    let items = field.list()?;
    if items.is_empty() {
        return Err(field.wrong("at least one message"));
    }
    if items.len() > MOST_MESSAGES {
        let message =
            format!("`{}` holds {} messages: at most {MOST_MESSAGES}", field.path, items.len());
        return Err(ApiError::conflict(&field.path, message));
    }
    // Ids and names of the calls so far: a tool's message answers one of them.
    let mut calls: Vec<(String, String)> = Vec::new();
    items.iter().map(|item| message(item, &mut calls)).collect()
}

#[derive(Clone, Copy, PartialEq)]
enum Role {
    System,
    Developer,
    User,
    Assistant,
    Tool,
}

const ROLES: [(&str, Role); 5] = [
    ("system", Role::System),
    ("developer", Role::Developer),
    ("user", Role::User),
    ("assistant", Role::Assistant),
    ("tool", Role::Tool),
];

fn message(item: &Field<'_>, calls: &mut Vec<(String, String)>) -> Result<Value, ApiError> {
    let mut fields = item.fields()?;
    let role = fields.need("role")?;
    let name = role.text()?;
    if name == "function" {
        let message = format!("`{}` is \"function\": that form is gone, use \"tool\"", role.path);
        return Err(ApiError::unsupported(&role.path, message));
    }
    let role = role.one_of(&ROLES)?;
    let mut message = Map::new();
    message.insert("role".to_owned(), name.into());
    let text =
        fields.take("content").map(|field| content(&field, role == Role::Assistant)).transpose()?;
    match (role, text) {
        (_, Some(content)) => message.insert("content".to_owned(), content),
        // What an assistant said may have been a call, a thought, or nothing.
        (Role::Assistant, None) => message.insert("content".to_owned(), "".into()),
        (_, None) => return Err(ApiError::missing(&fields.path_of("content"))),
    };
    let speaker = fields.text("name")?;
    match role {
        Role::Assistant => assistant(&mut fields, &mut message, calls)?,
        Role::Tool => {
            let id = fields.need("tool_call_id")?;
            let (called, wanted) = (id.text()?, fields.path_of("tool_call_id"));
            let known = calls.iter().rev().find(|(id, _)| id == called);
            let tool = match (known, speaker) {
                (Some((_, name)), _) => name.clone(),
                (None, Some(name)) => {
                    checked_name(&Field::new(fields.path_of("name"), &name.into()))?
                }
                (None, None) => {
                    let expected = "the id of a call in an assistant's message before this one";
                    return Err(ApiError::value(&wanted, id.value, expected));
                }
            };
            message.insert("tool_call_id".to_owned(), called.into());
            message.insert("name".to_owned(), tool.into());
        }
        Role::System | Role::Developer | Role::User => {}
    }
    fields.finish()?;
    Ok(message.into())
}

/// What only an assistant's message has.
fn assistant(
    fields: &mut Fields<'_>,
    message: &mut Map<String, Value>,
    calls: &mut Vec<(String, String)>,
) -> Result<(), ApiError> {
    let newer = fields.text("reasoning")?;
    let thought = fields.text("reasoning_content")?.or(newer);
    if let Some(thought) = thought {
        message.insert("reasoning_content".to_owned(), thought.into());
    }
    if let Some(list) = fields.take("tool_calls") {
        let made = list.list()?.iter().map(call).collect::<Result<Vec<_>, _>>()?;
        for (id, name, _) in &made {
            calls.push((id.clone(), name.clone()));
        }
        if !made.is_empty() {
            let values = made.into_iter().map(|(_, _, value)| value).collect();
            message.insert("tool_calls".to_owned(), Value::Array(values));
        }
    }
    // Clients send back what they got, and with it fields of OpenAI's that are empty here.
    let nothing = |value: &Value| value.as_array().is_some_and(Vec::is_empty);
    fields.refuse_unless("annotations", nothing, "this server makes none")?;
    fields.refuse_unless("audio", |_| false, "this model has no audio")?;
    let refusal = "this model refuses in its text; send it as `content`";
    fields.refuse_unless("refusal", |_| false, refusal)?;
    fields.refuse_unless("function_call", |_| false, "that form is gone, use `tool_calls`")
}

/// A call: its id, the function's name, and what the template takes.
fn call(item: &Field<'_>) -> Result<(String, String, Value), ApiError> {
    let mut fields = item.fields()?;
    let id = fields.need("id")?.text()?.to_owned();
    if let Some(kind) = fields.take("type") {
        kind.one_of(&[("function", ())])?;
    }
    fields.integer("index", 0..=i64::MAX)?;
    let mut function = fields.need("function")?.fields()?;
    let name = checked_name(&function.need("name")?)?;
    let arguments = arguments(&function.need("arguments")?)?;
    function.finish()?;
    fields.finish()?;
    let value = json!({
        "id": id, "type": "function", "function": {"name": name, "arguments": arguments},
    });
    Ok((id, name, value))
}

/// Arguments of a call: an object, or its text.
pub fn arguments(field: &Field<'_>) -> Result<Value, ApiError> {
    match field.value {
        Value::Object(_) => Ok(field.value.clone()),
        Value::String(text) if text.trim().is_empty() => Ok(json!({})),
        Value::String(text) => match w4pack_format::json::parse("arguments", text.as_bytes()) {
            Ok(object @ Value::Object(_)) => Ok(object),
            _ => Err(field.wrong("the text of a JSON object")),
        },
        _ => Err(field.wrong("the text of a JSON object")),
    }
}

/// The name of a function: it stands bare in the prompt.
pub fn checked_name(field: &Field<'_>) -> Result<String, ApiError> {
    let name = field.text()?;
    let allowed = |c: char| c.is_ascii_alphanumeric() || "_-.:/".contains(c);
    if name.is_empty() || name.len() > LONGEST_NAME || !name.chars().all(allowed) {
        let expected = format!("1 to {LONGEST_NAME} letters, digits or _ - . : /");
        return Err(field.wrong(&expected));
    }
    Ok(name.to_owned())
}

/// Text, or a list of parts that are texts.
pub fn content(field: &Field<'_>, by_assistant: bool) -> Result<Value, ApiError> {
    if field.value.is_string() {
        return Ok(field.value.clone());
    }
    if !field.value.is_array() {
        return Err(field.wrong("a string or a list of parts"));
    }
    let mut parts = Vec::new();
    for item in field.list()? {
        let mut fields = item.fields()?;
        let kind = fields.need("type")?;
        match kind.text()? {
            "text" | "input_text" => {}
            "output_text" if by_assistant => {}
            "image_url" | "input_image" | "input_audio" | "video_url" | "file" | "input_file" => {
                let message =
                    format!("`{}` is {}: this model reads text only", kind.path, kind.value);
                return Err(ApiError::unsupported(&kind.path, message));
            }
            _ => return Err(kind.wrong("\"text\"")),
        }
        let text = fields.need("text")?.text()?;
        parts.push(json!({"type": "text", "text": text}));
        // What came with a part of an answer, sent back.
        let nothing = |value: &Value| value.as_array().is_some_and(Vec::is_empty);
        fields.refuse_unless("annotations", nothing, "this server makes none")?;
        fields.refuse_unless("logprobs", nothing, "a message has none")?;
        fields.finish()?;
    }
    Ok(parts.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(messages: Value) -> String {
        let error = read(&Field::new("messages", &messages)).expect_err("it is refused");
        let body = error.body();
        let text = |name: &str| body["error"][name].as_str().unwrap_or_default().to_owned();
        format!("{}: {}", text("param"), text("message"))
    }

    #[test]
    fn every_role_and_form_of_content() {
        let messages = json!([
            {"role": "developer", "content": "Be short."},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "Ann"},
            {"role": "assistant", "content": null, "refusal": null, "annotations": [], "function_call": null,
             "tool_calls": [{"index": 0, "id": "c1", "type": "function",
                             "function": {"name": "a-b.c", "arguments": "{\"z\": 1, \"a\": 2}"}}]},
            {"role": "tool", "tool_call_id": "c1", "content": "21"},
            {"role": "assistant", "content": "done", "reasoning_content": "hm"},
        ]);
        let read = read(&Field::new("messages", &messages)).expect("all are sound");
        assert_eq!(
            read[2]["tool_calls"][0]["function"]["arguments"].to_string(),
            r#"{"z":1,"a":2}"#
        );
        assert_eq!(read[2]["content"], "");
        assert_eq!(read[3]["name"], "a-b.c");
        assert_eq!(read[4]["reasoning_content"], "hm");
    }

    #[test]
    fn faults_are_named_by_their_path() {
        let call = |arguments: &str| {
            json!([{"role": "assistant", "tool_calls": [
                {"id": "c", "function": {"name": "f", "arguments": arguments}}]}])
        };
        for (messages, path) in [
            (json!([]), "messages"),
            (json!({}), "messages"),
            (json!([{"content": "x"}]), "messages[0].role"),
            (json!([{"role": "robot", "content": "x"}]), "messages[0].role"),
            (json!([{"role": "function", "content": "x"}]), "messages[0].role"),
            (json!([{"role": "user"}]), "messages[0].content"),
            (json!([{"role": "user", "content": null}]), "messages[0].content"),
            (json!([{"role": "user", "content": 3}]), "messages[0].content"),
            (
                json!([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]),
                "messages[0].content[0].type",
            ),
            (json!([{"role": "user", "content": "x", "mood": 1}]), "messages[0].mood"),
            (json!([{"role": "user", "content": "x", "tool_calls": []}]), "messages[0].tool_calls"),
            (json!([{"role": "tool", "content": "x"}]), "messages[0].tool_call_id"),
            (
                json!([{"role": "tool", "content": "x", "tool_call_id": "c"}]),
                "messages[0].tool_call_id",
            ),
            (call("[1]"), "messages[0].tool_calls[0].function.arguments"),
            (call("{\"a\":1,\"a\":2}"), "messages[0].tool_calls[0].function.arguments"),
            (
                json!([{"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "a b", "arguments": ""}}]}]),
                "messages[0].tool_calls[0].function.name",
            ),
        ] {
            let found = refusal(messages);
            assert!(found.starts_with(&format!("{path}: ")), "{found}");
        }
    }
}
