//! Entries of `targets` and `ignore`: only those that every reader takes the same way.

use w4pack_format::names::is_tower;

use super::facts::Facts;

/// Class names that the official writers put into `targets`.
const CLASSES: [&str; 2] = ["Linear", "Embedding"];

/// What is wrong with an entry, if anything.
///
/// Readers match patterns with Python's `re`; here stands another engine. Both agree on literal
/// characters, `.`, `.*`, `\.`, `\d` and `\d+`, a `^` in front and a `$` behind, and a sound pattern
/// for module names needs no more.
pub fn problem(entry: &str, facts: &Facts) -> Option<String> {
    let Some(pattern) = entry.strip_prefix("re:") else {
        let known = CLASSES.contains(&entry)
            || entry == "lm_head"
            || is_tower(entry)
            || facts.modules.iter().any(|module| module.name == entry);
        return (!known)
            .then(|| format!("`{entry}` is neither a class nor a module of this model"));
    };
    if !is_simple(pattern) {
        return Some(format!("`{entry}` is a pattern that readers may take in different ways"));
    }
    // `re.match` does not anchor the end.
    let ended = pattern.ends_with('$') || pattern.ends_with(".*");
    (!ended).then(|| format!("the pattern `{entry}` is not anchored with $"))
}

fn is_simple(pattern: &str) -> bool {
    let pattern = pattern.strip_prefix('^').unwrap_or(pattern);
    let mut rest = pattern.strip_suffix('$').unwrap_or(pattern);
    if rest.is_empty() {
        return false;
    }
    while let Some(next) = rest.chars().next() {
        // The longest piece first.
        let piece = [r"\d+", r"\d", r"\.", ".*"].into_iter().find(|piece| rest.starts_with(piece));
        let literal = next.is_ascii_alphanumeric() || next == '_' || next == '.';
        match piece {
            Some(piece) => rest = &rest[piece.len()..],
            None if literal => rest = &rest[1..],
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::is_simple;

    #[test]
    fn only_what_all_engines_agree_on_is_simple() {
        for pattern in [
            ".*lm_head$",
            r".*layers\.0\.mlp\.up_proj$",
            r"^model\.layers\.\d+\.mlp.*",
            ".*embed_tokens$",
            ".*vision_tower.*",
        ] {
            assert!(is_simple(pattern), "{pattern}");
        }
        for pattern in [
            "",
            "$",
            "(?U).*lm_head$",
            ".*+x$",
            ".**",
            "a|b$",
            "(a)$",
            "a$b",
            "a^",
            r"\w$",
            "a?$",
            "[ab]$",
            "a{3}",
            "\\",
            "ü$",
        ] {
            assert!(!is_simple(pattern), "{pattern}");
        }
    }
}
