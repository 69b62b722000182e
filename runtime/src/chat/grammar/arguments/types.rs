//! Which types of JSON a schema means.

use serde_json::{Map, Value};

/// The type or types a schema names.
pub(super) fn types(fields: &Map<String, Value>) -> Option<Vec<&str>> {
    match fields.get("type")? {
        Value::String(kind) => Some(vec![kind]),
        Value::Array(kinds) => Some(kinds.iter().map(|kind| kind.as_str().unwrap_or("")).collect()),
        _ => Some(vec![""]),
    }
}

pub(super) fn is_of(value: &Value, kind: &str) -> bool {
    match kind {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => false,
    }
}

/// The type that a keyword belongs to.
pub(super) fn of_type(keyword: &str) -> Option<&'static str> {
    Some(match keyword {
        "minLength" | "maxLength" | "pattern" | "format" => "string",
        "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" | "multipleOf" => "number",
        "items" | "prefixItems" | "additionalItems" | "minItems" | "maxItems" | "uniqueItems" => {
            "array"
        }
        "properties"
        | "required"
        | "additionalProperties"
        | "patternProperties"
        | "minProperties"
        | "maxProperties" => "object",
        _ => return None,
    })
}

/// The one type that the keywords of a schema without a type belong to.
pub(super) fn implied(fields: &Map<String, Value>) -> Option<&'static str> {
    let mut kinds = fields.keys().filter_map(|keyword| of_type(keyword));
    let first = kinds.next()?;
    kinds.all(|kind| kind == first).then_some(first)
}
