//! Whether alternatives exclude each other: `oneOf` can then be read as `anyOf`.

use serde_json::{Map, Value};

use super::types::types;

/// Whether no value can match two of these schemas, as far as that can be seen: by their types, by
/// listed values, or by a required property whose listed values differ.
pub(super) fn are_disjoint(schemas: &[Value]) -> bool {
    let pairs = schemas.iter().enumerate();
    pairs
        .into_iter()
        .all(|(index, one)| schemas[index + 1..].iter().all(|other| differ(one, other)))
}

fn differ(one: &Value, other: &Value) -> bool {
    let (Some(one), Some(other)) = (one.as_object(), other.as_object()) else { return false };
    if let (Some(ones), Some(others)) = (listed_values(one), listed_values(other)) {
        return !ones.iter().any(|value| others.contains(value));
    }
    if let (Some(ones), Some(others)) = (types(one), types(other)) {
        let same = |a: &str, b: &str| {
            let number = |kind: &str| matches!(kind, "number" | "integer");
            a == b || (number(a) && number(b))
        };
        if !ones.iter().any(|a| others.iter().any(|b| same(a, b))) {
            return true;
        }
    }
    let required = |fields: &Map<String, Value>, name: &String| {
        fields
            .get("required")
            .and_then(Value::as_array)
            .is_some_and(|names| names.iter().any(|required| required.as_str() == Some(name)))
    };
    let properties = |fields: &Map<String, Value>| {
        fields.get("properties").and_then(Value::as_object).cloned().unwrap_or_default()
    };
    let theirs = properties(other);
    properties(one).iter().any(|(name, schema)| {
        let both = required(one, name) && required(other, name);
        both && theirs.get(name).is_some_and(|other| differ(schema, other))
    })
}

fn listed_values(fields: &Map<String, Value>) -> Option<Vec<&Value>> {
    match (fields.get("const"), fields.get("enum")) {
        (Some(value), _) => Some(vec![value]),
        (None, Some(Value::Array(values))) => Some(values.iter().collect()),
        _ => None,
    }
}
