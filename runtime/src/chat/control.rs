//! Control tokens: the tokens by which the template writes the structure of a conversation, and
//! which nobody else may write.
//!
//! `tokenizer.json` does not mark them reliably: among its added tokens stand runs of white space
//! and HTML's tags, which are plain text, and some of Gemma's control tokens are not flagged
//! `special`. So an added token is a control token if it is flagged, if `tokenizer_config.json`
//! names it, or if it is written in brackets and is no HTML tag (those come in pairs, `<b>` with
//! `</b>`).

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use tokenizers::AddedToken;

use super::error::ChatError;

/// The control tokens of one vocabulary, to be found in text.
pub(super) struct ControlTokens {
    ids: HashMap<String, u32>,
    /// The characters that a control token may begin with: nearly always `<` alone.
    first: Vec<char>,
    /// The lengths in bytes that control tokens have, longest first.
    lengths: Vec<usize>,
}

impl ControlTokens {
    /// Picks the control tokens out of all added tokens.
    ///
    /// # Errors A control token swallows the white space around it or stands between word borders
    /// only: no token of Gemma's does, and text would be cut otherwise than here.
    pub(super) fn among<'t>(
        added: impl Iterator<Item = (u32, &'t AddedToken)>,
        named: &[(String, String)],
        file: &str,
    ) -> Result<Self, ChatError> {
        let added: Vec<(u32, &AddedToken)> = added.collect();
        let texts: HashSet<&str> = added.iter().map(|(_, token)| token.content.as_str()).collect();
        let is_control = |token: &AddedToken| {
            token.special
                || named.iter().any(|(_, text)| *text == token.content)
                || (in_brackets(&token.content) && !is_html(&token.content, &texts))
        };
        let mut ids = HashMap::new();
        for (id, token) in added.into_iter().filter(|(_, token)| is_control(token)) {
            if token.lstrip || token.rstrip || token.single_word {
                return Err(ChatError::ForeignTokenizer {
                    file: file.to_owned(),
                    part: "a control token",
                    expected: "tokens without lstrip, rstrip and single_word",
                    found: token.content.clone(),
                });
            }
            ids.insert(token.content.clone(), id);
        }
        let distinct = |values: HashSet<usize>| {
            let mut values: Vec<usize> = values.into_iter().collect();
            values.sort_unstable_by(|a, b| b.cmp(a));
            values
        };
        let lengths = distinct(ids.keys().map(String::len).collect());
        let first: HashSet<char> = ids.keys().filter_map(|text| text.chars().next()).collect();
        Ok(Self { ids, first: first.into_iter().collect(), lengths })
    }

    /// Texts and ids, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, u32)> {
        self.ids.iter().map(|(text, id)| (text.as_str(), *id))
    }

    /// Whether this text is a control token.
    pub(super) fn contains(&self, text: &str) -> bool {
        self.ids.contains_key(text)
    }

    /// Whether a control token may begin with this character.
    pub(super) fn may_begin_with(&self, c: char) -> bool {
        self.first.contains(&c)
    }

    /// The control tokens in `text`, left to right, the longest at each place.
    pub(super) fn find(&self, text: &str) -> Vec<(Range<usize>, u32)> {
        let mut found: Vec<(Range<usize>, u32)> = Vec::new();
        for (at, _) in text.match_indices(|c| self.may_begin_with(c)) {
            if found.last().is_some_and(|(range, _)| at < range.end) {
                continue;
            }
            let hit = self.lengths.iter().find_map(|length| {
                let token = text.get(at..at + length)?;
                self.ids.get(token).map(|id| (at..at + length, *id))
            });
            found.extend(hit);
        }
        found
    }
}

fn in_brackets(text: &str) -> bool {
    let between = |open, close| text.starts_with(open) && text.ends_with(close);
    text.len() > 2 && (between('<', '>') || between('[', ']'))
}

/// `<name>` or `</name>` whose partner is there as well.
fn is_html(text: &str, texts: &HashSet<&str>) -> bool {
    let Some(inner) = text.strip_prefix('<').and_then(|text| text.strip_suffix('>')) else {
        return false;
    };
    let name = inner.strip_prefix('/').unwrap_or(inner);
    let partner = if inner.starts_with('/') { format!("<{name}>") } else { format!("</{name}>") };
    name.bytes().all(|byte| byte.is_ascii_alphanumeric()) && texts.contains(partner.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(texts: &[(&str, bool)]) -> ControlTokens {
        let added: Vec<(u32, AddedToken)> = texts
            .iter()
            .enumerate()
            .map(|(id, (text, special))| (id as u32, AddedToken::from(*text, *special)))
            .collect();
        let named = [("mask_token".to_owned(), "mask".to_owned())];
        ControlTokens::among(added.iter().map(|(id, token)| (*id, token)), &named, "tokenizer.json")
            .expect("plain tokens")
    }

    #[test]
    fn white_space_and_html_are_text_and_the_rest_is_control() {
        let tokens = tokens(&[
            ("<eos>", true),
            ("<|turn>", false),
            ("[multimodal]", false),
            ("mask", false),
            ("\n\n", false),
            ("▁▁", false),
            ("<b>", false),
            ("</b>", false),
            ("word", false),
        ]);
        let mut control: Vec<&str> = tokens.iter().map(|(text, _)| text).collect();
        control.sort_unstable();
        assert_eq!(control, ["<eos>", "<|turn>", "[multimodal]", "mask"]);
    }

    #[test]
    fn the_longest_token_at_a_place_is_found() {
        let tokens = tokens(&[("<a>", true), ("<a>b>", true), ("b>", true)]);
        let found = tokens.find("x<a>b><a>é<a");
        assert_eq!(found, [(1..6, 1), (6..9, 0)]);
    }

    #[test]
    fn a_token_that_swallows_white_space_is_refused() {
        let token = AddedToken::from("<x>", true).rstrip(true);
        let error = ControlTokens::among([(7, &token)].into_iter(), &[], "tokenizer.json");
        let error = error.err().expect("refused").to_string();
        assert!(error.contains("<x>") && error.contains("rstrip"), "{error}");
    }
}
