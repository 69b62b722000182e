//! tokenizer.json, its settings, the chat template and the ids that end an answer, from a GGUF
//! file's vocabulary.
//!
//! Gemma's tokenizer is byte-fallback BPE with spaces written as `▁`; the file holds its tokens,
//! their types and its merges, and the rest is the same in every release.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::Metadata;
use crate::Result;

/// Token types of `llama.h`.
const CONTROL: u64 = 3;
const USER_DEFINED: u64 = 4;
const UNUSED: u64 = 5;

/// Tokens that end an answer beside `<eos>`: the end of a turn, and the wait for a tool's answer.
const ENDS: [&str; 2] = ["<turn|>", "<|tool_response>"];

/// Keys of special tokens, and their keys in tokenizer_config.json.
const SPECIAL: [(&str, &str); 5] = [
    ("bos_token", "tokenizer.ggml.bos_token_id"),
    ("eos_token", "tokenizer.ggml.eos_token_id"),
    ("unk_token", "tokenizer.ggml.unknown_token_id"),
    ("pad_token", "tokenizer.ggml.padding_token_id"),
    ("mask_token", "tokenizer.ggml.mask_token_id"),
];

/// The files by name.
///
/// Errors: a vocabulary of another kind, or whose lists do not fit each other.
pub(super) fn files(metadata: &Metadata<'_>) -> Result<BTreeMap<&'static str, Vec<u8>>> {
    let key = "tokenizer.ggml.model";
    if metadata.wanted(key)?.as_str() != Some("gemma4") {
        return Err(metadata.fail(key, "it is not `gemma4`, whose tokenizer w4pack knows"));
    }
    let tokens = texts(metadata, "tokenizer.ggml.tokens")?;
    let types = metadata.numbers("tokenizer.ggml.token_type", tokens.len())?;
    let merges = texts(metadata, "tokenizer.ggml.merges")?;
    let mut vocabulary = Map::new();
    let mut added = Vec::new();
    for (id, (token, token_type)) in tokens.iter().zip(&types).enumerate() {
        if *token_type == UNUSED {
            continue;
        }
        if vocabulary.insert(token.to_string(), id.into()).is_some() {
            let problem = format!("the token `{token}` is there twice");
            return Err(metadata.fail("tokenizer.ggml.tokens", problem));
        }
        if [CONTROL, USER_DEFINED].contains(token_type) {
            added.push(json!({
                "id": id, "content": token, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": true
            }));
        }
    }
    let pair = |merge: &&str| -> Result<Value> {
        let halves = merge.split_once(' ').ok_or_else(|| {
            metadata.fail("tokenizer.ggml.merges", format!("`{merge}` is not two tokens"))
        })?;
        // A space inside of a token is written as another character there.
        Ok(json!([halves.0.replace('\u{120}', " "), halves.1.replace('\u{120}', " ")]))
    };
    let merges = merges.iter().map(pair).collect::<Result<Vec<_>>>()?;
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": added,
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "pre_tokenizer": {
            "type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious",
            "invert": false
        },
        "post_processor": null,
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"}
        ]},
        "model": {
            "type": "BPE", "dropout": null, "unk_token": "<unk>",
            "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": true,
            "byte_fallback": true, "ignore_merges": false, "vocab": vocabulary, "merges": merges
        }
    });
    let mut files = BTreeMap::new();
    files.insert("tokenizer.json", tokenizer.to_string().into_bytes());
    let settings = settings(metadata, &tokens, &types)?;
    files.insert("tokenizer_config.json", format!("{settings:#}\n").into_bytes());
    let generation = generation(metadata, &tokens);
    files.insert("generation_config.json", format!("{generation:#}\n").into_bytes());
    if let Some(template) = metadata.get("tokenizer.chat_template") {
        let text = template.as_str();
        let text = text.ok_or_else(|| metadata.fail("tokenizer.chat_template", "it is no text"))?;
        files.insert("chat_template.jinja", text.as_bytes().to_vec());
    }
    Ok(files)
}

fn texts<'g>(metadata: &Metadata<'g>, key: &str) -> Result<Vec<&'g str>> {
    let array = metadata.wanted(key)?.as_array().and_then(|array| array.texts());
    Ok(array.ok_or_else(|| metadata.fail(key, "it is not an array of texts"))?.collect())
}

fn settings(metadata: &Metadata<'_>, tokens: &[&str], types: &[u64]) -> Result<Value> {
    let mut settings = json!({"tokenizer_class": "GemmaTokenizer", "padding_side": "left"});
    let mut named = Vec::new();
    for (name, key) in SPECIAL {
        let Some(value) = metadata.get(key) else { continue };
        let token = value.as_u64().and_then(|id| tokens.get(id as usize));
        let token = token.ok_or_else(|| metadata.fail(key, "it is the id of no token"))?;
        settings[name] = json!(token);
        named.push(*token);
    }
    let special = tokens.iter().zip(types).filter(|(token, token_type)| {
        [CONTROL, USER_DEFINED].contains(*token_type) && !named.contains(*token)
    });
    settings["extra_special_tokens"] = special.map(|(token, _)| *token).collect();
    Ok(settings)
}

fn generation(metadata: &Metadata<'_>, tokens: &[&str]) -> Value {
    let eos = metadata.get("tokenizer.ggml.eos_token_id").and_then(|value| value.as_u64());
    let ends = ENDS.iter().filter_map(|end| tokens.iter().position(|token| token == end));
    let ids: Vec<u64> = eos.into_iter().chain(ends.map(|id| id as u64)).collect();
    json!({"eos_token_id": ids})
}
