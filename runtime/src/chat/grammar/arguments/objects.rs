//! Objects: their keys in the order in which Gemma's template writes them.

use serde_json::{Map, Value};

use super::{Arguments, DEEPEST_FREE_VALUE, Expression, sorted};
use crate::chat::grammar::keywords::child;
use crate::chat::grammar::lark::{escaped, literal};
use crate::chat::markers::QUOTE;

/// A key that the model makes up.
const FREE_KEY: &str = r"[a-zA-Z_][a-zA-Z0-9_.\-]{0,63}";

impl Arguments<'_> {
    pub(super) fn object(&mut self, fields: &Map<String, Value>, pointer: &str) -> Expression {
        for keyword in ["patternProperties", "minProperties", "maxProperties"] {
            let asks = match fields.get(keyword) {
                None => false,
                Some(value) => !(keyword == "minProperties" && value == 0),
            };
            if asks {
                self.unsupported.push(child(pointer, keyword));
            }
        }
        let none = Map::new();
        let properties = fields.get("properties").and_then(Value::as_object);
        let required: Vec<&str> = fields
            .get("required")
            .and_then(Value::as_array)
            .map(|names| names.iter().filter_map(Value::as_str).collect())
            .unwrap_or_default();
        let additional = match (fields.get("additionalProperties"), properties) {
            (Some(Value::Bool(true)), _) | (None, None) => Some(Value::Bool(true)),
            (None, Some(_)) | (Some(Value::Bool(false)), _) => None,
            (Some(schema), _) => Some(schema.clone()),
        };
        let properties = properties.unwrap_or(&none);
        let undeclared = required.iter().filter(|name| !properties.contains_key(**name));
        let mut names: Vec<&str> = properties.keys().map(String::as_str).collect();
        names.extend(undeclared);
        let mut pairs = Vec::new();
        for name in sorted(names.into_iter()) {
            let must = required.contains(&name);
            let value = match (properties.get(name), &additional) {
                (Some(schema), _) => {
                    self.value(schema, &child(&child(pointer, "properties"), name))
                }
                (None, Some(schema)) => {
                    let schema = schema.clone();
                    self.value(&schema, &child(pointer, "additionalProperties"))
                }
                (None, None) => None,
            };
            match (self.key(name), value) {
                (Some(key), Some(value)) => pairs.push((format!("{key} {value}"), must)),
                _ if must => return None,
                // A property that no value fits is left out.
                _ => {}
            }
        }
        let more = match additional {
            None => None,
            Some(schema) => {
                let taken: Vec<&str> = pairs_names(properties, &required);
                let value = match &schema {
                    Value::Bool(true) => Some(self.free_value(DEEPEST_FREE_VALUE - 1)),
                    schema => self.value(schema, &child(pointer, "additionalProperties")),
                };
                value.map(|value| format!("{} \":\" {value}", self.free_key(&taken)))
            }
        };
        Some(self.pairs(&pairs, more.as_deref()))
    }

    /// The rule of an object: its pairs in order, those that are not required may be missing, and
    /// commas only between those that are there.
    fn pairs(&mut self, pairs: &[(String, bool)], more: Option<&str>) -> String {
        // From the end: what may follow when nothing, and when something, has been written.
        let (mut first, mut next) = match more {
            Some(more) => {
                let more = self.lark.new_rule(more);
                (format!("({more} (\",\" {more})*)?"), format!("(\",\" {more})*"))
            }
            None => ("\"\"".to_owned(), "\"\"".to_owned()),
        };
        for (pair, required) in pairs.iter().rev() {
            let rest = self.lark.new_rule(&next);
            if *required {
                first = format!("{pair} {rest}");
                next = format!("\",\" {pair} {rest}");
            } else {
                let without = self.lark.new_rule(&first);
                first = format!("{pair} {rest} | {without}");
                next = format!("(\",\" {pair})? {rest}");
            }
        }
        let body = self.lark.new_rule(&first);
        self.lark.new_rule(&format!("\"{{\" {body} \"}}\""))
    }

    /// A key with its colon: bare where it can stand so, else between quotation tokens. `None` for one
    /// that cannot be written.
    pub(super) fn key(&self, name: &str) -> Expression {
        let ends_a_bare_key = |c: char| matches!(c, ':' | ',' | '{' | '}' | '[' | ']' | '<' | '"');
        if name.is_empty() || name.contains(QUOTE) {
            return None;
        }
        Some(if name.trim() == name && !name.contains(ends_a_bare_key) {
            literal(&format!("{name}:"))
        } else {
            format!("{quote} {} {quote} \":\"", literal(name), quote = self.lark.quote)
        })
    }

    /// The terminal of a key that is none of `taken`.
    pub(super) fn free_key(&mut self, taken: &[&str]) -> String {
        let free = format!("/{FREE_KEY}/");
        if taken.is_empty() {
            return self.lark.shared("key", |lark| lark.new_terminal(&free));
        }
        let taken: Vec<String> = taken.iter().map(|name| escaped(name)).collect();
        self.lark.new_terminal(&format!("{free} & ~/({})/", taken.join("|")))
    }
}

fn pairs_names<'n>(properties: &'n Map<String, Value>, required: &[&'n str]) -> Vec<&'n str> {
    let mut names: Vec<&str> = properties.keys().map(String::as_str).collect();
    names.extend(required);
    names.sort_unstable();
    names.dedup();
    names
}
