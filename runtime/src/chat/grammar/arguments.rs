//! A JSON schema as a grammar of Gemma 4's argument syntax: `{key:value,…}` with bare keys, strings
//! between two `<|"|>` in which nothing is escaped, and no white space.
//!
//! What the grammar allows always validates against the schema. It need not allow all that would:
//! keys come in the order in which Gemma's template writes them (sorted, case aside), an object whose
//! properties are declared gets no others, and numbers have no more digits than readers can hold.

mod arrays;
mod disjoint;
mod numbers;
mod objects;
mod strings;
mod types;

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::keywords::{child, is_annotation};
use super::lark::{Lark, literal};
use crate::chat::markers::QUOTE;
use disjoint::are_disjoint;
use types::{implied, is_of, of_type, types};

/// How deep a value without a schema may nest.
const DEEPEST_FREE_VALUE: usize = 6;
/// How deep schemas may nest, references followed.
const DEEPEST_SCHEMA: usize = 64;

/// All types of JSON.
const TYPES: [&str; 6] = ["null", "boolean", "number", "string", "array", "object"];

/// Writes the grammar of one tool's arguments.
pub(super) struct Arguments<'l> {
    lark: &'l mut Lark,
    root: Value,
    /// References that are being followed.
    following: Vec<String>,
    unsupported: Vec<String>,
    depth: usize,
}

/// An expression of the grammar; `None` where no value can match.
type Expression = Option<String>;

impl<'l> Arguments<'l> {
    pub(super) fn new(lark: &'l mut Lark) -> Self {
        Self { lark, root: Value::Null, following: Vec::new(), unsupported: Vec::new(), depth: 0 }
    }

    /// JSON pointers to what cannot be enforced.
    pub(super) fn into_unsupported(mut self) -> Vec<String> {
        // What several references lead to is met several times.
        let mut seen = HashSet::new();
        self.unsupported.retain(|pointer| seen.insert(pointer.clone()));
        self.unsupported
    }

    /// Any object.
    pub(super) fn any_object(&mut self) -> String {
        self.free_object(DEEPEST_FREE_VALUE)
    }

    /// The object of a tool's parameters. The schema of no parameters at all is often written as an
    /// empty one.
    pub(super) fn object_of(&mut self, schema: &Value) -> Expression {
        self.root = schema.clone();
        match schema {
            Value::Object(fields) if fields.is_empty() => Some(literal("{}")),
            Value::Object(fields) if fields.get("type").is_none_or(|kind| kind == "object") => {
                let mut fields = fields.clone();
                fields.insert("type".to_owned(), "object".into());
                self.value(&fields.into(), "")
            }
            _ => {
                self.unsupported.push("/type".to_owned());
                None
            }
        }
    }

    fn value(&mut self, schema: &Value, pointer: &str) -> Expression {
        self.depth += 1;
        let expression = match schema {
            Value::Bool(true) => Some(self.free_value(DEEPEST_FREE_VALUE)),
            Value::Object(_) if self.depth > DEEPEST_SCHEMA => {
                self.unsupported.push(pointer.to_owned());
                None
            }
            Value::Object(fields) => self.of_keywords(fields, pointer),
            _ => None,
        };
        self.depth -= 1;
        expression
    }

    /// Keywords that decide alone come first; the others belong to types.
    fn of_keywords(&mut self, fields: &Map<String, Value>, pointer: &str) -> Expression {
        let deciding = ["$ref", "allOf", "anyOf", "oneOf", "const", "enum"];
        let Some(keyword) = deciding.into_iter().find(|keyword| fields.contains_key(*keyword))
        else {
            return self.of_types(fields, pointer);
        };
        let value = &fields[keyword];
        let place = child(pointer, keyword);
        let literals = matches!(keyword, "const" | "enum");
        for other in fields.keys() {
            // The type of a listed value can be looked at; anything else beside would have to be
            // worked into every alternative.
            let looked_at = other == keyword || (literals && other == "type");
            if !looked_at && !is_annotation(other) {
                self.unsupported.push(child(pointer, other));
            }
        }
        match (keyword, value) {
            ("$ref", Value::String(reference)) => self.reference(reference, &place),
            ("allOf", Value::Array(items)) if items.len() == 1 => {
                self.value(&items[0], &child(&place, "0"))
            }
            ("anyOf", Value::Array(items)) => self.alternatives(items, &place),
            ("oneOf", Value::Array(items)) if are_disjoint(items) => {
                self.alternatives(items, &place)
            }
            ("const", value) => self.listed(std::slice::from_ref(value), fields),
            ("enum", Value::Array(values)) => self.listed(values, fields),
            _ => {
                self.unsupported.push(place);
                None
            }
        }
    }

    fn reference(&mut self, reference: &str, place: &str) -> Expression {
        let target = match reference.strip_prefix('#') {
            Some("") => Some(self.root.clone()),
            Some(pointer) => self.root.pointer(pointer).cloned(),
            None => None,
        };
        let Some(target) = target.filter(|_| !self.following.iter().any(|open| open == reference))
        else {
            self.unsupported.push(place.to_owned());
            return None;
        };
        self.following.push(reference.to_owned());
        let expression = self.value(&target, &reference[1..]);
        self.following.pop();
        expression
    }

    fn alternatives(&mut self, schemas: &[Value], pointer: &str) -> Expression {
        let values = schemas
            .iter()
            .enumerate()
            .filter_map(|(index, schema)| self.value(schema, &child(pointer, &index.to_string())))
            .collect();
        self.any_of(values)
    }

    fn any_of(&mut self, mut expressions: Vec<String>) -> Expression {
        match expressions.len() {
            0 => None,
            1 => expressions.pop(),
            _ => Some(self.lark.new_rule(&expressions.join(" | "))),
        }
    }

    /// Given values, those of the wrong type left out.
    fn listed(&mut self, values: &[Value], fields: &Map<String, Value>) -> Expression {
        let types = types(fields);
        let fits = |value: &&Value| {
            types.as_ref().is_none_or(|types| types.iter().any(|kind| is_of(value, kind)))
        };
        let values = values.iter().filter(fits);
        let (texts, others): (Vec<&Value>, Vec<&Value>) =
            values.partition(|value| value.is_string());
        let mut written: Vec<String> =
            others.into_iter().filter_map(|value| self.written(value)).collect();
        written.extend(self.one_text_of(texts.into_iter().filter_map(Value::as_str)));
        self.any_of(written)
    }

    /// One of several texts, as one terminal: thousands of rules would be thousands of ways at once.
    fn one_text_of<'v>(&mut self, texts: impl Iterator<Item = &'v str>) -> Expression {
        let (empty, texts): (Vec<&str>, Vec<&str>) =
            texts.filter(|text| !text.contains(QUOTE)).partition(|text| text.is_empty());
        let quote = self.lark.quote.clone();
        if texts.is_empty() {
            return (!empty.is_empty()).then(|| format!("{quote} {quote}"));
        }
        let literals: Vec<String> = texts.into_iter().map(literal).collect();
        let terminal = self.lark.new_terminal(&literals.join(" | "));
        let optional = if empty.is_empty() { "" } else { "?" };
        Some(format!("{quote} {terminal}{optional} {quote}"))
    }

    /// One given value, as the template would write it. `None` for a string that holds the quotation
    /// token: it cannot be written at all.
    fn written(&mut self, value: &Value) -> Expression {
        Some(match value {
            Value::String(text) if text.contains(QUOTE) => return None,
            Value::String(text) => {
                format!("{quote} {} {quote}", literal(text), quote = self.lark.quote)
            }
            Value::Array(items) => {
                let items: Option<Vec<String>> =
                    items.iter().map(|item| self.written(item)).collect();
                format!("\"[\" {} \"]\"", items?.join(" \",\" "))
            }
            Value::Object(fields) => {
                let fields: Option<Vec<String>> = sorted(fields.keys())
                    .into_iter()
                    .map(|key| Some(format!("{} {}", self.key(key)?, self.written(&fields[key])?)))
                    .collect();
                format!("\"{{\" {} \"}}\"", fields?.join(" \",\" "))
            }
            other => literal(&other.to_string()),
        })
    }

    fn of_types(&mut self, fields: &Map<String, Value>, pointer: &str) -> Expression {
        let listed = types(fields);
        let types: Vec<&str> = match &listed {
            Some(types) => types.clone(),
            // Without a type the keywords tell which one is meant.
            None => match implied(fields) {
                Some(kind) => vec![kind],
                None if fields.keys().all(|keyword| is_annotation(keyword)) => {
                    return Some(self.free_value(DEEPEST_FREE_VALUE));
                }
                None => TYPES.to_vec(),
            },
        };
        for keyword in fields.keys() {
            let known = keyword == "type" || is_annotation(keyword);
            // A keyword of another type than the value's says nothing.
            let belongs = of_type(keyword);
            if !known && belongs.is_none() {
                self.unsupported.push(child(pointer, keyword));
            }
        }
        let values = types
            .into_iter()
            .filter_map(|kind| match kind {
                "null" => Some(literal("null")),
                "boolean" => Some("(\"true\" | \"false\")".to_owned()),
                "integer" | "number" => self.number(kind, fields),
                "string" => self.string(fields, pointer),
                "array" => self.array(fields, pointer),
                "object" => self.object(fields, pointer),
                _ => {
                    self.unsupported.push(child(pointer, "type"));
                    None
                }
            })
            .collect();
        self.any_of(values)
    }

    /// Any value, nested so deep at most.
    fn free_value(&mut self, depth: usize) -> String {
        let name = format!("value{depth}");
        if let Some(rule) = self.lark.known(&name) {
            return rule;
        }
        let none = Map::new();
        let scalars = [
            self.string(&none, "").unwrap_or_default(),
            self.number("number", &none).unwrap_or_default(),
            "\"true\" | \"false\" | \"null\"".to_owned(),
        ];
        let mut options = scalars.join(" | ");
        if depth > 0 {
            let item = self.free_value(depth - 1);
            let object = self.free_object(depth - 1);
            options = format!("{options} | \"[\" ({item} (\",\" {item})*)? \"]\" | {object}");
        }
        self.lark.shared(&name, |lark| lark.new_rule(&options))
    }

    /// Any object; its values are nested so deep at most.
    fn free_object(&mut self, depth: usize) -> String {
        let (key, value) = (self.free_key(&[]), self.free_value(depth));
        self.lark.shared(&format!("object{depth}"), |lark| {
            let pair = lark.new_rule(&format!("{key} \":\" {value}"));
            lark.new_rule(&format!("\"{{\" ({pair} (\",\" {pair})*)? \"}}\""))
        })
    }
}

/// As Jinja's `dictsort` orders: by lower case.
fn sorted<'k, K: AsRef<str> + ?Sized + 'k>(keys: impl Iterator<Item = &'k K>) -> Vec<&'k str> {
    let mut keys: Vec<&str> = keys.map(AsRef::as_ref).collect();
    keys.sort_by_key(|key| key.to_lowercase());
    keys.dedup();
    keys
}
