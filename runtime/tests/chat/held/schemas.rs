//! Random JSON schemas, of all that is enforced both in JSON and in calls.

use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Map, Value, json};

/// The schema of an object with some properties.
pub fn object() -> BoxedStrategy<Value> {
    object_of(any(2))
}

/// Any schema, nested so deep at most.
pub fn any(depth: u32) -> BoxedStrategy<Value> {
    let leaf = prop_oneof![text(), number(), fixed()].boxed();
    leaf.prop_recursive(depth, 24, 4, |inner| {
        prop_oneof![
            object_of(inner.clone()),
            array(inner.clone()),
            tuple(inner.clone()),
            prop::collection::vec(inner, 1..3).prop_map(|options| json!({"anyOf": options})),
        ]
    })
    .boxed()
}

fn text() -> BoxedStrategy<Value> {
    let formats = vec!["date", "time", "date-time", "email", "hostname", "ipv4", "uuid", "uri"];
    let patterns = vec!["^[A-Z]{2,4}$", "[0-9]+", "^a.{0,3}/z$", "^(yes|no)$", "x|y"];
    prop_oneof![
        Just(json!({"type": "string"})),
        (0u64..4, 0u64..5).prop_map(
            |(least, more)| json!({"type": "string", "minLength": least, "maxLength": least + more})
        ),
        (1u64..4)
            .prop_map(|least| json!({"type": "string", "minLength": least, "description": "d"})),
        select(formats).prop_map(|format| json!({"type": "string", "format": format})),
        select(patterns).prop_map(|pattern| json!({"type": "string", "pattern": pattern})),
        prop::collection::vec("[a-z{}:,\"\\\\ <|>é\n]{0,6}", 1..4)
            .prop_map(|values| json!({"type": "string", "enum": values})),
    ]
    .boxed()
}

fn number() -> BoxedStrategy<Value> {
    prop_oneof![
        Just(json!({"type": "integer"})),
        Just(json!({"type": "number"})),
        (-50i64..50, 0i64..60).prop_map(|(least, more)| json!({"type": "integer", "minimum": least, "maximum": least + more})),
        (-50i64..50).prop_map(|least| json!({"type": "integer", "exclusiveMinimum": least})),
        (-50i64..50).prop_map(|most| json!({"type": "number", "maximum": most})),
        (-50i64..50, 1i64..60).prop_map(|(least, more)| json!({"type": "number", "exclusiveMinimum": least, "maximum": least + more})),
        // Bounded: of a number with thirty digits the reader here forgets half.
        (2u64..9).prop_map(|step| {
            json!({"type": "integer", "multipleOf": step, "minimum": -10_000, "maximum": 10_000})
        }),
    ]
    .boxed()
}

fn fixed() -> BoxedStrategy<Value> {
    prop_oneof![
        Just(json!({"type": "boolean"})),
        Just(json!({"type": "null"})),
        Just(json!({})),
        Just(json!(true)),
        Just(json!({"type": "object"})),
        Just(json!({"type": ["string", "null"]})),
        Just(json!({"type": ["integer", "boolean", "array"], "items": {"type": "null"}})),
        Just(json!({"const": {"a": [1, "x", null], "B": {"c": true}}})),
        Just(json!({"enum": [1, -2.5, "one", null, ["a"], false]})),
        Just(json!({"oneOf": [{"type": "string"}, {"type": "integer"}]})),
        Just(json!({"allOf": [{"type": "string", "maxLength": 3}], "title": "T"})),
    ]
    .boxed()
}

fn array(items: BoxedStrategy<Value>) -> BoxedStrategy<Value> {
    (items, 0u64..3, prop::option::of(0u64..3))
        .prop_map(|(items, least, more)| {
            let mut schema = json!({"type": "array", "items": items, "minItems": least});
            if let Some(more) = more {
                schema["maxItems"] = (least + more).into();
            }
            schema
        })
        .boxed()
}

fn tuple(items: BoxedStrategy<Value>) -> BoxedStrategy<Value> {
    prop::collection::vec(items, 1..3)
        .prop_map(|items| json!({"type": "array", "prefixItems": items, "items": false}))
        .boxed()
}

fn object_of(values: BoxedStrategy<Value>) -> BoxedStrategy<Value> {
    let names =
        vec!["city", "City2", "a", "b-c.d", "with space", "a:b", "quo\"te", "é", "type", "<x>"];
    let property = (select(names), values.clone(), any_bool());
    let additional = prop_oneof![
        3 => Just(None),
        1 => Just(Some(json!(false))),
        1 => Just(Some(json!(true))),
        1 => values.prop_map(Some),
    ];
    (prop::collection::vec(property, 0..4), additional)
        .prop_map(|(listed, additional)| {
            let mut properties = Map::new();
            let mut required: Vec<&str> = Vec::new();
            for (name, schema, must) in listed {
                if must && !required.contains(&name) {
                    required.push(name);
                }
                properties.insert(name.to_owned(), schema);
            }
            let mut schema =
                json!({"type": "object", "properties": properties, "required": required});
            if let Some(additional) = additional {
                schema["additionalProperties"] = additional;
            }
            schema
        })
        .boxed()
}

fn any_bool() -> impl Strategy<Value = bool> {
    proptest::bool::ANY
}
