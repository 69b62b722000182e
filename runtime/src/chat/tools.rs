//! OpenAI's declarations of tools, checked and made ready for a template.

use serde_json::{Map, Value};

use super::error::ChatError;

/// Longest name of a tool.
const LONGEST_NAME: usize = 128;

/// The declarations as a template wants them: nulls left out, and `parameters` with a type, since
/// Gemma's template writes unbalanced braces without one.
///
/// # Errors A declaration has the wrong shape, an unknown field, or a name that cannot be written
/// in a call; the error names tool and place.
pub(super) fn prepared(tools: &[Value]) -> Result<Vec<Value>, ChatError> {
    let mut ready: Vec<Value> = Vec::with_capacity(tools.len());
    for (index, tool) in tools.iter().enumerate() {
        let wrong = |(path, finding): (&str, String)| ChatError::Tool {
            tool: index,
            path: path.to_owned(),
            finding,
        };
        let tool = one(tool).map_err(wrong)?;
        let name = &tool["function"]["name"];
        if ready.iter().any(|other| other["function"]["name"] == *name) {
            return Err(wrong((".function.name", format!("is {name}, as another tool's is"))));
        }
        ready.push(tool);
    }
    Ok(ready)
}

fn one(tool: &Value) -> Result<Value, (&'static str, String)> {
    let mut tool = tool.as_object().ok_or(("", "is not a JSON object".to_owned()))?.clone();
    tool.retain(|_, value| !value.is_null());
    if tool.get("type").is_none_or(|kind| kind != "function") {
        let found = tool.get("type").unwrap_or(&Value::Null);
        return Err((".type", format!("is {found}: expected \"function\"")));
    }
    if let Some(key) = unknown(&tool, &["type", "function"]) {
        return Err(("", format!("has the unknown field {key:?}")));
    }
    let Some(Value::Object(function)) = tool.get_mut("function") else {
        return Err((".function", "is missing, or is not an object".to_owned()));
    };
    function.retain(|_, value| !value.is_null());
    let known = ["name", "description", "parameters", "strict", "response"];
    if let Some(key) = unknown(function, &known) {
        return Err((".function", format!("has the unknown field {key:?}")));
    }
    match function.get("name").and_then(Value::as_str) {
        Some(name) => check_name(name).map_err(|finding| (".function.name", finding))?,
        None => return Err((".function.name", "is missing, or is not a text".to_owned())),
    }
    if function.get("description").is_some_and(|value| !value.is_string()) {
        return Err((".function.description", "is not a text".to_owned()));
    }
    if function.get("strict").is_some_and(|value| !value.is_boolean()) {
        return Err((".function.strict", "is neither true nor false".to_owned()));
    }
    match function.get_mut("parameters") {
        None => {}
        Some(Value::Object(schema)) if !schema.is_empty() && !schema.contains_key("type") => {
            schema.insert("type".to_owned(), "object".into());
        }
        Some(Value::Object(_)) => {}
        Some(_) => return Err((".function.parameters", "is not an object".to_owned())),
    }
    Ok(tool.into())
}

fn unknown<'f>(fields: &'f Map<String, Value>, known: &[&str]) -> Option<&'f String> {
    fields.keys().find(|key| !known.contains(&key.as_str()))
}

/// A call is written `call:NAME{…}`: what ends a name there cannot be in one.
fn check_name(name: &str) -> Result<(), String> {
    let ends = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '{' | '<' | '>');
    if name.is_empty() || name.len() > LONGEST_NAME {
        return Err(format!("has {} bytes: 1 to {LONGEST_NAME}", name.len()));
    }
    match name.chars().find(|&c| ends(c)) {
        Some(c) => Err(format!("is {name:?}: {c:?} cannot stand in a tool's name")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn nulls_go_and_a_type_comes() {
        let tools = [json!({"type": "function", "function": {
            "name": "manim-video.x", "description": null, "strict": true, "parameters": {"properties": {}}}})];
        let expected = [json!({"type": "function", "function": {
            "name": "manim-video.x", "strict": true, "parameters": {"properties": {}, "type": "object"}}})];
        assert_eq!(prepared(&tools).expect("sound"), expected);
    }

    #[test]
    fn wrong_shapes_are_refused_with_their_place() {
        let function = |function: Value| json!({"type": "function", "function": function});
        for (tool, finding) in [
            (json!(3), "tools[1]: is not"),
            (json!({"type": "web_search"}), "tools[1].type: is \"web_search\""),
            (json!({"type": "function", "name": "f"}), "tools[1]: has the unknown field \"name\""),
            (json!({"type": "function"}), "tools[1].function:"),
            (function(json!({"name": ""})), "tools[1].function.name: has 0 bytes"),
            (function(json!({"name": "a b"})), "tools[1].function.name: is \"a b\""),
            (function(json!({"name": "f{"})), "tools[1].function.name:"),
            (function(json!({"name": "first"})), "as another tool's"),
            (function(json!({"name": "f", "parameters": []})), "tools[1].function.parameters:"),
            (function(json!({"name": "f", "strict": 1})), "tools[1].function.strict:"),
            (function(json!({"name": "f", "returns": 1})), "unknown field \"returns\""),
        ] {
            let error = prepared(&[function(json!({"name": "first"})), tool]).expect_err("refused");
            assert!(error.to_string().contains(finding), "{error}");
        }
    }
}
