//! One message, by itself: role, fields, content.

use serde_json::{Map, Value, json};

use super::calls::check_calls;
use super::thoughts::cut_thoughts;
use super::{Wrong, object, wrong};

/// Fields of a message that are read here or by the template.
const FIELDS: [&str; 8] = [
    "role",
    "content",
    "name",
    "tool_calls",
    "tool_call_id",
    "reasoning",
    "reasoning_content",
    // Gemma's own way to give results, inside the assistant's message.
    "tool_responses",
];

/// Fields of OpenAI's that change nothing while they are empty, as its replies hold them and clients
/// send them back; and why they cannot be more.
const EMPTY: [(&str, &str); 4] = [
    ("annotations", "none are made here"),
    ("audio", "this model has no audio"),
    ("refusal", "this model refuses in its text; send it as `content`"),
    ("function_call", "that form is gone, use `tool_calls`"),
];

/// A copy of a message, checked, and in the form that a template takes.
pub(super) fn one(message: &Value) -> Result<Map<String, Value>, Wrong> {
    let mut message = object(message)?.clone();
    // null means absent, but for the content of an assistant, where it means that there is none.
    message.retain(|key, value| !value.is_null() || key == "content");
    for (key, why) in EMPTY {
        match message.shift_remove(key) {
            Some(Value::Array(items)) if items.is_empty() => {}
            Some(_) => return Err(Wrong::unsupported(format!(".{key}"), why)),
            None => {}
        }
    }
    let role = role(&message)?;
    for (key, value) in &message {
        let is_text =
            matches!(key.as_str(), "name" | "tool_call_id" | "reasoning" | "reasoning_content");
        let is_assistants = matches!(
            key.as_str(),
            "tool_calls" | "tool_responses" | "reasoning" | "reasoning_content"
        );
        if !FIELDS.contains(&key.as_str()) {
            return Err(Wrong::unknown(format!(".{key}"), "a message"));
        }
        if is_text && !value.is_string() {
            return wrong(format!(".{key}"), format!("is {value}: expected a text"));
        }
        if is_assistants && role != "assistant" {
            let finding = format!("belongs to assistant messages, not to {role}");
            return wrong(format!(".{key}"), finding);
        }
    }
    match message.get_mut("content") {
        // What an assistant said may have been a call, a thought, or nothing.
        None | Some(Value::Null) if role == "assistant" => {}
        None | Some(Value::Null) => return Err(Wrong::missing(".content")),
        Some(content) => {
            check_content(content)?;
            if role == "assistant" {
                cut_thoughts(content);
            }
        }
    }
    check_calls(&mut message)?;
    message.insert("role".to_owned(), role.into());
    Ok(message)
}

/// The role, by its name in templates.
fn role(message: &Map<String, Value>) -> Result<&'static str, Wrong> {
    let Some(role) = message.get("role") else { return Err(Wrong::missing(".role")) };
    match role.as_str() {
        Some("system" | "developer") => Ok("system"),
        Some("user") => Ok("user"),
        Some("assistant") => Ok("assistant"),
        Some("tool") => Ok("tool"),
        Some("function") => Err(Wrong::unsupported(".role", "that form is gone, use \"tool\"")),
        _ => wrong(
            ".role",
            format!("is {role}: expected system, developer, user, assistant or tool"),
        ),
    }
}

/// A text, or a list of text parts, which get the one type that templates know.
fn check_content(content: &mut Value) -> Result<(), Wrong> {
    let parts = match content {
        Value::String(_) => return Ok(()),
        Value::Array(parts) => parts,
        other => {
            return wrong(".content", format!("is {other}: expected a text or a list of parts"));
        }
    };
    for (index, part) in parts.iter_mut().enumerate() {
        let path = format!(".content[{index}]");
        let Some(fields) = part.as_object() else {
            return wrong(path, format!("is {part}: expected {{\"type\": \"text\", \"text\": …}}"));
        };
        match fields.get("type") {
            Some(Value::String(kind)) if kind == "text" => {}
            Some(kind) => {
                let finding = format!("is {kind}: this model reads parts of type \"text\" alone");
                return Err(Wrong::unsupported(format!("{path}.type"), finding));
            }
            None => return Err(Wrong::missing(format!("{path}.type"))),
        }
        let text = match fields.get("text") {
            Some(Value::String(text)) => text.clone(),
            Some(other) => {
                return wrong(format!("{path}.text"), format!("is {other}: expected a text"));
            }
            None => return Err(Wrong::missing(format!("{path}.text"))),
        };
        let mut others = fields.iter().filter(|(_, value)| !value.is_null());
        if let Some((key, _)) = others.find(|(key, _)| !["type", "text"].contains(&key.as_str())) {
            return Err(Wrong::unknown(format!("{path}.{key}"), "a part"));
        }
        *part = json!({"type": "text", "text": text});
    }
    Ok(())
}
