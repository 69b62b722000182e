//! White space cut from both ends of a text that is still being written.

/// Passes text on without the white space at its beginning, and holds white space back until
/// something follows.
#[derive(Default)]
pub(super) struct Strip {
    begun: bool,
    held: String,
}

impl Strip {
    /// What may be shown now.
    pub(super) fn pass(&mut self, text: &str) -> Option<String> {
        let text = if self.begun { text } else { text.trim_start() };
        let shown = text.trim_end();
        if shown.is_empty() {
            self.held.push_str(text);
            return None;
        }
        self.begun = true;
        let mut out = std::mem::take(&mut self.held);
        out.push_str(shown);
        self.held.push_str(&text[shown.len()..]);
        Some(out)
    }

    /// Begins another part of the same text, such as a second thought: it is stripped by itself and
    /// stands on a line of its own.
    pub(super) fn next_part(&mut self) {
        self.held.clear();
        if self.begun {
            self.held.push('\n');
        }
        self.begun = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn portions_give_the_stripped_whole(parts in proptest::collection::vec("[ \n\tab]{0,4}", 0..8)) {
            let mut strip = Strip::default();
            let shown: String = parts.iter().filter_map(|part| strip.pass(part)).collect();
            let whole = parts.concat();
            prop_assert_eq!(shown, whole.trim());
        }
    }

    #[test]
    fn parts_stand_on_lines_of_their_own() {
        let mut strip = Strip::default();
        strip.next_part();
        assert_eq!(strip.pass(" one \n"), Some("one".to_owned()));
        strip.next_part();
        assert_eq!(strip.pass(" "), None);
        assert_eq!(strip.pass(" two"), Some("\ntwo".to_owned()));
    }
}
