//! JSON that does not forgive one key twice.
//!
//! `serde_json` keeps the last of two equal keys in silence. In a header or a configuration that
//! is two files in one, so every JSON file of a checkpoint is read through [`parse`].

use crate::{FormatError, Result};
use serde::de::{self, DeserializeSeed, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use std::cell::Cell;
use std::fmt;

/// More values than any checkpoint's JSON has (E2B's header: 20,000): a hostile file of a few MB
/// could otherwise ask for gigabytes.
const VALUE_LIMIT: usize = 1_000_000;

/// How a duplicate key is recognised in the parser's message.
const DUPLICATE: &str = "duplicate key `";

/// Parses a whole JSON text; a key given twice in one object is an error.
pub fn parse(file: &str, bytes: &[u8]) -> Result<Value> {
    parse_text(bytes).map_err(|problem| FormatError::Json { file: file.into(), problem })
}

/// [`parse`] without the file's name: the message alone.
pub(crate) fn parse_text(bytes: &[u8]) -> Result<Value, String> {
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let left = Cell::new(VALUE_LIMIT);
    let strict = Strict { left: &left };
    let value = strict.deserialize(&mut deserializer).map_err(|error| error.to_string())?;
    deserializer.end().map_err(|error| error.to_string())?;
    Ok(value)
}

/// The key that a message of [`parse_text`] says was given twice.
pub(crate) fn duplicate_in(message: &str) -> Option<&str> {
    let rest = &message[message.find(DUPLICATE)? + DUPLICATE.len()..];
    Some(&rest[..rest.rfind("` at line").or_else(|| rest.rfind('`'))?])
}

/// Counts values down, and looks for keys that were there before.
#[derive(Clone, Copy)]
struct Strict<'a> {
    left: &'a Cell<usize>,
}

impl<'de> DeserializeSeed<'de> for Strict<'_> {
    type Value = Value;

    fn deserialize<D: de::Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        let Some(left) = self.left.get().checked_sub(1) else {
            return Err(de::Error::custom(format!("it holds more than {VALUE_LIMIT} values")));
        };
        self.left.set(left);
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict<'_> {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("a number out of range"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.into()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = sequence.next_element_seed(self)? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            let value = entries.next_value_seed(self)?;
            if map.contains_key(&key) {
                return Err(de::Error::custom(format!("{DUPLICATE}{key}`")));
            }
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_given_twice_is_named() {
        let message = parse_text(br#"{"a": {"we`ird": 1, "we`ird": 2}}"#).unwrap_err();
        assert_eq!(duplicate_in(&message), Some("we`ird"));
    }

    #[test]
    fn a_flood_of_values_is_refused() {
        let flood = format!("[{}0]", "0,".repeat(VALUE_LIMIT));
        assert!(parse_text(flood.as_bytes()).unwrap_err().contains("more than 1000000 values"));
    }

    #[test]
    fn order_and_numbers_survive() {
        let text = r#"{"z":1,"a":[1.5,-2,18446744073709551615,null,true],"k":{"y":"ü"}}"#;
        assert_eq!(parse_text(text.as_bytes()).unwrap().to_string(), text);
        assert!(parse_text(b"{} x").is_err());
    }
}
