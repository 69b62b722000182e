//! Where a long text may be cut so that the pieces, encoded one by one, give the ids of the whole.
//!
//! Gemma's tokenizer merges over the whole text at once, which takes seconds and gigabytes for
//! megabytes. But what merges make are tokens: two neighbouring characters that stand side by side
//! in no token of the vocabulary are never merged, whatever is around them. Between them a text may
//! be cut; words end there, for one.

use std::collections::HashSet;

use serde_json::{Value, json};
use tokenizers::models::bpe::BPE;
use tokenizers::{AddedToken, ModelWrapper, Tokenizer};

/// Bytes of a piece, at least: fewer give nothing more.
const PIECE: usize = 4096;

/// The pairs of characters that no cut may part.
pub(super) struct Cuts {
    /// `None`: another kind of tokenizer than Gemma's, of whose merges nothing is known here.
    pairs: Option<HashSet<(char, char)>>,
}

impl Cuts {
    /// The cuts that a vocabulary allows.
    pub(super) fn of(encoder: &Tokenizer) -> Self {
        let pairs = is_gemmas(encoder).then(|| {
            let vocabulary = encoder.get_vocab(true);
            let neighbours = |token: &String| {
                let characters = token.chars().map(normalized);
                characters.clone().zip(characters.skip(1)).collect::<Vec<_>>()
            };
            vocabulary.keys().flat_map(neighbours).collect()
        });
        Self { pairs }
    }

    /// The pieces of a text, in order; joined they are the text.
    pub(super) fn pieces<'t>(&self, text: &'t str) -> impl Iterator<Item = &'t str> {
        self.pieces_of(text, PIECE)
    }

    fn pieces_of<'t>(&self, text: &'t str, least: usize) -> impl Iterator<Item = &'t str> {
        let mut rest = text;
        std::iter::from_fn(move || {
            let (piece, behind) = rest.split_at(self.first(rest, least));
            rest = behind;
            (!piece.is_empty()).then_some(piece)
        })
    }

    /// Bytes of the first piece.
    fn first(&self, text: &str, least: usize) -> usize {
        let Some(pairs) = &self.pairs else { return text.len() };
        let from = text.floor_char_boundary(least.saturating_sub(1));
        let mut behind = text[from..].char_indices().map(|(at, c)| (from + at, normalized(c)));
        let Some((_, mut before)) = behind.next() else { return text.len() };
        for (at, c) in behind {
            if !pairs.contains(&(before, c)) {
                return at;
            }
            before = c;
        }
        text.len()
    }
}

/// What the normalizer makes of a character.
fn normalized(c: char) -> char {
    match c {
        ' ' => '\u{2581}',
        c => c,
    }
}

/// Whether nothing but merges of neighbours makes tokens: then the pairs tell all.
fn is_gemmas(encoder: &Tokenizer) -> bool {
    let normalizer = json!({"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"});
    // It looks for spaces, and the normalizer has left none.
    let splitter = json!({
        "type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": false,
    });
    let ModelWrapper::BPE(model) = encoder.get_model() else { return false };
    let written = |part: Result<Value, serde_json::Error>| part.unwrap_or_default();
    let swallows = |token: &AddedToken| token.lstrip || token.rstrip || token.single_word;
    written(serde_json::to_value(encoder.get_normalizer())) == normalizer
        && [Value::Null, splitter]
            .contains(&written(serde_json::to_value(encoder.get_pre_tokenizer())))
        && merges_are_plain(encoder, model)
        && !encoder.get_added_tokens_decoder().values().any(swallows)
}

/// No prefixes, suffixes or chance; bytes of unknown characters stay single tokens.
fn merges_are_plain(encoder: &Tokenizer, model: &BPE) -> bool {
    let byte = |byte: u8| encoder.token_to_id(&format!("<0x{byte:02X}>"));
    let merged_bytes = |token: &String| token.len() > "<0x00>".len() && token.contains("<0x");
    model.dropout.is_none()
        && model.byte_fallback
        && model.continuing_subword_prefix.is_none()
        && model.end_of_word_suffix.is_none()
        && (0..=255).all(|value| byte(value).is_some())
        && !encoder.get_vocab(true).keys().any(merged_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    thread_local! {
        static SMALL: Tokenizer = {
            let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/trained");
            Tokenizer::from_file(format!("{folder}/tokenizer.json")).expect("a tokenizer")
        };
    }

    fn ids(encoder: &Tokenizer, text: &str) -> Vec<u32> {
        encoder.encode_fast(text, false).expect("ids").get_ids().to_vec()
    }

    proptest! {
        #[test]
        fn pieces_give_the_ids_of_the_whole(
            text in "([a-z]{1,9}|[ \n▁]{1,3}|[<>|0-9A-Z.,é👩\u{200D}👧]){0,60}", least in 1usize..20,
        ) {
            SMALL.with(|encoder| {
                let cuts = Cuts::of(encoder);
                let pieces: Vec<&str> = cuts.pieces_of(&text, least).collect();
                prop_assert_eq!(pieces.concat(), text.as_str());
                let joined: Vec<u32> = pieces.iter().flat_map(|piece| ids(encoder, piece)).collect();
                prop_assert_eq!(joined, ids(encoder, &text));
                Ok(())
            })?;
        }
    }

    #[test]
    fn words_are_cut_apart_and_rows_of_one_character_are_not() {
        SMALL.with(|encoder| {
            let cuts = Cuts::of(encoder);
            let words = "once upon a time ".repeat(1000);
            let longest = cuts.pieces(&words).map(str::len).max();
            assert!(longest.is_some_and(|bytes| bytes < PIECE + 20), "{longest:?}");
            let row = "l".repeat(10_000);
            assert_eq!(cuts.pieces(&row).count(), 1);
        });
    }

    #[test]
    fn nothing_is_cut_where_merges_are_not_all() {
        SMALL.with(|encoder| {
            let mut other = encoder.clone();
            other.with_normalizer(None::<tokenizers::NormalizerWrapper>).expect("it is taken off");
            assert_eq!(Cuts::of(&other).pieces(&"once upon ".repeat(1000)).count(), 1);
        });
    }
}
