//! What a JSON schema asks for: keywords that are enforced, that mean nothing for the answer, and
//! that would have to be ignored, which is refused.

use serde_json::{Map, Value, json};

use super::formats;

/// Keywords that describe, and rule nothing out. `nullable` is OpenAPI's; Gemma's template shows it
/// to the model.
const ANNOTATIONS: [&str; 18] = [
    "$anchor",
    "$comment",
    "$defs",
    "$id",
    "$schema",
    "contentEncoding",
    "contentMediaType",
    "default",
    "definitions",
    "deprecated",
    "description",
    "example",
    "examples",
    "id",
    "nullable",
    "readOnly",
    "title",
    "writeOnly",
];

/// Keywords whose values are schemas, or hold schemas.
const ENFORCED: [&str; 27] = [
    "$ref",
    "additionalItems",
    "additionalProperties",
    "allOf",
    "anyOf",
    "const",
    "enum",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "format",
    "items",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "multipleOf",
    "oneOf",
    "pattern",
    "patternProperties",
    "prefixItems",
    "properties",
    "required",
    "type",
];

/// Whether a keyword rules nothing out. Those that begin with `x-` are free for everybody, but for
/// the one by which llguidance takes orders.
pub(super) fn is_annotation(keyword: &str) -> bool {
    ANNOTATIONS.contains(&keyword) || (keyword.starts_with("x-") && keyword != "x-guidance")
}

/// JSON pointers to the keywords of a schema that nothing enforces.
pub(super) fn unsupported_in_json(schema: &Value) -> Vec<String> {
    let mut found = Vec::new();
    visit(schema, "", &mut |fields, pointer| {
        for (keyword, value) in fields {
            let enforced = match keyword.as_str() {
                "format" => value.as_str().and_then(formats::expression).is_some(),
                keyword => ENFORCED.contains(&keyword),
            };
            // Asks for nothing.
            let idle = keyword == "uniqueItems" && value == false;
            if !enforced && !idle && !is_annotation(keyword) {
                found.push(child(pointer, keyword));
            }
        }
    });
    found
}

/// The schema without its annotations, so that no reader of it trips over one that it does not know.
/// Definitions stay: references lead there.
pub(super) fn cleaned(schema: &Value) -> Value {
    let kept = |keyword: &str| {
        matches!(keyword, "$defs" | "definitions" | "$schema" | "$id" | "id")
            || !(is_annotation(keyword) || keyword == "uniqueItems")
    };
    match schema {
        Value::Object(fields) => {
            let field = |(keyword, value): (&String, &Value)| {
                let unique = keyword == "uniqueItems" && value != false;
                (kept(keyword) || unique).then(|| (keyword.clone(), below(keyword, value, cleaned)))
            };
            Value::Object(fields.iter().filter_map(field).collect())
        }
        other => other.clone(),
    }
}

/// The value of a keyword with all schemas in it changed.
fn below(keyword: &str, value: &Value, change: fn(&Value) -> Value) -> Value {
    match (kind(keyword), value) {
        (Kind::Schema, value) => change(value),
        (Kind::List, Value::Array(items)) => items.iter().map(change).collect(),
        (Kind::Map, Value::Object(fields)) => {
            let field = |(name, value): (&String, &Value)| (name.clone(), change(value));
            Value::Object(fields.iter().map(field).collect::<Map<_, _>>())
        }
        (_, other) => other.clone(),
    }
}

/// The schema with patterns in place of formats: those of [`formats`] hold to their standards, and
/// llguidance's own are wider.
pub(super) fn with_patterns(schema: &Value) -> Value {
    let Value::Object(fields) = schema else { return schema.clone() };
    let mut fields: Map<String, Value> = fields
        .iter()
        .map(|(keyword, value)| (keyword.clone(), below(keyword, value, with_patterns)))
        .collect();
    let expression = fields.get("format").and_then(Value::as_str).and_then(formats::expression);
    if let Some(expression) = expression {
        fields.remove("format");
        let pattern = format!("^({expression})$").into();
        match fields.get("pattern") {
            None => drop(fields.insert("pattern".to_owned(), pattern)),
            Some(_) => {
                let also = json!({"pattern": pattern});
                match fields.get_mut("allOf") {
                    Some(Value::Array(all)) => all.push(also),
                    _ => drop(fields.insert("allOf".to_owned(), json!([also]))),
                }
            }
        }
    }
    fields.into()
}

/// Where below a keyword schemas stand.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The value is one.
    Schema,
    /// The value is a list of them.
    List,
    /// The value is an object of them.
    Map,
    /// There are none.
    Plain,
}

fn kind(keyword: &str) -> Kind {
    match keyword {
        "additionalItems" | "additionalProperties" | "items" => Kind::Schema,
        "allOf" | "anyOf" | "oneOf" | "prefixItems" => Kind::List,
        "$defs" | "definitions" | "patternProperties" | "properties" => Kind::Map,
        _ => Kind::Plain,
    }
}

/// Goes through a schema and all schemas in it.
pub(super) fn visit(
    schema: &Value,
    pointer: &str,
    each: &mut impl FnMut(&Map<String, Value>, &str),
) {
    let Some(fields) = schema.as_object() else { return };
    each(fields, pointer);
    for (keyword, value) in fields {
        let pointer = child(pointer, keyword);
        match (kind(keyword), value) {
            (Kind::Schema, value) => visit(value, &pointer, each),
            (Kind::List, Value::Array(items)) => {
                for (index, item) in items.iter().enumerate() {
                    visit(item, &child(&pointer, &index.to_string()), each);
                }
            }
            (Kind::Map, Value::Object(fields)) => {
                for (name, item) in fields {
                    visit(item, &child(&pointer, name), each);
                }
            }
            _ => {}
        }
    }
}

/// A JSON pointer one step further.
pub(super) fn child(pointer: &str, key: &str) -> String {
    format!("{pointer}/{}", key.replace('~', "~0").replace('/', "~1"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unsupported_keyword_is_named_with_its_place() {
        let schema = json!({
            "type": "object", "if": {}, "title": "T", "x-order": 1, "x-guidance": {},
            "properties": {
                "not": {"type": "string", "minLength": 1},
                "a/b": {"type": "array", "uniqueItems": true, "items": {"not": {}}},
                "c": {"anyOf": [{"type": "null"}, {"dependentRequired": {}}], "uniqueItems": false},
            },
            "$defs": {"d": {"contains": {}}},
        });
        assert_eq!(
            unsupported_in_json(&schema),
            [
                "/if",
                "/x-guidance",
                "/properties/a~1b/uniqueItems",
                "/properties/a~1b/items/not",
                "/properties/c/anyOf/1/dependentRequired",
                "/$defs/d/contains",
            ]
        );
    }

    #[test]
    fn formats_become_patterns() {
        let address = json!({"type": "string", "format": "ipv4"});
        let both = json!({"items": {"format": "ipv4", "pattern": "^1"}});
        let pattern = with_patterns(&address)["pattern"].clone();
        assert!(
            pattern
                .as_str()
                .is_some_and(|pattern| pattern.starts_with("^(") && pattern.ends_with(")$"))
        );
        assert_eq!(with_patterns(&address), json!({"type": "string", "pattern": pattern}));
        let expected = json!({"items": {"pattern": "^1", "allOf": [{"pattern": pattern}]}});
        assert_eq!(with_patterns(&both), expected);
        assert_eq!(unsupported_in_json(&json!({"format": "iri"})), ["/format"]);
    }

    #[test]
    fn annotations_go_and_names_of_properties_stay() {
        let schema = json!({"title": "T", "deprecated": true, "properties": {
            "title": {"type": "string", "default": "x"}}, "required": ["title"], "const": {"title": 1}});
        let expected = json!({"properties": {"title": {"type": "string"}}, "required": ["title"], "const": {"title": 1}});
        assert_eq!(cleaned(&schema), expected);
    }
}
