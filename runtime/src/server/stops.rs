//! Stop strings, found in text that comes in portions.
//!
//! What may be the beginning of a stop string is held back until that is decided, so that a client
//! never sees a part of one, and a stream joined is the text of the whole. Of several stop strings
//! the one that is complete first ends the text; of those complete at the same place, the longest.

/// Looks for stop strings.
pub struct Stops {
    stops: Vec<String>,
    /// The end of the text so far that may begin a stop string.
    held: String,
    found: bool,
}

impl Stops {
    /// The strings are not empty.
    pub fn new(stops: Vec<String>) -> Self {
        Self { stops, held: String::new(), found: false }
    }

    /// Whether a stop string has come: then there is no more text.
    pub fn found(&self) -> bool {
        self.found
    }

    /// Takes text and returns what may be shown.
    pub fn push(&mut self, text: &str) -> String {
        if self.found {
            return String::new();
        }
        if self.stops.is_empty() {
            return text.to_owned();
        }
        self.held.push_str(text);
        let first = self.stops.iter().filter_map(|stop| {
            let begin = self.held.find(stop.as_str())?;
            Some((begin + stop.len(), begin))
        });
        if let Some((_, begin)) = first.min() {
            self.found = true;
            self.held.truncate(begin);
            return std::mem::take(&mut self.held);
        }
        let open = self.open();
        let rest = self.held.split_off(self.held.len() - open);
        std::mem::replace(&mut self.held, rest)
    }

    /// Ends the text: what was held back was no stop string.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Bytes at the end of the text that a stop string begins with: the most there are.
    fn open(&self) -> usize {
        let longest = self.stops.iter().map(String::len).max().unwrap_or(0).saturating_sub(1);
        let from = self.held.len().saturating_sub(longest);
        let begins = |at: &usize| {
            self.held.is_char_boundary(*at)
                && self.stops.iter().any(|stop| stop.starts_with(&self.held[*at..]))
        };
        (from..self.held.len()).find(begins).map_or(0, |at| self.held.len() - at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn in_portions(stops: &[&str], portions: &[&str]) -> (Vec<String>, bool) {
        let mut matcher = Stops::new(stops.iter().map(|stop| (*stop).to_owned()).collect());
        let mut shown: Vec<String> = portions.iter().map(|text| matcher.push(text)).collect();
        shown.push(matcher.finish());
        (shown, matcher.found())
    }

    /// The definition: character by character, until the text ends in a stop string.
    fn oracle(stops: &[&str], text: &str) -> (String, bool) {
        let ends = text.char_indices().map(|(at, c)| at + c.len_utf8());
        for end in ends {
            let matched = stops.iter().filter(|stop| text[..end].ends_with(**stop));
            if let Some(longest) = matched.map(|stop| stop.len()).max() {
                return (text[..end - longest].to_owned(), true);
            }
        }
        (text.to_owned(), false)
    }

    #[test]
    fn nothing_of_a_stop_string_leaks() {
        let (shown, found) = in_portions(&["</s>", "👩‍👩‍👧"], &["a<", "/", "s", ">b", "c"]);
        assert_eq!((shown.concat().as_str(), found), ("a", true));
        assert_eq!(shown[0], "a");
        let (shown, found) = in_portions(&["👩‍👩‍👧"], &["x👩", "‍👩", "‍👦"]);
        assert_eq!((shown.concat().as_str(), found), ("x👩‍👩‍👦", false));
        assert_eq!(shown[..2], ["x", ""], "held back while it may be one");
    }

    #[test]
    fn the_first_to_be_complete_wins() {
        assert_eq!(in_portions(&["abcd", "bc"], &["xabcd"]).0.concat(), "xa");
        assert_eq!(in_portions(&["bc", "abc"], &["xabc"]).0.concat(), "x");
    }

    proptest! {
        #[test]
        fn any_portions_give_what_the_definition_gives(
            stops in proptest::collection::vec("[ab👧]{1,4}", 0..4),
            portions in proptest::collection::vec("[ab👧c]{0,5}", 0..8),
        ) {
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            let pieces: Vec<&str> = portions.iter().map(String::as_str).collect();
            let (shown, found) = in_portions(&stops, &pieces);
            prop_assert_eq!((shown.concat(), found), oracle(&stops, &portions.concat()));
        }
    }
}
