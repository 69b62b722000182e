//! OpenAI's declarations of tools, checked and made ready for a template.

use serde_json::{Map, Value};

use super::error::{ChatError, Fault};

/// Longest name of a tool.
const LONGEST_NAME: usize = 128;

/// The declarations as a template wants them: nulls left out, and `parameters` with a type, since
/// Gemma's template writes unbalanced braces without one.
///
/// # Errors A declaration has the wrong shape, an unknown field, or a name that cannot be written
/// in a call; the error names tool and place.
pub(crate) fn prepared(tools: &[Value]) -> Result<Vec<Value>, ChatError> {
    let mut ready: Vec<Value> = Vec::with_capacity(tools.len());
    for (index, tool) in tools.iter().enumerate() {
        let wrong =
            |(path, fault, finding): Wrong| ChatError::Tool { tool: index, path, fault, finding };
        let tool = one(tool).map_err(wrong)?;
        if ready.iter().any(|other| name_of(other) == name_of(&tool)) {
            let finding = format!("is {:?}, as another tool's is", name_of(&tool));
            return Err(wrong((".function.name".to_owned(), Fault::Value, finding)));
        }
        ready.push(tool);
    }
    Ok(ready)
}

/// The name of a tool that was prepared.
pub(crate) fn name_of(tool: &Value) -> &str {
    tool["function"]["name"].as_str().unwrap_or_default()
}

/// Place in a declaration, and what is wrong there.
type Wrong = (String, Fault, String);

fn wrong<T>(path: &str, fault: Fault, finding: impl Into<String>) -> Result<T, Wrong> {
    Err((path.to_owned(), fault, finding.into()))
}

fn one(tool: &Value) -> Result<Value, Wrong> {
    let Some(tool) = tool.as_object() else {
        return wrong("", Fault::Value, "is not a JSON object");
    };
    let mut tool = tool.clone();
    tool.retain(|_, value| !value.is_null());
    match tool.get("type") {
        None => return wrong(".type", Fault::Missing, "is missing"),
        Some(kind) if kind == "function" => {}
        Some(kind) => {
            let finding = format!("is {kind}: only \"function\" is done here");
            return wrong(".type", Fault::Unsupported, finding);
        }
    }
    check_fields(&tool, &["type", "function"], "")?;
    let function = match tool.get_mut("function") {
        Some(Value::Object(function)) => function,
        Some(_) => return wrong(".function", Fault::Value, "is not an object"),
        None => return wrong(".function", Fault::Missing, "is missing"),
    };
    function.retain(|_, value| !value.is_null());
    // Gemma's template also writes what a function returns.
    let known = ["name", "description", "parameters", "strict", "response"];
    check_fields(function, &known, ".function")?;
    match function.get("name") {
        Some(Value::String(name)) => {
            check_name(name).or_else(|why| wrong(".function.name", Fault::Value, why))?;
        }
        Some(_) => return wrong(".function.name", Fault::Value, "is not a text"),
        None => return wrong(".function.name", Fault::Missing, "is missing"),
    }
    if function.get("description").is_some_and(|value| !value.is_string()) {
        return wrong(".function.description", Fault::Value, "is not a text");
    }
    if function.get("strict").is_some_and(|value| !value.is_boolean()) {
        return wrong(".function.strict", Fault::Value, "is neither true nor false");
    }
    match function.get_mut("parameters") {
        None => {}
        // Declared as nothing: the function takes no arguments.
        Some(Value::Object(schema)) if schema.is_empty() => {
            function.shift_remove("parameters");
        }
        // Arguments are always an object; templates count on the word.
        Some(Value::Object(schema)) => {
            schema.entry("type").or_insert_with(|| "object".into());
        }
        Some(other) => {
            let finding = format!("is {other}: expected an object");
            return wrong(".function.parameters", Fault::Value, finding);
        }
    }
    Ok(tool.into())
}

fn check_fields(fields: &Map<String, Value>, known: &[&str], path: &str) -> Result<(), Wrong> {
    match fields.keys().find(|key| !known.contains(&key.as_str())) {
        Some(key) => {
            let finding = "is not a field that a declaration can have here";
            wrong(&format!("{path}.{key}"), Fault::Unknown, finding)
        }
        None => Ok(()),
    }
}

/// The name of a function stands bare in the prompt and in calls, so nothing may be in it that ends it
/// there.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "_-.:/".contains(c);
    match !name.is_empty() && name.len() <= LONGEST_NAME && name.chars().all(allowed) {
        true => Ok(()),
        false => {
            Err(format!("is {name:?}: expected 1 to {LONGEST_NAME} letters, digits or _ - . : /"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn nulls_go_and_a_type_comes() {
        let tools = [
            json!({"type": "function", "function": {
            "name": "manim-video.x", "description": null, "strict": true, "parameters": {"properties": {}}}}),
            json!({"type": "function", "function": {"name": "f", "parameters": {}}}),
        ];
        let expected = [
            json!({"type": "function", "function": {
            "name": "manim-video.x", "strict": true, "parameters": {"properties": {}, "type": "object"}}}),
            json!({"type": "function", "function": {"name": "f"}}),
        ];
        assert_eq!(prepared(&tools).expect("sound"), expected);
    }

    #[test]
    fn wrong_shapes_are_refused_with_their_place() {
        let function = |function: Value| json!({"type": "function", "function": function});
        for (tool, finding) in [
            (json!(3), "tools[1]: is not"),
            (json!({"type": "web_search"}), "tools[1].type: is \"web_search\""),
            (json!({"type": "function", "name": "f"}), "tools[1].name: is not a field"),
            (json!({"type": "function"}), "tools[1].function:"),
            (function(json!({"name": ""})), "tools[1].function.name: is \"\""),
            (function(json!({"name": "a b"})), "tools[1].function.name: is \"a b\""),
            (function(json!({"name": "f{"})), "tools[1].function.name:"),
            (function(json!({"name": "first"})), "as another tool's"),
            (function(json!({"name": "f", "parameters": []})), "tools[1].function.parameters:"),
            (function(json!({"name": "f", "strict": 1})), "tools[1].function.strict:"),
            (
                function(json!({"name": "f", "returns": 1})),
                "tools[1].function.returns: is not a field",
            ),
        ] {
            let error = prepared(&[function(json!({"name": "first"})), tool]).expect_err("refused");
            assert!(error.to_string().contains(finding), "{error}");
        }
    }
}
