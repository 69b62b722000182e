//! OpenAI's messages made ready for a template.

use serde_json::{Map, Value};

use super::error::ChatError;

/// A copy of `messages` in which the arguments of tool calls are objects: OpenAI's clients send
/// them as JSON text, templates want the values. Empty text counts as no arguments.
///
/// # Errors A message is no object, or arguments are no JSON object; the error names message and
/// place.
pub fn with_parsed_arguments(messages: &[Value]) -> Result<Vec<Value>, ChatError> {
    let mut messages = messages.to_vec();
    for (index, message) in messages.iter_mut().enumerate() {
        let wrong =
            |path: String, finding: String| ChatError::Message { message: index, path, finding };
        let Some(message) = message.as_object_mut() else {
            return Err(wrong(String::new(), "is not a JSON object".to_owned()));
        };
        let calls = match message.get_mut("tool_calls") {
            None | Some(Value::Null) => continue,
            Some(Value::Array(calls)) => calls,
            Some(_) => return Err(wrong(".tool_calls".to_owned(), "is not a list".to_owned())),
        };
        for (call_index, call) in calls.iter_mut().enumerate() {
            let Some(arguments) = call.pointer_mut("/function/arguments") else { continue };
            let path = format!(".tool_calls[{call_index}].function.arguments");
            match parsed(arguments) {
                Ok(object) => *arguments = object,
                Err(finding) => return Err(wrong(path, finding)),
            }
        }
    }
    Ok(messages)
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn call(arguments: Value) -> Vec<Value> {
        vec![
            json!({"role": "user", "content": "x"}),
            json!({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}),
        ]
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
    fn what_is_no_object_is_refused_with_its_place() {
        for bad in [json!("[1]"), json!("{a:1}"), json!(3)] {
            let error = with_parsed_arguments(&call(bad)).expect_err("no object").to_string();
            assert!(error.starts_with("messages[1].tool_calls[0].function.arguments:"), "{error}");
        }
    }
}
