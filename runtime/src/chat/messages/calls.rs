//! Calls in an assistant's message, and the results that answer them.

use serde_json::{Map, Value};

use super::{Wrong, wrong};
use crate::chat::error::Fault;

/// Fields of a call, and of its function.
const CALL: [&str; 4] = ["id", "type", "function", "index"];
const FUNCTION: [&str; 2] = ["name", "arguments"];

/// Checks the calls of a message, and makes their arguments objects.
pub(super) fn check_calls(message: &mut Map<String, Value>) -> Result<(), Wrong> {
    let calls = match message.get("tool_calls") {
        None => return Ok(()),
        Some(Value::Array(calls)) => calls,
        Some(_) => return wrong(".tool_calls", "is not a list"),
    };
    for (index, call) in calls.iter().enumerate() {
        let path = format!(".tool_calls[{index}]");
        let Some(fields) = call.as_object() else { return wrong(path, "is not an object") };
        let kind = fields.get("type").unwrap_or(&Value::Null);
        if !kind.is_null() && kind != "function" {
            return wrong(format!("{path}.type"), format!("is {kind}: expected \"function\""));
        }
        if fields.get("id").is_some_and(|id| !id.is_string() && !id.is_null()) {
            return wrong(format!("{path}.id"), "is not a text");
        }
        check_fields(fields, &CALL, &path)?;
        let path = format!("{path}.function");
        let Some(function) = fields.get("function").and_then(Value::as_object) else {
            return Err(Wrong::missing(path));
        };
        check_fields(function, &FUNCTION, &path)?;
        // Any name: what the model made up comes back here, and must not end the conversation.
        if function.get("name").and_then(Value::as_str).is_none_or(str::is_empty) {
            return Err(Wrong::missing(format!("{path}.name")));
        }
    }
    parse_arguments(message)
}

fn check_fields(fields: &Map<String, Value>, known: &[&str], path: &str) -> Result<(), Wrong> {
    match fields.keys().find(|key| !known.contains(&key.as_str())) {
        Some(key) => Err(Wrong::unknown(format!("{path}.{key}"), "a call")),
        None => Ok(()),
    }
}

/// Makes arguments that are JSON text the objects that they are the text of.
pub(super) fn parse_arguments(message: &mut Map<String, Value>) -> Result<(), Wrong> {
    let calls = match message.get_mut("tool_calls") {
        None | Some(Value::Null) => return Ok(()),
        Some(Value::Array(calls)) => calls,
        Some(_) => return wrong(".tool_calls", "is not a list"),
    };
    for (index, call) in calls.iter_mut().enumerate() {
        let Some(arguments) = call.pointer_mut("/function/arguments") else { continue };
        *arguments = parsed(arguments)
            .or_else(|why| wrong(format!(".tool_calls[{index}].function.arguments"), why))?;
    }
    Ok(())
}

/// Arguments as the object that they are, or that they are the text of; empty text is none.
pub(crate) fn parsed(arguments: &Value) -> Result<Value, String> {
    match arguments {
        Value::Object(_) | Value::Null => Ok(arguments.clone()),
        Value::String(text) if text.trim().is_empty() => Ok(Value::Object(Map::new())),
        // A key that is there twice would be one value too many for the template.
        Value::String(text) => match w4pack_format::json::parse("arguments", text.as_bytes()) {
            Ok(object @ Value::Object(_)) => Ok(object),
            Ok(_) => Err(format!("holds JSON that is not an object: {text}")),
            Err(error) => Err(format!("is not JSON ({error}): {text}")),
        },
        other => Err(format!("is neither an object nor JSON text: {other}")),
    }
}

/// A result must follow the call it answers, with nothing but results between: templates pass
/// over any other without a word.
pub(super) fn check_result(message: &Map<String, Value>, before: &[Value]) -> Result<(), Wrong> {
    let caller = before.iter().rev().find(|message| message["role"] != "tool");
    let calls = caller.and_then(|message| message.get("tool_calls")).and_then(Value::as_array);
    let Some(calls) = calls.filter(|calls| !calls.is_empty()) else {
        return wrong(
            ".role",
            "is \"tool\", but no assistant message with tool_calls stands before this message",
        );
    };
    match (message.get("tool_call_id"), message.contains_key("name")) {
        (Some(id), named) if !named && !calls.iter().any(|call| call.get("id") == Some(id)) => {
            wrong(".tool_call_id", format!("is {id}, which no call of the message before has"))
        }
        (None, false) => Err(Wrong {
            path: ".tool_call_id".to_owned(),
            fault: Fault::Missing,
            finding: "is missing, and so is `name`: nobody knows what this result answers"
                .to_owned(),
        }),
        _ => Ok(()),
    }
}
