//! Declared tools, and which of them may be called.

use serde_json::Value;

use crate::chat::tools::{check_name, name_of, prepared};
use crate::server::error::ApiError;
use crate::server::fields::{Field, Fields};
use crate::server::wire::chat::ToolChoice;

/// Most tools of a request.
const MOST_TOOLS: usize = 128;

/// Reads `tools` in the form of chat completions, `{"type": "function", "function": {…}}`. Returns
/// them in that form, as a template takes them.
pub fn read(fields: &mut Fields<'_>) -> Result<Vec<Value>, ApiError> {
    let Some(field) = fields.take("tools") else { return Ok(Vec::new()) };
    let tools = items(&field)?;
    Ok(prepared(tools)?)
}

/// The declarations in a list, not too many.
pub fn items<'v>(field: &Field<'v>) -> Result<&'v [Value], ApiError> {
    let items = field.value.as_array().ok_or_else(|| field.wrong("a list"))?;
    if items.len() > MOST_TOOLS {
        let message = format!("`{}` holds {} tools: at most {MOST_TOOLS}", field.path, items.len());
        return Err(ApiError::conflict(&field.path, message));
    }
    Ok(items)
}

/// The name of a function.
pub fn checked_name(field: &Field<'_>) -> Result<String, ApiError> {
    let name = field.text()?;
    let wrong = |finding| ApiError::conflict(&field.path, format!("`{}` {finding}", field.path));
    check_name(name).map(|()| name.to_owned()).map_err(wrong)
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
    use serde_json::json;

    fn refusal(tools: Value) -> String {
        let body = json!({"tools": tools});
        let read = read(&mut Fields::of_body(body.as_object().expect("an object")));
        read.expect_err("it is faulty").body().to_string()
    }

    fn function(name: &str) -> Value {
        json!({"type": "function", "function": {"name": name}})
    }

    #[test]
    fn faults_carry_their_place_and_kind() {
        for (faulty, param, code) in [
            (json!([function("a"), function("a")]), "tools[1].function.name", "invalid_value"),
            (json!([{"type": "web_search"}]), "tools[0].type", "unsupported_value"),
            (json!([{"type": "function"}]), "tools[0].function", "missing_required_parameter"),
            (json!([function("a b")]), "tools[0].function.name", "invalid_value"),
            (
                json!([{"type": "function", "function": {"name": "f", "colour": 1}}]),
                "tools[0].function.colour",
                "unknown_parameter",
            ),
            (json!({"type": "function"}), "tools", "invalid_value"),
            (json!(vec![function("a"); 129]), "tools", "invalid_value"),
        ] {
            let error = refusal(faulty);
            let place = format!("\"param\":\"{param}\",\"code\":\"{code}\"");
            assert!(error.contains(&place), "{error}");
        }
    }
}
