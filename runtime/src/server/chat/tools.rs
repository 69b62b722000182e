//! Declared tools, and which of them may be called.

use serde_json::{Map, Value, json};

use super::messages::checked_name;
use crate::server::error::ApiError;
use crate::server::fields::{Field, Fields};
use crate::server::wire::chat::ToolChoice;

/// Most tools of a request.
const MOST_TOOLS: usize = 128;

/// Reads `tools` in the form of chat completions, `{"type": "function", "function": {…}}`. Returns
/// them in that form, with what the template looks at.
pub fn read(fields: &mut Fields<'_>) -> Result<Vec<Value>, ApiError> {
    let Some(field) = fields.take("tools") else { return Ok(Vec::new()) };
    read_list(&field, &|item| {
        let mut tool = item.fields()?;
        function_kind(&tool.need("type")?)?;
        let mut function = tool.need("function")?.fields()?;
        let declared = declaration(&mut function)?;
        function.finish()?;
        tool.finish()?;
        Ok(declared)
    })
}

/// A list of tools, each read by `tool`; no name twice.
pub fn read_list(
    field: &Field<'_>,
    tool: &dyn Fn(&Field<'_>) -> Result<Value, ApiError>,
) -> Result<Vec<Value>, ApiError> {
    let items = field.list()?;
    if items.len() > MOST_TOOLS {
        let message = format!("`{}` holds {} tools: at most {MOST_TOOLS}", field.path, items.len());
        return Err(ApiError::conflict(&field.path, message));
    }
    let tools = items.iter().map(tool).collect::<Result<Vec<_>, _>>()?;
    for (index, tool) in tools.iter().enumerate() {
        if tools[..index].iter().any(|other| name_of(other) == name_of(tool)) {
            let message = format!("`{}` declares `{}` twice", field.path, name_of(tool));
            return Err(ApiError::conflict(&field.path, message));
        }
    }
    Ok(tools)
}

/// The only kind of tool there is.
pub fn function_kind(kind: &Field<'_>) -> Result<(), ApiError> {
    match kind.text()? {
        "function" => Ok(()),
        _ => {
            let message =
                format!("`{}` is {}: only \"function\" is run here", kind.path, kind.value);
            Err(ApiError::unsupported(&kind.path, message))
        }
    }
}

/// Name, description, parameters and strictness of a function.
pub fn declaration(function: &mut Fields<'_>) -> Result<Value, ApiError> {
    let mut declared = Map::new();
    declared.insert("name".to_owned(), checked_name(&function.need("name")?)?.into());
    if let Some(description) = function.text("description")? {
        declared.insert("description".to_owned(), description.into());
    }
    if let Some(parameters) = function.take("parameters") {
        let mut schema = parameters.object()?.clone();
        if !schema.is_empty() {
            // Arguments are always an object; templates count on the word.
            schema.entry("type").or_insert_with(|| "object".into());
            declared.insert("parameters".to_owned(), schema.into());
        }
    }
    if let Some(strict) = function.boolean("strict")? {
        declared.insert("strict".to_owned(), strict.into());
    }
    Ok(json!({"type": "function", "function": declared}))
}

/// The name of a tool that was read.
pub fn name_of(tool: &Value) -> &str {
    tool["function"]["name"].as_str().unwrap_or_default()
}

/// Reads `tool_choice`. `named` finds the name in an object's form.
pub fn choice(
    fields: &mut Fields<'_>,
    tools: &[Value],
    named: &dyn Fn(&Field<'_>) -> Result<Value, ApiError>,
) -> Result<ToolChoice, ApiError> {
    let Some(field) = fields.take("tool_choice") else { return Ok(ToolChoice::Auto) };
    let choice = match field.value {
        Value::String(text) => match text.as_str() {
            "none" => return Ok(ToolChoice::None),
            "auto" => return Ok(ToolChoice::Auto),
            "required" => ToolChoice::Required,
            _ => return Err(field.wrong("\"none\", \"auto\", \"required\" or an object")),
        },
        Value::Object(_) => {
            let kind = field.value.get("type").and_then(Value::as_str).unwrap_or_default();
            if kind != "function" {
                let path = format!("{}.type", field.path);
                let message = format!("`{path}` is \"{kind}\": only \"function\" is done here");
                return Err(ApiError::unsupported(&path, message));
            }
            let name = named(&field)?;
            let name = checked_name(&Field::new(format!("{}.name", field.path), &name))?;
            if !tools.is_empty() && !tools.iter().any(|tool| name_of(tool) == name) {
                let declared: Vec<&str> = tools.iter().map(name_of).collect();
                let message = format!(
                    "`{}` names `{name}`, which is not among `tools`: {}",
                    field.path,
                    declared.join(", ")
                );
                return Err(ApiError::conflict(&field.path, message));
            }
            ToolChoice::Named(name)
        }
        _ => return Err(field.wrong("\"none\", \"auto\", \"required\" or an object")),
    };
    if tools.is_empty() {
        let message = format!("`{}` asks for a call, but `tools` declares none", field.path);
        return Err(ApiError::conflict(&field.path, message));
    }
    Ok(choice)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tools(value: Value) -> Result<Vec<Value>, ApiError> {
        let body = json!({"tools": value});
        read(&mut Fields::of_body(body.as_object().expect("an object")))
    }

    fn function(name: &str) -> Value {
        json!({"type": "function", "function": {"name": name}})
    }

    #[test]
    fn parameters_get_their_type() {
        let declared = json!([{"type": "function", "function": {
            "name": "f", "parameters": {"properties": {"x": {"type": "string"}}}, "strict": true}}]);
        let read = tools(declared).expect("it is sound");
        assert_eq!(read[0]["function"]["parameters"]["type"], "object");
        let empty = json!([{"type": "function", "function": {"name": "f", "parameters": {}}}]);
        assert!(tools(empty).expect("it is sound")[0]["function"].get("parameters").is_none());
    }

    #[test]
    fn faulty_tools_are_refused() {
        for (faulty, word) in [
            (json!([function("a"), function("a")]), "twice"),
            (json!([{"type": "web_search"}]), "web_search"),
            (json!([{"type": "function"}]), "tools[0].function"),
            (json!([function("a b")]), "tools[0].function.name"),
            (json!([{"type": "function", "function": {"name": "f", "colour": 1}}]), "colour"),
            (json!({"type": "function"}), "a list"),
        ] {
            let error = tools(faulty).expect_err("it is faulty").body().to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}
