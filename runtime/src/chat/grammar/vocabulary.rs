//! The vocabulary as llguidance wants it: the bytes of every token.

use std::sync::Arc;

use llguidance::toktrie::{TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv};

use super::GrammarError;
use crate::chat::tokenizer::{SpecialTokens, Tokenizer};

/// The trie of all tokens' bytes, with the tokenizer beside it for text that a grammar leaves no
/// choice in.
struct Vocabulary {
    trie: TokTrie,
    tokenizer: Arc<Tokenizer>,
}

/// Builds it; with Gemma 4's 262,144 tokens this takes a good part of a second.
pub(super) fn environment(
    tokenizer: &Arc<Tokenizer>,
    vocabulary_size: usize,
    stop_ids: &[u32],
) -> Result<TokEnv, GrammarError> {
    let words: Vec<Vec<u8>> = (0..vocabulary_size as u32).map(|id| word(tokenizer, id)).collect();
    let info = TokRxInfo::new(vocabulary_size as u32, stop_ids[0]);
    let trie = TokTrie::from(&info, &words).with_eos_tokens(stop_ids);
    Ok(Arc::new(Vocabulary { trie, tokenizer: tokenizer.clone() }))
}

/// A token's bytes; none for an id without a token, which is then never allowed.
fn word(tokenizer: &Tokenizer, id: u32) -> Vec<u8> {
    const MARKER: u8 = TokTrie::SPECIAL_TOKEN_MARKER;
    let Ok(bytes) = tokenizer.token_bytes(id, SpecialTokens::Show) else { return Vec::new() };
    if tokenizer.is_control(id) {
        return [&[MARKER], bytes.as_slice()].concat();
    }
    // The byte that marks control tokens. It is in no UTF-8, so nothing is lost.
    if bytes.contains(&MARKER) {
        return Vec::new();
    }
    bytes
}

impl TokenizerEnv for Vocabulary {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        let text = std::str::from_utf8(bytes).ok();
        // Bytes inside a character have no tokens but the byte tokens.
        text.and_then(|text| self.tokenizer.encode_text(text).ok())
            .unwrap_or_else(|| self.trie.greedy_tokenize(bytes))
    }
}
