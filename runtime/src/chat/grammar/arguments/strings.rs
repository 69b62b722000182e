//! Strings of a call, between two `<|"|>`.

use llguidance::regex_to_lark;
use serde_json::{Map, Value};

use super::super::formats;
use super::super::keywords::child;
use super::super::lark::without;
use super::{Arguments, Expression};
use crate::chat::markers::QUOTE;

impl Arguments<'_> {
    /// A string. Nothing is escaped in it, so it holds anything but the quotation token's own text.
    pub(super) fn string(&mut self, fields: &Map<String, Value>, pointer: &str) -> Expression {
        let quote = self.lark.quote.clone();
        let count = |key: &str| fields.get(key).and_then(Value::as_u64);
        let (least, most) = (count("minLength").unwrap_or(0), count("maxLength"));
        let mut parts = Vec::new();
        if least > 1 || most.is_some() {
            match most {
                Some(most) if most < least => return None,
                Some(0) => return Some(format!("{quote} {quote}")),
                Some(most) => parts.push(format!("/(?s:.{{{},{most}}})/", least.max(1))),
                None => parts.push(format!("/(?s:.{{{least},}})/")),
            }
        }
        let mut may_be_empty = least == 0;
        if let Some(pattern) = fields.get("pattern") {
            match pattern.as_str().and_then(whole_match) {
                Some(pattern) => parts.push(format!("/{pattern}/")),
                None => self.unsupported.push(child(pointer, "pattern")),
            }
            // Whether the pattern fits the empty string is not worth finding out: there is no need to
            // allow it.
            may_be_empty = false;
        }
        if let Some(format) = fields.get("format") {
            match format.as_str().and_then(formats::expression) {
                Some(expression) => parts.push(format!("/{expression}/")),
                None => self.unsupported.push(child(pointer, "format")),
            }
            may_be_empty = false;
        }
        let text = if parts.is_empty() {
            self.lark.shared("text", |lark| lark.new_terminal(&without("/(?s:.+)/", &[QUOTE])))
        } else {
            parts.push("/(?s:.+)/".to_owned());
            self.lark.new_terminal(&without(&parts.join(" & "), &[QUOTE]))
        };
        let empty = if may_be_empty { "?" } else { "" };
        Some(format!("{quote} {text}{empty} {quote}"))
    }
}

/// A pattern of JSON schema, which may match anywhere, as one for the whole string. `None` for
/// patterns whose anchors stand anywhere but at the ends, or that look around.
fn whole_match(pattern: &str) -> Option<String> {
    let (begins, rest) = match pattern.strip_prefix('^') {
        Some(rest) => (true, rest),
        None => (false, pattern),
    };
    let (ends, rest) = match rest.strip_suffix('$') {
        Some(rest) if !ends_in_escape(rest) => (true, rest),
        _ => (false, rest),
    };
    let mut escaped = false;
    let (mut class, mut group) = (false, 0usize);
    for c in rest.chars() {
        match c {
            // Borders of words, and references to groups.
            'b' | 'B' | '1'..='9' | 'k' if escaped && !class => return None,
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '[' if !class => class = true,
            ']' if class => class = false,
            '^' | '$' if !class => return None,
            '(' if !class => group += 1,
            ')' if !class => group = group.checked_sub(1)?,
            // An anchor would belong to one side alone.
            '|' if !class && group == 0 && (begins || ends) => return None,
            _ => {}
        }
    }
    if rest.contains("(?=") || rest.contains("(?!") || rest.contains("(?<") {
        return None;
    }
    let any = |wanted: bool| if wanted { "" } else { "(?s:.*)" };
    Some(format!("{}({}){}", any(begins), regex_to_lark(rest, "dw"), any(ends)))
}

fn ends_in_escape(text: &str) -> bool {
    text.chars().rev().take_while(|c| *c == '\\').count() % 2 == 1
}

#[cfg(test)]
mod tests {
    use super::whole_match;

    #[test]
    fn patterns_are_made_to_match_the_whole() {
        for (pattern, whole) in [
            ("^[A-Z]{2}$", Some("([A-Z]{2})")),
            ("a|b", Some("(?s:.*)(a|b)(?s:.*)")),
            ("^(a|b)", Some("((a|b))(?s:.*)")),
            ("^x\\$", Some("(x\\$)(?s:.*)")),
            ("[$^]/\\d", Some("(?s:.*)([$^]\\/[0-9])(?s:.*)")),
            ("^a|b$", None),
            ("a$b", None),
            ("\\bword", None),
            ("(?=x)y", None),
            ("(a)\\1", None),
        ] {
            let expected = whole.map(str::to_owned);
            assert_eq!(whole_match(pattern), expected, "{pattern}");
        }
    }
}
