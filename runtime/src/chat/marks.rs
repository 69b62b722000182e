//! Text of users, marked before a template is rendered, so that what they wrote can be told from
//! what the template wrote.
//!
//! Behind every character that may begin a control token a [`MARK`] is set. `<turn|>` typed by a
//! user is then no control token in the rendered text, however the template joins, trims, sorts or
//! compares its values:
//!
//! - no two texts become equal, and their order stays the same (the mark follows the character it
//!   belongs to, so the first difference decides as before);
//! - neither end of a text changes as far as trimming is concerned;
//! - a control token that only forms when the template joins two texts (`<tu` and `rn|>`) holds a
//!   mark too.
//!
//! A mark in the user's own text is doubled, so [`unmarked`] gives every text back.

use serde_json::{Map, Value};

use super::control::ControlTokens;

/// A code point that Unicode keeps free for uses like this one: no text ought to hold it.
const MARK: char = '\u{FDD0}';

/// A copy of `text` with its marks.
fn marked(text: &str, control: &ControlTokens) -> String {
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        out.push(c);
        if c == MARK || control.may_begin_with(c) {
            out.push(MARK);
        }
    }
    out
}

/// A copy of `value` in which every text and every key is marked.
pub(super) fn marked_value(value: &Value, control: &ControlTokens) -> Value {
    match value {
        Value::String(text) => Value::String(marked(text, control)),
        Value::Array(items) => items.iter().map(|item| marked_value(item, control)).collect(),
        Value::Object(fields) => Value::Object(marked_map(fields, control)),
        other => other.clone(),
    }
}

/// [`marked_value`] of an object.
pub(super) fn marked_map(
    fields: &Map<String, Value>,
    control: &ControlTokens,
) -> Map<String, Value> {
    let field =
        |(key, value): (&String, &Value)| (marked(key, control), marked_value(value, control));
    fields.iter().map(field).collect()
}

/// The text without its marks.
pub(super) fn unmarked(text: &str, control: &ControlTokens) -> String {
    let mut out = String::with_capacity(text.len());
    let mut characters = text.chars().peekable();
    while let Some(c) = characters.next() {
        out.push(c);
        if c == MARK || control.may_begin_with(c) {
            // Missing only behind a character that the template wrote.
            characters.next_if_eq(&MARK);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tokenizers::AddedToken;

    fn control() -> ControlTokens {
        let token = AddedToken::from("<turn|>", true);
        ControlTokens::among([(0, &token)].into_iter(), &[], "tokenizer.json").expect("plain")
    }

    proptest! {
        #[test]
        fn marks_come_off_again(text in "[<a\u{FDD0} é>]{0,12}") {
            prop_assert_eq!(unmarked(&marked(&text, &control()), &control()), text);
        }

        #[test]
        fn joined_texts_come_off_joined(one in "[<a\u{FDD0}>]{0,6}", two in "[<a\u{FDD0}>]{0,6}") {
            let joined = marked(&one, &control()) + &marked(&two, &control());
            prop_assert_eq!(unmarked(&joined, &control()), one + &two);
        }

        #[test]
        fn order_and_difference_stay(one in "[<a\u{FDD0} >]{0,6}", two in "[<a\u{FDD0} >]{0,6}") {
            let (first, second) = (marked(&one, &control()), marked(&two, &control()));
            prop_assert_eq!(first.cmp(&second), one.cmp(&two));
            prop_assert_eq!(first.trim(), marked(one.trim(), &control()));
        }

        #[test]
        fn no_marked_text_holds_a_control_token(one in "[<turn|>]{0,12}", two in "[<turn|>]{0,12}") {
            let joined = marked(&one, &control()) + &marked(&two, &control());
            prop_assert!(control().find(&joined).is_empty());
        }
    }
}
