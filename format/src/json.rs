//! JSON that does not forgive one key twice.
//!
//! `serde_json` keeps the last of two equal keys in silence. In a header or a configuration that
//! is two files in one, so every JSON file of a checkpoint is read through [`parse`].

use crate::{FormatError, Result};
use serde::de::{self, DeserializeSeed, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use std::fmt;

/// How a duplicate key is recognised in the parser's message.
const DUPLICATE: &str = "duplicate key `";

/// Parses a whole JSON text; a key given twice in one object is an error.
pub fn parse(file: &str, bytes: &[u8]) -> Result<Value> {
    parse_text(bytes).map_err(|problem| FormatError::Json { file: file.into(), problem })
}

/// [`parse`] without the file's name: the message alone.
pub(crate) fn parse_text(bytes: &[u8]) -> Result<Value, String> {
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let value = Strict.deserialize(&mut deserializer).map_err(|error| error.to_string())?;
    deserializer.end().map_err(|error| error.to_string())?;
    Ok(value)
}

/// The key that a message of [`parse_text`] says was given twice.
pub(crate) fn duplicate_in(message: &str) -> Option<&str> {
    let rest = &message[message.find(DUPLICATE)? + DUPLICATE.len()..];
    Some(&rest[..rest.rfind("` at line").or_else(|| rest.rfind('`'))?])
}

struct Strict;

impl<'de> DeserializeSeed<'de> for Strict {
    type Value = Value;

    fn deserialize<D: de::Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict {
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
        while let Some(item) = sequence.next_element_seed(Strict)? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            let value = entries.next_value_seed(Strict)?;
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
    fn order_and_numbers_survive() {
        let text = r#"{"z":1,"a":[1.5,-2,18446744073709551615,null,true],"k":{"y":"ü"}}"#;
        assert_eq!(parse_text(text.as_bytes()).unwrap().to_string(), text);
        assert!(parse_text(b"{} x").is_err());
    }
}
