//! The body of a call, `{key:value,…}`, written anew as JSON.
//!
//! It is JSON with bare keys and with `<|"|>` as the quotation mark. Inside such a string nothing
//! is escaped, so it may hold anything but that token. JSON's own strings are taken too, as keys
//! and as values.

use std::collections::HashMap;

use super::super::markers::QUOTE;

/// Deepest nesting taken; more than that most JSON readers refuse as well.
const DEEPEST: usize = 100;

/// The JSON text of one object, or `None` if the text is anything else. Of a key that comes twice the
/// last value counts, as for most readers of JSON.
pub(super) fn object_to_json(text: &str) -> Option<String> {
    let mut reader = Reader { rest: text, json: String::with_capacity(text.len()) };
    reader.object(DEEPEST)?;
    reader.skip_space();
    reader.rest.is_empty().then_some(reader.json)
}

struct Reader<'t> {
    rest: &'t str,
    json: String,
}

impl<'t> Reader<'t> {
    fn skip_space(&mut self) {
        self.rest = self.rest.trim_start();
    }

    /// Takes `token` if it comes next, white space before it aside.
    fn take(&mut self, token: &str) -> bool {
        self.skip_space();
        match self.rest.strip_prefix(token) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn value(&mut self, depth: usize) -> Option<()> {
        self.skip_space();
        match self.rest.chars().next()? {
            '{' => self.object(depth.checked_sub(1)?),
            '[' => self.array(depth.checked_sub(1)?),
            '<' | '"' => {
                let text = self.string()?;
                self.write_string(&text)
            }
            _ => self.word(),
        }
    }

    fn object(&mut self, depth: usize) -> Option<()> {
        let mut pairs: Vec<(String, String)> = Vec::new();
        let mut places: HashMap<String, usize> = HashMap::new();
        self.items('{', '}', |reader| {
            let key = reader.key()?;
            let start = reader.json.len();
            reader.value(depth)?;
            let value = reader.json.split_off(start);
            let place = *places.entry(key.clone()).or_insert(pairs.len());
            match pairs.get_mut(place) {
                Some(earlier) => earlier.1 = value,
                None => pairs.push((serde_json::to_string(&key).ok()?, value)),
            }
            Some(())
        })?;
        let pairs: Vec<String> =
            pairs.into_iter().map(|(key, value)| format!("{key}:{value}")).collect();
        self.json.push_str(&format!("{{{}}}", pairs.join(",")));
        Some(())
    }

    fn array(&mut self, depth: usize) -> Option<()> {
        let mut items = Vec::new();
        self.items('[', ']', |reader| {
            let start = reader.json.len();
            reader.value(depth)?;
            items.push(reader.json.split_off(start));
            Some(())
        })?;
        self.json.push_str(&format!("[{}]", items.join(",")));
        Some(())
    }

    /// What stands between two brackets, separated by commas.
    fn items(
        &mut self,
        open: char,
        close: char,
        mut item: impl FnMut(&mut Self) -> Option<()>,
    ) -> Option<()> {
        self.take(open.encode_utf8(&mut [0; 4])).then_some(())?;
        if self.take(close.encode_utf8(&mut [0; 4])) {
            return Some(());
        }
        loop {
            item(self)?;
            if !self.take(",") {
                return self.take(close.encode_utf8(&mut [0; 4])).then_some(());
            }
        }
    }

    /// A key with the colon behind it.
    fn key(&mut self) -> Option<String> {
        self.skip_space();
        let key = if self.rest.starts_with(QUOTE) || self.rest.starts_with('"') {
            self.string()?
        } else {
            let end = self.rest.find([':', ',', '{', '}', '[', ']', '<', '"'])?;
            let (key, rest) = self.rest.split_at(end);
            self.rest = rest;
            key.trim_end().to_owned()
        };
        (!key.is_empty() && self.take(":")).then_some(key)
    }

    /// A string between two `<|"|>`, or one of JSON's.
    fn string(&mut self) -> Option<String> {
        if let Some(rest) = self.rest.strip_prefix(QUOTE) {
            let end = rest.find(QUOTE)?;
            self.rest = &rest[end + QUOTE.len()..];
            return Some(rest[..end].to_owned());
        }
        let mut reader = serde_json::Deserializer::from_str(self.rest).into_iter::<String>();
        let text = reader.next()?.ok()?;
        self.rest = &self.rest[reader.byte_offset()..];
        Some(text)
    }

    /// `true`, `false`, `null` or a number.
    fn word(&mut self) -> Option<()> {
        let end = self
            .rest
            .find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.')))
            .unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        let known = matches!(word, "true" | "false" | "null")
            || serde_json::from_str::<serde_json::Number>(word).is_ok();
        known.then_some(())?;
        self.json.push_str(word);
        self.rest = rest;
        Some(())
    }

    fn write_string(&mut self, text: &str) -> Option<()> {
        self.json.push_str(&serde_json::to_string(text).ok()?);
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn parsed(text: &str) -> Option<Value> {
        object_to_json(text).map(|json| serde_json::from_str(&json).expect("JSON was written"))
    }

    #[test]
    fn strings_hold_anything() {
        let text = "{code:<|\"|>def f() { return \"}\" }\n\\ ,:[<|\"|>,o:{a:[{b:1}],c:null}}";
        let expected =
            json!({"code": "def f() { return \"}\" }\n\\ ,:[", "o": {"a": [{"b": 1}], "c": null}});
        assert_eq!(parsed(text), Some(expected));
    }

    #[test]
    fn numbers_stay_digit_for_digit_and_keys_in_order() {
        let text = "{z:123456789012345678901234567890, a:-1.50 ,f:1e-05,m:3}";
        let expected = r#"{"z":123456789012345678901234567890,"a":-1.50,"f":1e-05,"m":3}"#;
        assert_eq!(object_to_json(text).as_deref(), Some(expected));
    }

    #[test]
    fn quoted_keys_and_json_strings_are_taken() {
        let text = "{<|\"|>a:b<|\"|>:\"x\\ny}\",\"c\":[],-d.e f:{ }}";
        assert_eq!(parsed(text), Some(json!({"a:b": "x\ny}", "c": [], "-d.e f": {}})));
    }

    #[test]
    fn of_a_key_that_comes_twice_the_last_value_counts() {
        assert_eq!(
            object_to_json("{a:1,b:[],a:{c:1,c:2}}").as_deref(),
            Some(r#"{"a":{"c":2},"b":[]}"#)
        );
    }

    #[test]
    fn broken_bodies_are_refused() {
        let bodies = [
            "",
            "{",
            "}",
            "{a}",
            "{a:}",
            "{:1}",
            "{a:1,}",
            "{a:1}{",
            "{a:1}x",
            "[1]",
            "{a:Paris}",
            "{a:<|\"|>x}",
            "{a:01}",
            "{a:1e999}",
            "{a:[1 2]}",
            "{a:nan}",
            "{a:\"x}",
        ];
        for body in bodies {
            assert_eq!(object_to_json(body), None, "{body}");
        }
        let deep = format!("{{a:{}1{}}}", "[".repeat(5000), "]".repeat(5000));
        assert_eq!(object_to_json(&deep), None);
    }

    proptest! {
        #[test]
        fn soup_gives_json_or_nothing(pieces in proptest::collection::vec(
            proptest::sample::select(vec!["{", "}", "[", "]", ":", ",", "<|\"|>", "\"", "a", "1", ".", "-",
                "true", "null", " ", "é", "\\", "<", "\u{0}"]), 0..40)) {
            let text = pieces.concat();
            if let Some(json) = object_to_json(&text) {
                let value: Value = serde_json::from_str(&json).expect("JSON was written");
                prop_assert!(value.is_object());
            }
        }
    }
}
