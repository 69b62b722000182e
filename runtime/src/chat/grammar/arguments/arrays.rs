//! Arrays: given items first, then as many of one kind as are wanted.

use serde_json::{Map, Value};

use super::{Arguments, DEEPEST_FREE_VALUE, Expression};
use crate::chat::grammar::keywords::child;

impl Arguments<'_> {
    pub(super) fn array(&mut self, fields: &Map<String, Value>, pointer: &str) -> Expression {
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
