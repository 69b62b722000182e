//! Text to token ids and back, by the checkpoint's own `tokenizer.json`.
//!
//! Ids are never written down in the program: all come from the files. Encoding is the tokenizers
//! crate's for everything between two control tokens; those are found here
//! ([`control`](super::control)), because the crate cannot be told which of them to see. Decoding is done here, from the bytes of each token, because a stream needs the bytes
//! before a character is whole (see [`stream`](super::stream)) and both ways must give the same
//! text.

use serde_json::Value;

use super::control::ControlTokens;
use super::cuts::Cuts;
use super::error::ChatError;
use super::marks::unmarked;
use super::stream::CharacterAssembler;

const FILE: &str = "tokenizer.json";
const CONFIG_FILE: &str = "tokenizer_config.json";

/// What becomes of control tokens (`<bos>`, `<|turn>`, …) when ids are decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpecialTokens {
    /// They appear as their text: what [`OutputParser`](super::OutputParser) needs.
    Show,
    /// They leave nothing: what a person wants to read.
    Hide,
}

/// A checkpoint's tokenizer.
///
/// With Gemma 4's vocabulary, loading takes about a second and 400 MB for a moment: load it beside
/// the weights, once.
pub struct Tokenizer {
    /// Sees no control tokens: their texts are text to it.
    encoder: tokenizers::Tokenizer,
    control: ControlTokens,
    cuts: Cuts,
    bos: Option<u32>,
    named: Vec<(String, String)>,
}

/// How much of a text is encoded before it is refused as too long ([`ChatError::TooLong`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Most {
    /// Tokens that there may be.
    pub tokens: usize,
    /// Bytes that may stand in a row without a place to cut at: a character a million times over takes
    /// the tokenizer seconds.
    pub uncut: usize,
}

impl Most {
    /// As much as there is.
    pub const ANY: Self = Self { tokens: usize::MAX, uncut: usize::MAX };
}

impl Tokenizer {
    /// Reads a tokenizer from the bytes of `tokenizer.json` and, where there is one,
    /// `tokenizer_config.json`.
    ///
    /// `config_bos` is config.json's `bos_token_id`. The beginning token is what
    /// `tokenizer_config.json` names, else that one; if both speak they must agree.
    ///
    /// # Errors The files cannot be read, the decoder is not Gemma's (then the text of an id would
    /// be a guess), or a named beginning token does not exist.
    pub fn from_bytes(
        tokenizer_json: &[u8],
        tokenizer_config: Option<&[u8]>,
        config_bos: Option<u32>,
    ) -> Result<Self, ChatError> {
        let unreadable = |error: tokenizers::Error| ChatError::Tokenizer {
            file: FILE.to_owned(),
            finding: error.to_string(),
        };
        let mut encoder = tokenizers::Tokenizer::from_bytes(tokenizer_json).map_err(unreadable)?;
        check_decoder(&encoder)?;
        let named = tokenizer_config.map_or(Ok(Vec::new()), named_tokens)?;
        let bos = beginning(&encoder, &named, config_bos)?;
        let added = encoder.get_added_tokens_decoder();
        let control =
            ControlTokens::among(added.iter().map(|(id, token)| (*id, token)), &named, FILE)?;
        // What is flagged special can be hidden from the encoder, so flag them all.
        let flagged: Vec<tokenizers::AddedToken> = control
            .iter()
            .filter_map(|(_, id)| added.get(&id).cloned())
            .map(|token| token.special(true))
            .collect();
        encoder.add_special_tokens(flagged).map_err(unreadable)?;
        encoder.set_encode_special_tokens(true);
        let cuts = Cuts::of(&encoder);
        Ok(Self { encoder, control, cuts, bos, named })
    }

    /// The id of the beginning token, if the files name one.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// The id of a token by its exact text.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.encoder.token_to_id(token)
    }

    /// The text of a token as `tokenizer.json` writes it: `▁the`, `<0x0A>`, `<|turn>`.
    pub fn token(&self, id: u32) -> Option<String> {
        self.encoder.id_to_token(id)
    }

    /// Tokens in `tokenizer.json`, added ones included. Ids need not be without gaps.
    pub fn len(&self) -> usize {
        self.encoder.get_vocab_size(true)
    }

    /// True if there is no token at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The tokens that `tokenizer_config.json` gives a name (`bos_token`, `eos_token`, …): a chat
    /// template may use them as variables.
    pub fn named_tokens(&self) -> &[(String, String)] {
        &self.named
    }

    /// Encodes a prompt: control tokens in the text become their ids, and nothing is put in front
    /// (the template has written `<bos>` itself).
    ///
    /// # Errors Only if the tokenizers crate fails, which it does for no text known.
    pub fn encode_prompt(&self, prompt: &str) -> Result<Vec<u32>, ChatError> {
        self.encode_between(Vec::new(), prompt, str::to_owned, Most::ANY)
    }

    /// Encodes text in which nothing is a control token, whatever it looks like.
    ///
    /// # Errors As [`encode_prompt`](Self::encode_prompt).
    pub fn encode_text(&self, text: &str) -> Result<Vec<u32>, ChatError> {
        let mut ids = Vec::new();
        self.encode_plain(&mut ids, text, Most::ANY)?;
        Ok(ids)
    }

    /// Encodes text as it is (`--raw`), with the beginning token in front.
    ///
    /// # Errors
    /// No file names the beginning token, or there is more than `most`.
    pub fn encode_raw(&self, text: &str, most: Most) -> Result<Vec<u32>, ChatError> {
        let bos = self.bos.ok_or(ChatError::NoBeginning)?;
        self.encode_between(vec![bos], text, str::to_owned, most)
    }

    /// Encodes a prompt rendered from marked text (see [`marks`](super::marks)): only control
    /// tokens that the template wrote become their ids.
    pub(super) fn encode_marked(&self, prompt: &str, most: Most) -> Result<Vec<u32>, ChatError> {
        self.encode_between(Vec::new(), prompt, |text| unmarked(text, &self.control), most)
    }

    /// Ids of control tokens as they are, and of the pieces between them after `plain`, behind `ids`.
    fn encode_between(
        &self,
        mut ids: Vec<u32>,
        prompt: &str,
        plain: impl Fn(&str) -> String,
        most: Most,
    ) -> Result<Vec<u32>, ChatError> {
        let mut rest = 0;
        for (range, id) in self.control.find(prompt) {
            self.encode_plain(&mut ids, &plain(&prompt[rest..range.start]), most)?;
            ids.push(id);
            rest = range.end;
        }
        self.encode_plain(&mut ids, &plain(&prompt[rest..]), most)?;
        Ok(ids)
    }

    /// Ids of text without control tokens, behind `ids`, piece by piece.
    fn encode_plain(&self, ids: &mut Vec<u32>, text: &str, most: Most) -> Result<(), ChatError> {
        for piece in self.cuts.pieces(text) {
            if piece.len() > most.uncut {
                return Err(ChatError::Uncut { bytes: piece.len(), most: most.uncut });
            }
            let encoding = self.encoder.encode_fast(piece, false).map_err(|error| {
                ChatError::Encode { file: FILE.to_owned(), finding: error.to_string() }
            })?;
            ids.extend_from_slice(encoding.get_ids());
            if ids.len() > most.tokens {
                return Err(ChatError::TooLong { most: most.tokens });
            }
        }
        Ok(())
    }

    /// The control tokens.
    pub(super) fn control(&self) -> &ControlTokens {
        &self.control
    }

    /// Whether the id is a control token's.
    pub fn is_control(&self, id: u32) -> bool {
        self.token(id).is_some_and(|token| self.control.contains(&token))
    }

    /// Decodes ids to text. Bytes that form no character become U+FFFD.
    ///
    /// # Errors
    /// An id is not in the vocabulary.
    pub fn decode(&self, ids: &[u32], special: SpecialTokens) -> Result<String, ChatError> {
        let mut assembler = CharacterAssembler::default();
        let mut text = String::new();
        for &id in ids {
            text.push_str(&assembler.push(&self.token_bytes(id, special)?));
        }
        text.push_str(&assembler.finish());
        Ok(text)
    }

    /// The bytes that one token adds to the text: one byte for `<0xHH>`, else its text with U+2581
    /// as a space.
    ///
    /// # Errors The id is not in the vocabulary.
    pub fn token_bytes(&self, id: u32, special: SpecialTokens) -> Result<Vec<u8>, ChatError> {
        let token =
            self.token(id).ok_or_else(|| ChatError::UnknownId { file: FILE.to_owned(), id })?;
        if special == SpecialTokens::Hide && self.control.contains(&token) {
            return Ok(Vec::new());
        }
        Ok(match byte_token(&token) {
            Some(byte) => vec![byte],
            None => token.replace('\u{2581}', " ").into_bytes(),
        })
    }
}

/// The byte of a token `<0xHH>`.
fn byte_token(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    let plain = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    plain.then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}

/// Holds the file's decoder against the one that [`Tokenizer::token_bytes`] is written for.
fn check_decoder(encoder: &tokenizers::Tokenizer) -> Result<(), ChatError> {
    let found = serde_json::to_value(encoder.get_decoder()).map_err(|error| {
        ChatError::Tokenizer { file: FILE.to_owned(), finding: error.to_string() }
    })?;
    let expected = serde_json::json!({"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "\u{2581}"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]});
    if found == expected {
        return Ok(());
    }
    Err(ChatError::ForeignTokenizer {
        file: FILE.to_owned(),
        part: "the decoder",
        expected: "the sequence Replace U+2581 by a space, ByteFallback, Fuse",
        found: found.to_string(),
    })
}

/// All string-valued `*_token` fields of `tokenizer_config.json`, in the file's order. A token may
/// also be written as an object with its text under `content`.
fn named_tokens(bytes: &[u8]) -> Result<Vec<(String, String)>, ChatError> {
    let json = |finding| ChatError::Json { file: CONFIG_FILE.to_owned(), finding };
    let config: Value = serde_json::from_slice(bytes).map_err(|error| json(error.to_string()))?;
    let fields = config.as_object().ok_or_else(|| json("not a JSON object".to_owned()))?;
    let mut named = Vec::new();
    for (name, value) in fields {
        let text = match value {
            _ if !name.ends_with("_token") => continue,
            // `add_bos_token` and its like are switches, not tokens.
            Value::Null | Value::Bool(_) => continue,
            Value::String(text) => text,
            Value::Object(token) => match token.get("content") {
                Some(Value::String(text)) => text,
                _ => return Err(json(format!("{name} has no text under \"content\""))),
            },
            other => return Err(json(format!("{name} is neither a text nor an object: {other}"))),
        };
        named.push((name.clone(), text.clone()));
    }
    Ok(named)
}

fn beginning(
    encoder: &tokenizers::Tokenizer,
    named: &[(String, String)],
    config_bos: Option<u32>,
) -> Result<Option<u32>, ChatError> {
    let missing = |token: String, named_in: &str| ChatError::MissingToken {
        file: FILE.to_owned(),
        token,
        named_in: named_in.to_owned(),
    };
    if let Some(id) = config_bos
        && encoder.id_to_token(id).is_none()
    {
        return Err(missing(id.to_string(), "config.json (bos_token_id)"));
    }
    let Some((_, text)) = named.iter().find(|(name, _)| name == "bos_token") else {
        return Ok(config_bos);
    };
    let id = encoder.token_to_id(text).ok_or_else(|| missing(text.clone(), CONFIG_FILE))?;
    match config_bos {
        Some(other) if other != id => Err(ChatError::Json {
            file: CONFIG_FILE.to_owned(),
            finding: format!("bos_token {text} has id {id}, but config.json says {other}"),
        }),
        _ => Ok(Some(id)),
    }
}

#[cfg(test)]
mod tests {
    use super::byte_token;

    #[test]
    fn byte_tokens_are_told_from_text() {
        assert_eq!(byte_token("<0x0A>"), Some(10));
        assert_eq!(byte_token("<0xff>"), Some(255));
        for text in ["<0x+1>", "<0x>", "<0x0AB>", "0x0A", "<0xé>"] {
            assert_eq!(byte_token(text), None, "{text}");
        }
    }
}
