//! Whether the keywords of a schema have values that they can have.
//!
//! What compiles a schema says of `"multipleOf": -2` that something is wrong, and not where; of other
//! faults it says nothing, and holds nobody to anything.

use serde_json::{Map, Value};

use super::GrammarError;
use super::keywords::{child, visit};

/// The types there are.
const TYPES: [&str; 7] = ["array", "boolean", "integer", "null", "number", "object", "string"];

/// Refuses a schema with a keyword whose value is none; the error says where.
pub(super) fn check(schema: &Value) -> Result<(), GrammarError> {
    let mut fault = None;
    visit(schema, "", &mut |fields, pointer| {
        if fault.is_none() {
            fault = first_fault(fields, pointer);
        }
    });
    fault.map_or(Ok(()), |finding| Err(GrammarError::Schema { finding }))
}

fn first_fault(fields: &Map<String, Value>, pointer: &str) -> Option<String> {
    fields.iter().find_map(|(keyword, value)| {
        let expected = expected(keyword)?;
        let fits = match expected {
            "a number above 0" => value.as_f64().is_some_and(|number| number > 0.0),
            "a number" => value.is_number(),
            "a whole number from 0 on" => is_count(value),
            "a text" => value.is_string(),
            "a list of texts" => is_list_of(value, Value::is_string),
            "a list" => value.is_array(),
            "a list of schemas" => is_list_of(value, is_schema),
            "an object of schemas" => {
                value.as_object().is_some_and(|schemas| schemas.values().all(is_schema))
            }
            "a schema" => is_schema(value),
            // Older drafts have a list of schemas there.
            "a schema or a list of them" => is_schema(value) || is_list_of(value, is_schema),
            _ => is_type(value) || is_list_of(value, is_type),
        };
        (!fits).then(|| {
            let place = child(pointer, keyword);
            format!("`{place}` is {}: expected {expected}", shortened(value))
        })
    })
}

/// What a keyword's value must be, in words.
fn expected(keyword: &str) -> Option<&'static str> {
    Some(match keyword {
        "multipleOf" => "a number above 0",
        "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" => "a number",
        "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties" | "maxProperties" => {
            "a whole number from 0 on"
        }
        "pattern" | "format" | "$ref" => "a text",
        "required" => "a list of texts",
        "enum" => "a list",
        "allOf" | "anyOf" | "oneOf" | "prefixItems" => "a list of schemas",
        "properties" | "patternProperties" | "$defs" | "definitions" => "an object of schemas",
        "additionalProperties" | "additionalItems" => "a schema",
        "items" => "a schema or a list of them",
        "type" => "array, boolean, integer, null, number, object, string, or a list of these",
        _ => return None,
    })
}

fn is_count(value: &Value) -> bool {
    // 2.0 is a whole number in JSON Schema.
    value.as_u64().is_some()
        || value.as_f64().is_some_and(|number| number >= 0.0 && number.fract() == 0.0)
}

fn is_type(value: &Value) -> bool {
    value.as_str().is_some_and(|name| TYPES.contains(&name))
}

fn is_schema(value: &Value) -> bool {
    value.is_object() || value.is_boolean()
}

fn is_list_of(value: &Value, fits: impl Fn(&Value) -> bool) -> bool {
    value.as_array().is_some_and(|items| items.iter().all(fits))
}

fn shortened(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(40) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_place_of_a_wrong_value_is_named() {
        for (schema, finding) in [
            (
                json!({"properties": {"a": {"multipleOf": -2}}}),
                "`/properties/a/multipleOf` is -2: ",
            ),
            (json!({"multipleOf": 0}), "`/multipleOf` is 0: expected a number above 0"),
            (json!({"items": {"minLength": -1}}), "`/items/minLength` is -1: expected a whole"),
            (json!({"maxItems": 1.5}), "`/maxItems` is 1.5: "),
            (json!({"minimum": "3"}), "`/minimum` is \"3\": expected a number"),
            (json!({"type": "strng"}), "`/type` is \"strng\": expected array, boolean"),
            (json!({"anyOf": [{"required": "a"}]}), "`/anyOf/0/required` is \"a\": "),
            (json!({"anyOf": {"a": 1}}), "`/anyOf` is {\"a\":1}: expected a list of schemas"),
            (json!({"properties": [1]}), "`/properties` is [1]: expected an object of schemas"),
            (json!({"pattern": 7}), "`/pattern` is 7: expected a text"),
            (json!({"$defs": {"d": 3}}), "expected an object of schemas"),
        ] {
            let error = check(&schema).expect_err("it is faulty").to_string();
            assert!(error.contains(finding), "{error}");
        }
        for sound in [
            json!({"type": ["string", "null"], "minLength": 2.0, "items": [true]}),
            json!({"properties": {"multipleOf": {"type": "number"}}, "const": {"minLength": -1}}),
            json!(true),
        ] {
            check(&sound).expect("it is sound");
        }
    }
}
