//! Fields of a JSON object, each read once under its name, the rest reported.

use crate::{FormatError, Result};
use serde_json::{Map, Value};
use std::collections::BTreeSet;

/// Larger sizes than any model has are refused, so that products of four fit 64 bits easily.
const SIZE_LIMIT: u64 = 1 << 31;

/// Keys that say nothing about the text model's arithmetic.
const WITHOUT_EFFECT: [&str; 37] = [
    "_name_or_path",
    "architectures",
    "attention_dropout",
    "audio_config",
    "audio_token_id",
    "boa_token_id",
    "boi_token_id",
    "boi_token_index",
    "dtype",
    "eoa_token_id",
    "eoa_token_index",
    "eoi_token_id",
    "eoi_token_index",
    "eos_token_id",
    "expert_intermediate_size",
    "image_token_id",
    "image_token_index",
    "initializer_range",
    "mm_tokens_per_image",
    "model_type",
    "moe_intermediate_size",
    "num_experts",
    "num_global_key_value_heads",
    "pad_token_id",
    "quantization_config",
    "text_config",
    "tie_word_embeddings",
    "top_k_experts",
    "torch_dtype",
    "transformers_version",
    "use_cache",
    "use_double_wide_mlp",
    "video_token_id",
    "vision_config",
    "vision_soft_tokens_per_image",
    "chunk_size_feed_forward",
    "output_attentions",
];

/// One object of a configuration.
pub(super) struct Fields<'v> {
    file: String,
    /// "text_config." or "".
    path: &'static str,
    object: &'v Map<String, Value>,
    read: BTreeSet<String>,
}

impl<'v> Fields<'v> {
    pub(super) fn new(file: &str, path: &'static str, value: &'v Value) -> Result<Self> {
        let object = value.as_object().ok_or_else(|| FormatError::Field {
            file: file.into(),
            field: path.trim_end_matches('.').into(),
            problem: "it is not an object".into(),
        })?;
        Ok(Fields { file: file.into(), path, object, read: BTreeSet::new() })
    }

    pub(super) fn fail(&self, key: &str, problem: String) -> FormatError {
        FormatError::Field {
            file: self.file.clone(),
            field: format!("{}{key}", self.path),
            problem,
        }
    }

    /// The value of a key; null counts as absent, as in Python.
    pub(super) fn value(&mut self, key: &str) -> Option<&'v Value> {
        self.read.insert(key.into());
        self.object.get(key).filter(|value| !value.is_null())
    }

    /// Whether a key stands there at all, null or not.
    pub(super) fn has(&self, key: &str) -> bool {
        self.object.contains_key(key)
    }

    pub(super) fn text(&mut self, key: &str) -> Result<String> {
        match self.value(key) {
            Some(Value::String(text)) => Ok(text.clone()),
            Some(other) => Err(self.fail(key, format!("{other} is not a string"))),
            None => Err(self.fail(key, "it is missing".into())),
        }
    }

    pub(super) fn bool(&mut self, key: &str) -> Result<Option<bool>> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(*value)),
            Some(other) => Err(self.fail(key, format!("{other} is not true or false"))),
        }
    }

    /// A whole number from 0.
    pub(super) fn count(&mut self, key: &str, default: usize) -> Result<usize> {
        match self.value(key) {
            None => Ok(default),
            Some(value) => as_count(value).ok_or_else(|| {
                self.fail(key, format!("{value} is not a whole number below {SIZE_LIMIT}"))
            }),
        }
    }

    /// A whole number from 1. No default: it must be there.
    pub(super) fn size(&mut self, key: &str, default: Option<usize>) -> Result<usize> {
        if self.value(key).is_none() && default.is_none() {
            return Err(self.fail(key, "it is missing".into()));
        }
        match self.count(key, default.unwrap_or(0))? {
            0 => Err(self.fail(key, "0 is too small".into())),
            size => Ok(size),
        }
    }

    /// A number greater than 0.
    pub(super) fn positive(&mut self, key: &str) -> Result<Option<f64>> {
        match self.value(key) {
            None => Ok(None),
            Some(value) => match value.as_f64() {
                Some(number) if number > 0.0 && number.is_finite() => Ok(Some(number)),
                _ => Err(self.fail(key, format!("{value} is not a positive number"))),
            },
        }
    }

    pub(super) fn id(&mut self, key: &str) -> Result<Option<u32>> {
        match self.value(key) {
            None => Ok(None),
            Some(value) => {
                let id = as_id(value);
                id.map(Some).ok_or_else(|| self.fail(key, format!("{value} is not a token id")))
            }
        }
    }

    /// One id or a list of ids.
    pub(super) fn ids(&mut self, key: &str) -> Result<Option<Vec<u32>>> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let ids: Option<Vec<u32>> = match value {
            Value::Array(list) => list.iter().map(as_id).collect(),
            one => as_id(one).map(|id| vec![id]),
        };
        ids.map(Some).ok_or_else(|| self.fail(key, format!("{value} is not a list of token ids")))
    }

    /// Keys that nobody asked for and that are not known to be without effect.
    pub(super) fn unread(&self) -> Vec<String> {
        let keys = self.object.keys();
        keys.filter(|key| !self.read.contains(*key))
            .filter(|key| !WITHOUT_EFFECT.contains(&key.as_str()))
            .map(|key| format!("{}{key}", self.path))
            .collect()
    }
}

pub(super) fn as_count(value: &Value) -> Option<usize> {
    value.as_u64().filter(|&count| count < SIZE_LIMIT).map(|count| count as usize)
}

fn as_id(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|id| u32::try_from(id).ok())
}
