//! Numbers of a call.

use serde_json::{Map, Value, json};

use super::{Arguments, Expression};

/// Beyond this no bound is worth a digit: f64 still tells whole numbers apart here.
const LARGEST: f64 = 9e15;
/// Any number that every reader of JSON can hold: the exponent has two digits at most.
const NUMBER: &str = r"/-?(0|[1-9][0-9]{0,15})(\.[0-9]{1,15})?([eE][+\-]?[0-9]{1,2})?/";
/// Any whole number that f64 holds exactly.
const INTEGER: &str = r"/-?(0|[1-9][0-9]{0,14})/";

impl Arguments<'_> {
    /// A number; one with bounds is left to llguidance, whose numbers are written as Gemma's are.
    pub(super) fn number(&mut self, kind: &str, fields: &Map<String, Value>) -> Expression {
        let bounds = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"];
        let given: Map<String, Value> = bounds
            .into_iter()
            .filter_map(|bound| Some((bound.to_owned(), fields.get(bound)?.clone())))
            .collect();
        if given.is_empty() {
            let (name, pattern) = match kind {
                "integer" => ("integer", INTEGER),
                _ => ("number", NUMBER),
            };
            return Some(self.lark.shared(name, |lark| lark.new_terminal(pattern)));
        }
        let mut schema = given;
        let has = |schema: &Map<String, Value>, a: &str, b: &str| {
            schema.contains_key(a) || schema.contains_key(b)
        };
        // Without a bound the digits would have none either.
        if !has(&schema, "minimum", "exclusiveMinimum") {
            schema.insert("minimum".to_owned(), edge(-LARGEST, kind));
        }
        if !has(&schema, "maximum", "exclusiveMaximum") {
            schema.insert("maximum".to_owned(), edge(LARGEST, kind));
        }
        schema.insert("type".to_owned(), kind.into());
        schema.insert("x-guidance".to_owned(), json!({"whitespace_flexible": false}));
        Some(self.lark.new_rule(&format!("%json {}", Value::Object(schema))))
    }
}

fn edge(value: f64, kind: &str) -> Value {
    match kind {
        "integer" => json!(value as i64),
        _ => json!(value),
    }
}
