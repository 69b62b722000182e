//! How a JSON text is spelled: white space is the one part of it that no parser looks at.

/// More white space in one place than any writer makes between two entries (a line break and an
/// indentation) is room for something else.
pub const LONGEST_SPACE: usize = 256;

/// Bytes of white space outside of strings: all of it, and its longest run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WhiteSpace {
    /// All bytes.
    pub all: usize,
    /// The longest run.
    pub longest: usize,
}

/// Counts the white space of a sound JSON text.
pub fn white_space(text: &[u8]) -> WhiteSpace {
    let mut space = WhiteSpace::default();
    let (mut run, mut in_string, mut escaped) = (0, false, false);
    for byte in text {
        let is_space = !in_string && byte.is_ascii_whitespace();
        run = if is_space { run + 1 } else { 0 };
        space.all += usize::from(is_space);
        space.longest = space.longest.max(run);
        match byte {
            b'"' if !escaped => in_string = !in_string,
            b'\\' if in_string && !escaped => {
                escaped = true;
                continue;
            }
            _ => {}
        }
        escaped = false;
    }
    space
}

/// A text for a message: at most 120 characters of it.
pub fn shortened(text: &str) -> String {
    match text.char_indices().nth(120) {
        None => text.into(),
        Some((end, _)) => format!("{}... ({} bytes)", &text[..end], text.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn white_space_in_strings_does_not_count() {
        let space = |text: &str| {
            let WhiteSpace { all, longest } = white_space(text.as_bytes());
            (all, longest)
        };
        assert_eq!(space(r#"{"a b":" \" ","c":[1,2]}"#), (0, 0));
        assert_eq!(space("{\"a\\\\\":  \"\\\\\" ,\n\t 1}"), (6, 3));
    }

    #[test]
    fn long_texts_are_shortened_between_characters() {
        assert_eq!(shortened("short"), "short");
        let long = "ü".repeat(500);
        assert_eq!(shortened(&long), format!("{}... (1000 bytes)", "ü".repeat(120)));
    }
}
