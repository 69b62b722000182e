//! Tokens, their types, merges, special ids and the chat template, from the tokenizer's files.

use std::collections::HashMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::Value as Json;
use w4pack_format::config::Config;
use w4pack_format::gguf::{Array, Kind, Value};
use w4pack_format::source::Source;
use w4pack_format::{FormatError, json};

use super::{Described, GGUF_FILE, refuse};
use crate::ConvertError;

const TOKENIZER: &str = "tokenizer.json";
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
const TEMPLATE: &str = "chat_template.jinja";

/// What every token scores; the merges decide.
const SCORE: f32 = -1000.0;

/// llama.cpp's parser of answers must see these, so they are not control tokens.
const VISIBLE: [&str; 7] = [
    "<|channel>",
    "<channel|>",
    "<|tool_call>",
    "<tool_call|>",
    "<|tool_response>",
    "<tool_response|>",
    "<|\"|>",
];

/// The special tokens that have a key, in the order of llama.cpp's library, and their keys.
const SPECIAL: [(&str, &str); 7] = [
    ("bos", "tokenizer.ggml.bos_token_id"),
    ("eos", "tokenizer.ggml.eos_token_id"),
    ("unk", "tokenizer.ggml.unknown_token_id"),
    ("sep", "tokenizer.ggml.seperator_token_id"),
    ("pad", "tokenizer.ggml.padding_token_id"),
    ("cls", "tokenizer.ggml.cls_token_id"),
    ("mask", "tokenizer.ggml.mask_token_id"),
];

/// Token types of `llama.h`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TokenType {
    Normal = 1,
    Control = 3,
    UserDefined = 4,
    Unused = 5,
    Byte = 6,
}

/// Keys below `tokenizer.`.
///
/// Errors: no tokenizer.json; one that is not byte-fallback BPE; ids that do not fit the model.
pub fn vocabulary(source: &dyn Source, config: &Config) -> Result<Described, ConvertError> {
    let mut file = TokenizerFile::read(source)?;
    let settings = match source.size(TOKENIZER_CONFIG) {
        Some(_) => json::parse(TOKENIZER_CONFIG, &source.read_file(TOKENIZER_CONFIG)?)?,
        None => Json::Object(Default::default()),
    };
    let rows = config.text.vocab_size;
    let warnings = file.leave_out_beyond(rows);
    let tokens = tokens(&file, rows)?;
    let types = tokens.iter().enumerate().map(|(id, token)| match token {
        Some(token) => token_type(&file, &settings, id, token),
        None => TokenType::Unused,
    });
    let types = types.map(|token_type| Value::I32(token_type as i32));
    let types = Array::of_values(Kind::I32, types.collect::<Vec<_>>());
    let scores = Array::of_values(Kind::F32, tokens.iter().map(|_| Value::F32(SCORE)));
    let fillers: Vec<String> = (0..tokens.len()).map(|id| format!("[PAD{id}]")).collect();
    let texts = tokens.iter().zip(&fillers).map(|(token, filler)| token.unwrap_or(filler));
    let merges: Vec<String> = file.model.merges.iter().map(Merge::text).collect();
    let mut metadata = vec![
        ("model", Value::String("gemma4".into())),
        ("tokens", Value::Array(Array::of_texts(texts))),
        ("scores", Value::Array(scores)),
        ("token_type", Value::Array(types)),
        ("merges", Value::Array(Array::of_texts(merges.iter().map(String::as_str)))),
    ]
    .into_iter()
    .map(|(key, value)| (format!("tokenizer.ggml.{key}"), value))
    .collect::<Vec<_>>();
    for (kind, key) in SPECIAL {
        if let Some(id) = special_id(kind, &file, &settings, config) {
            metadata.push((key.into(), Value::U32(id)));
        }
    }
    if let Some(template) = chat_template(source, &settings)? {
        metadata.push(("tokenizer.chat_template".into(), Value::String(template)));
    }
    metadata.push(("tokenizer.ggml.add_space_prefix".into(), Value::Bool(false)));
    // Without `<bos>` in front the model degenerates.
    metadata.push(("tokenizer.ggml.add_bos_token".into(), Value::Bool(true)));
    Ok(Described { metadata, warnings })
}

/// The token of each of `rows` ids; `None` where the tokenizer has none.
fn tokens(file: &TokenizerFile, rows: usize) -> Result<Vec<Option<&str>>, ConvertError> {
    let mut tokens: Vec<Option<&str>> = vec![None; rows];
    let added = file.added_tokens.iter().map(|token| (&token.content, token.id));
    for (content, id) in file.model.vocab.0.iter().map(|(text, id)| (text, *id)).chain(added) {
        let Some(place) = tokens.get_mut(id as usize) else {
            let problem = format!("`{content}` has the id {id}, the model has {rows} tokens");
            return Err(field("model.vocab", problem));
        };
        match place {
            Some(other) if *other != content.as_str() => {
                let problem = format!("`{other}` and `{content}` both have the id {id}");
                return Err(field("model.vocab", problem));
            }
            place => *place = Some(content),
        }
    }
    Ok(tokens)
}

fn token_type(file: &TokenizerFile, settings: &Json, id: usize, token: &str) -> TokenType {
    if VISIBLE.contains(&token) {
        TokenType::UserDefined
    } else if is_byte(token) {
        TokenType::Byte
    } else if is_special(settings, token) {
        TokenType::Control
    } else if id < file.model.vocab.0.len() {
        TokenType::Normal
    } else {
        TokenType::UserDefined
    }
}

/// `<0x0A>`.
fn is_byte(token: &str) -> bool {
    let digits = token.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
    digits.is_some_and(|digits| digits.len() == 2 && digits.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// Special is what the settings name, as transformers has it: the value of any `…_token`, and the
/// extra ones.
fn is_special(settings: &Json, token: &str) -> bool {
    let Some(settings) = settings.as_object() else { return false };
    settings.iter().any(|(key, value)| match key.as_str() {
        "extra_special_tokens" | "additional_special_tokens" => match value {
            Json::Array(list) => list.iter().any(|entry| content(entry) == Some(token)),
            Json::Object(map) => map.values().any(|entry| content(entry) == Some(token)),
            _ => false,
        },
        key => key.ends_with("_token") && content(value) == Some(token),
    })
}

/// A token in the settings: its text, or an object with it.
fn content(value: &Json) -> Option<&str> {
    value.as_str().or_else(|| value.get("content")?.as_str())
}

/// The id of a special token: by the settings' text, else by config.json's id.
fn special_id(kind: &str, file: &TokenizerFile, settings: &Json, config: &Config) -> Option<u32> {
    let named = settings.get(format!("{kind}_token")).and_then(content);
    let by_text = named.and_then(|text| {
        let added = file.added_tokens.iter().find(|token| token.content == text)?;
        Some(added.id)
    });
    let by_id = || {
        let key = format!("{kind}_token_id");
        let nested = || config.raw.get("text_config")?.get(&key);
        let found = config.raw.get(&key).filter(|id| !id.is_null()).or_else(nested)?;
        u32::try_from(found.as_u64()?).ok()
    };
    by_text.or_else(by_id)
}

/// The template in its own file, else the tokenizer's.
fn chat_template(source: &dyn Source, settings: &Json) -> Result<Option<String>, ConvertError> {
    if source.size(TEMPLATE).is_some() {
        let text = String::from_utf8(source.read_file(TEMPLATE)?);
        return text.map(Some).map_err(|_| refuse(format!("`{TEMPLATE}` is not UTF-8")));
    }
    let other = "chat_template.json";
    let beside = match source.size(other) {
        Some(_) => Some(json::parse(other, &source.read_file(other)?)?),
        None => None,
    };
    let in_file = beside.as_ref().and_then(|file| file.get("chat_template"));
    match in_file.or_else(|| settings.get("chat_template")) {
        None | Some(Json::Null) => Ok(None),
        Some(Json::String(template)) => Ok(Some(template.clone())),
        Some(Json::Array(named)) => {
            let default = named.iter().find(|entry| entry.get("name") == Some(&"default".into()));
            let template = default.and_then(|entry| entry.get("template")?.as_str());
            template.map(|text| Some(text.into())).ok_or_else(|| {
                refuse(format!("`{TOKENIZER_CONFIG}`: no chat_template is named `default`"))
            })
        }
        Some(other) => Err(refuse(format!("`{TOKENIZER_CONFIG}`: chat_template is {other}"))),
    }
}

/// The parts of tokenizer.json that matter here. Read past [`json::parse`], whose limit on values a
/// real vocabulary exceeds; one key twice is refused here too.
#[derive(Deserialize)]
struct TokenizerFile {
    model: Model,
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
}

#[derive(Deserialize)]
struct Model {
    #[serde(rename = "type", default)]
    kind: Option<String>,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    vocab: Pairs,
    #[serde(default)]
    merges: Vec<Merge>,
}

#[derive(Deserialize)]
struct AddedToken {
    id: u32,
    content: String,
}

/// Two tokens that become one, in either spelling.
#[derive(Deserialize)]
#[serde(untagged)]
enum Merge {
    Text(String),
    Pair([String; 2]),
}

impl Merge {
    /// With one space between the two. A space inside of a token is written as `Ġ`, as llama.cpp's
    /// library does.
    fn text(&self) -> String {
        match self {
            Merge::Text(text) => text.clone(),
            Merge::Pair(pair) => pair.each_ref().map(|part| part.replace(' ', "\u{120}")).join(" "),
        }
    }
}

/// A map from texts to ids in which no text comes twice.
#[derive(Default)]
struct Pairs(Vec<(String, u32)>);

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Pairs;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a map from tokens to ids")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs, A::Error> {
                let mut ids: HashMap<String, u32> = HashMap::new();
                while let Some((text, id)) = map.next_entry::<String, u32>()? {
                    if let Some(other) = ids.insert(text.clone(), id) {
                        let problem = format!("token `{text}` has the ids {other} and {id}");
                        return Err(serde::de::Error::custom(problem));
                    }
                }
                let mut pairs: Vec<_> = ids.into_iter().collect();
                pairs.sort_by_key(|(_, id)| *id);
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(Reader)
    }
}

impl TokenizerFile {
    /// Leaves out added tokens for which the model of `rows` tokens has no row, as for pictures that it cannot
    /// read: no prompt can hold them. Says so of each.
    fn leave_out_beyond(&mut self, rows: usize) -> Vec<String> {
        let beyond = self.added_tokens.extract_if(.., |token| token.id as usize >= rows);
        let warning = |AddedToken { content, id }| {
            format!(
                "{TOKENIZER}: the added token `{content}` is left out of {GGUF_FILE}: its id is {id}, and the \
                 model has {rows} tokens"
            )
        };
        beyond.map(warning).collect()
    }

    fn read(source: &dyn Source) -> Result<Self, ConvertError> {
        if source.size(TOKENIZER).is_none() {
            let place = source.label();
            return Err(refuse(format!(
                "`{place}` has no {TOKENIZER}, and a GGUF file carries its vocabulary"
            )));
        }
        let bytes = source.read_file(TOKENIZER)?;
        let file: TokenizerFile = serde_json::from_slice(&bytes).map_err(|error| {
            FormatError::Json { file: TOKENIZER.into(), problem: error.to_string() }
        })?;
        let kind = file.model.kind.as_deref().unwrap_or("BPE");
        if kind != "BPE" || !file.model.byte_fallback {
            let problem =
                format!("it is {kind}, w4pack knows llama.cpp's name of byte-fallback BPE");
            return Err(field("model.type", problem));
        }
        if file.model.vocab.0.is_empty() {
            return Err(field("model.vocab", "it is empty".into()));
        }
        Ok(file)
    }
}

fn field(field: &str, problem: String) -> ConvertError {
    FormatError::Field { file: TOKENIZER.into(), field: field.into(), problem }.into()
}
