//! Ids to text while they come: never half a character.
//!
//! A byte token may be a part of a character. Its bytes are held back until the character is whole,
//! so that no piece of a stream holds U+FFFD for a character that only arrived in parts. Pieces
//! joined are the text that [`Tokenizer::decode`] gives for all ids at once.

use std::sync::Arc;

use super::error::ChatError;
use super::tokenizer::{SpecialTokens, Tokenizer};

/// Decodes one answer, id by id.
pub struct StreamDecoder {
    tokenizer: Arc<Tokenizer>,
    special: SpecialTokens,
    assembler: CharacterAssembler,
}

impl StreamDecoder {
    /// A decoder at the beginning of an answer.
    pub fn new(tokenizer: Arc<Tokenizer>, special: SpecialTokens) -> Self {
        Self { tokenizer, special, assembler: CharacterAssembler::default() }
    }

    /// Takes the next id and returns the text that is whole now; empty while a character is still
    /// open.
    ///
    /// # Errors The id is not in the vocabulary.
    pub fn push(&mut self, id: u32) -> Result<String, ChatError> {
        Ok(self.assembler.push(&self.tokenizer.token_bytes(id, self.special)?))
    }

    /// Ends the answer: a character that was never finished becomes U+FFFD.
    pub fn finish(&mut self) -> String {
        self.assembler.finish()
    }
}

/// Puts characters together from bytes that arrive in any portions.
#[derive(Default)]
pub(super) struct CharacterAssembler {
    /// The beginning of a character: at most three bytes.
    held: Vec<u8>,
}

impl CharacterAssembler {
    /// Takes bytes and returns what is whole; bytes that cannot become a character any more are
    /// U+FFFD.
    pub(super) fn push(&mut self, bytes: &[u8]) -> String {
        self.held.extend_from_slice(bytes);
        let mut text = String::new();
        let mut rest = self.held.as_slice();
        while !rest.is_empty() {
            let error = match std::str::from_utf8(rest) {
                Ok(whole) => {
                    text.push_str(whole);
                    rest = &[];
                    break;
                }
                Err(error) => error,
            };
            let (whole, open) = rest.split_at(error.valid_up_to());
            text.push_str(&String::from_utf8_lossy(whole));
            rest = open;
            match error.error_len() {
                Some(bad) => {
                    text.push(char::REPLACEMENT_CHARACTER);
                    rest = &rest[bad..];
                }
                // The bytes end inside a character: more may come.
                None => break,
            }
        }
        self.held = rest.to_vec();
        text
    }

    /// Gives up on a character that was begun.
    pub(super) fn finish(&mut self) -> String {
        let text = String::from_utf8_lossy(&self.held).into_owned();
        self.held.clear();
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn in_portions(portions: &[Vec<u8>]) -> (Vec<String>, String) {
        let mut assembler = CharacterAssembler::default();
        let pieces = portions.iter().map(|bytes| assembler.push(bytes)).collect();
        (pieces, assembler.finish())
    }

    proptest! {
        /// The standard library's lossy conversion of all bytes at once is the oracle.
        #[test]
        fn any_portions_give_the_text_of_the_whole(portions: Vec<Vec<u8>>) {
            let (pieces, end) = in_portions(&portions);
            let whole = portions.concat();
            prop_assert_eq!(pieces.concat() + &end, String::from_utf8_lossy(&whole));
        }

        #[test]
        fn text_cut_anywhere_never_shows_a_replacement(text: String, size in 1usize..6) {
            prop_assume!(!text.contains('\u{FFFD}'));
            let portions: Vec<Vec<u8>> = text.as_bytes().chunks(size).map(<[u8]>::to_vec).collect();
            let (pieces, end) = in_portions(&portions);
            prop_assert!(end.is_empty());
            let whole = |piece: &String| !piece.contains(char::REPLACEMENT_CHARACTER);
            prop_assert!(pieces.iter().all(whole));
            prop_assert_eq!(pieces.concat(), text);
        }
    }
}
