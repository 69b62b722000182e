//! How large the patterns of a schema become when their repetitions are written out.
//!
//! `(a{1000}){1000}` is short and asks for a million characters one after another: seconds and
//! gigabytes for whoever compiles it. Such a pattern is refused before that.

use regex_syntax::hir::{Hir, HirKind};
use serde_json::Value;

use super::GrammarError;
use super::keywords::visit;

/// Characters and classes that a pattern may have, repetitions written out.
const MOST: u64 = 10_000;

/// Refuses a schema with a pattern that is too large. One that cannot be read is left to whoever
/// compiles it.
pub(super) fn check(schema: &Value) -> Result<(), GrammarError> {
    let mut fault = None;
    visit(schema, "", &mut |fields, pointer| {
        let own = fields.get("pattern").and_then(Value::as_str);
        let names = fields.get("patternProperties").and_then(Value::as_object);
        let names = names.into_iter().flat_map(|map| map.keys().map(String::as_str));
        for pattern in own.into_iter().chain(names) {
            let size = regex_syntax::parse(pattern).map_or(0, |pattern| size(&pattern));
            if size > MOST {
                fault.get_or_insert_with(|| {
                    format!(
                        "{pointer}/pattern repeats to {size} characters when written out: at most {MOST}"
                    )
                });
            }
        }
    });
    fault.map_or(Ok(()), |finding| Err(GrammarError::Schema { finding }))
}

/// Characters and classes of a pattern.
fn size(pattern: &Hir) -> u64 {
    let total = |parts: &[Hir]| parts.iter().map(size).fold(0, u64::saturating_add);
    match pattern.kind() {
        HirKind::Empty | HirKind::Look(_) | HirKind::Class(_) => 1,
        HirKind::Literal(literal) => literal.0.len() as u64,
        HirKind::Capture(group) => size(&group.sub),
        HirKind::Concat(parts) | HirKind::Alternation(parts) => total(parts),
        HirKind::Repetition(repetition) => {
            let times = repetition.max.unwrap_or(repetition.min.saturating_add(1)).max(1);
            size(&repetition.sub).saturating_mul(times.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn repetitions_are_multiplied() {
        let size = |pattern: &str| size(&regex_syntax::parse(pattern).expect("a pattern"));
        for (pattern, expected) in
            [("abc", 3), ("^a+$", 4), ("[a-z]{3,40}", 40), ("(a{10}|b){20}", 220), ("(x*)*", 1)]
        {
            assert_eq!(size(pattern), expected, "{pattern}");
        }
        assert_eq!(size("((a{1000}){1000}){1000}"), 1_000_000_000);
    }

    #[test]
    fn a_large_one_is_named_wherever_it_stands() {
        let large = json!({"properties": {"a": {"items": {"pattern": "(a{1000}){1000}"}}}});
        let error = check(&large).expect_err("too large").to_string();
        assert!(error.contains("/properties/a/items/pattern"), "{error}");
        let name = json!({"patternProperties": {"(a{1000}){1000}": {}}});
        assert!(check(&name).is_err());
        assert_eq!(check(&json!({"pattern": "^[a-z]{1,200}$"})), Ok(()));
        assert_eq!(check(&json!({"pattern": "("})), Ok(()), "that is said elsewhere");
    }
}
