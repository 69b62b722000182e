//! A JSON schema as a grammar of Gemma 4's argument syntax: `{key:value,…}` with bare keys, strings
//! between two `<|"|>` in which nothing is escaped, and no white space.
//!
//! What the grammar allows always validates against the schema. It need not allow all that would:
//! keys come in the order in which Gemma's template writes them (sorted, case aside), an object whose
//! properties are declared gets no others, and numbers have no more digits than readers can hold.

mod numbers;
mod strings;

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::keywords::{child, is_annotation};
use super::lark::{Lark, escaped, literal};
use crate::chat::markers::QUOTE;

/// How deep a value without a schema may nest.
const DEEPEST_FREE_VALUE: usize = 6;
/// How deep schemas may nest, references followed.
const DEEPEST_SCHEMA: usize = 64;
/// A key that the model makes up.
const FREE_KEY: &str = r"[a-zA-Z_][a-zA-Z0-9_.\-]{0,63}";

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
        let written = values.iter().filter(fits).filter_map(|value| self.written(value)).collect();
        self.any_of(written)
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

    fn array(&mut self, fields: &Map<String, Value>, pointer: &str) -> Expression {
        let count = |key: &str| fields.get(key).and_then(Value::as_u64);
        let (least, most) = (count("minItems").unwrap_or(0), count("maxItems"));
        for keyword in ["uniqueItems", "additionalItems"] {
            if fields.get(keyword).is_some_and(|value| value != false) {
                self.unsupported.push(child(pointer, keyword));
            }
        }
        if most.is_some_and(|most| most < least) {
            return None;
        }
        let mut first = Vec::new();
        if let Some(Value::Array(items)) = fields.get("prefixItems") {
            let place = child(pointer, "prefixItems");
            for (index, item) in items.iter().enumerate() {
                if most.is_some_and(|most| index as u64 >= most) {
                    break;
                }
                first.push(self.value(item, &child(&place, &index.to_string()))?);
            }
        }
        let known = first.len() as u64;
        let (least, most) = (least.saturating_sub(known), most.map(|most| most - known));
        let item = match fields.get("items") {
            _ if most == Some(0) => None,
            None => Some(self.free_value(DEEPEST_FREE_VALUE - 1)),
            Some(Value::Array(_)) => {
                self.unsupported.push(child(pointer, "items"));
                return None;
            }
            Some(schema) => self.value(schema, &child(pointer, "items")),
        };
        let body = match item {
            None if least > 0 => return None,
            None => first.join(" \",\" "),
            Some(item) => items(&first, &item, least, most),
        };
        Some(self.lark.new_rule(&format!("\"[\" {body} \"]\"")))
    }

    fn object(&mut self, fields: &Map<String, Value>, pointer: &str) -> Expression {
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
    fn key(&self, name: &str) -> Expression {
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
    fn free_key(&mut self, taken: &[&str]) -> String {
        let free = format!("/{FREE_KEY}/");
        if taken.is_empty() {
            return self.lark.shared("key", |lark| lark.new_terminal(&free));
        }
        let taken: Vec<String> = taken.iter().map(|name| escaped(name)).collect();
        self.lark.new_terminal(&format!("{free} & ~/({})/", taken.join("|")))
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

/// `first` and then `least` to `most` of `item`, with commas between.
fn items(first: &[String], item: &str, least: u64, most: Option<u64>) -> String {
    let more = |least: u64, most: Option<u64>| match most {
        Some(0) => String::new(),
        Some(most) => format!("(\",\" {item}){{{least},{most}}}"),
        None => format!("(\",\" {item}){{{least},}}"),
    };
    if !first.is_empty() {
        return format!("{} {}", first.join(" \",\" "), more(least, most));
    }
    let rest = more(least.saturating_sub(1), most.map(|most| most.saturating_sub(1)));
    match least {
        0 => format!("({item} {rest})?"),
        _ => format!("{item} {rest}"),
    }
}

fn pairs_names<'n>(properties: &'n Map<String, Value>, required: &[&'n str]) -> Vec<&'n str> {
    let mut names: Vec<&str> = properties.keys().map(String::as_str).collect();
    names.extend(required);
    names.sort_unstable();
    names.dedup();
    names
}

/// As Jinja's `dictsort` orders: by lower case.
fn sorted<'k, K: AsRef<str> + ?Sized + 'k>(keys: impl Iterator<Item = &'k K>) -> Vec<&'k str> {
    let mut keys: Vec<&str> = keys.map(AsRef::as_ref).collect();
    keys.sort_by_key(|key| key.to_lowercase());
    keys.dedup();
    keys
}

/// The type or types a schema names.
fn types(fields: &Map<String, Value>) -> Option<Vec<&str>> {
    match fields.get("type")? {
        Value::String(kind) => Some(vec![kind]),
        Value::Array(kinds) => Some(kinds.iter().map(|kind| kind.as_str().unwrap_or("")).collect()),
        _ => Some(vec![""]),
    }
}

fn is_of(value: &Value, kind: &str) -> bool {
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
fn of_type(keyword: &str) -> Option<&'static str> {
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
fn implied(fields: &Map<String, Value>) -> Option<&'static str> {
    let mut kinds = fields.keys().filter_map(|keyword| of_type(keyword));
    let first = kinds.next()?;
    kinds.all(|kind| kind == first).then_some(first)
}

/// Whether no value can match two of these schemas, as far as that can be seen: by their types, by
/// listed values, or by a required property whose listed values differ.
fn are_disjoint(schemas: &[Value]) -> bool {
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
