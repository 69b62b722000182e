//! Fields that several endpoints share, read and checked.

use serde_json::Value;

use super::error::ApiError;
use super::fields::{Field, Fields};
use super::wire::SamplingFields;
use super::wire::chat::StreamOptions;
use crate::sampling::{Adjustments, Sampling};

/// Most stop strings of a request.
const MOST_STOPS: usize = 16;
/// Most answers to one prompt.
pub const MOST_CHOICES: i64 = 16;
/// Most tokens whose logits a request shifts.
const MOST_BIASED: usize = 1024;
/// Most likeliest tokens named in a place.
const MOST_LOGPROBS: i64 = 20;

/// Reads how tokens are chosen. `vocabulary` is the number of ids there are.
pub fn sampling(fields: &mut Fields<'_>, vocabulary: usize) -> Result<SamplingFields, ApiError> {
    let top_k = fields.integer("top_k", -1..=i64::MAX)?;
    Ok(SamplingFields {
        temperature: fields.number("temperature", 0.0..=2.0)?,
        top_p: fields.number("top_p", 0.0..=1.0)?,
        // -1 is what vLLM's clients write for all tokens.
        top_k: top_k.map(|top_k| usize::try_from(top_k).unwrap_or(0)),
        min_p: fields.number("min_p", 0.0..=1.0)?,
        seed: fields.integer("seed", i64::MIN..=i64::MAX)?,
        presence_penalty: fields.number("presence_penalty", -2.0..=2.0)?,
        frequency_penalty: fields.number("frequency_penalty", -2.0..=2.0)?,
        repetition_penalty: fields.number("repetition_penalty", 0.01..=10.0)?,
        logit_bias: logit_bias(fields, vocabulary)?,
    })
}

fn logit_bias(fields: &mut Fields<'_>, vocabulary: usize) -> Result<Vec<(u32, f32)>, ApiError> {
    let Some(field) = fields.take("logit_bias") else { return Ok(Vec::new()) };
    let object = field.object()?;
    if object.len() > MOST_BIASED {
        let message = format!("`logit_bias` holds {} tokens: at most {MOST_BIASED}", object.len());
        return Err(ApiError::conflict("logit_bias", message));
    }
    let mut biases: Vec<(u32, f32)> = Vec::with_capacity(object.len());
    for (key, value) in object {
        let id = key.parse().ok().filter(|id| (*id as usize) < vocabulary);
        let id: u32 = id.ok_or_else(|| {
            let message = format!(
                "`logit_bias` names `{}`: expected a token id below {vocabulary}",
                super::error::shown(key)
            );
            ApiError::conflict("logit_bias", message)
        })?;
        if biases.iter().any(|(other, _)| *other == id) {
            let message = format!("`logit_bias` names token {id} twice");
            return Err(ApiError::conflict("logit_bias", message));
        }
        let bias = Field::new(format!("logit_bias.{id}"), value).number(-100.0..=100.0)?;
        biases.push((id, bias as f32));
    }
    Ok(biases)
}

/// What the request says, over what the checkpoint says.
pub fn resolved(fields: &SamplingFields, defaults: &Sampling) -> Sampling {
    Sampling {
        temperature: fields.temperature.unwrap_or(defaults.temperature),
        top_k: fields.top_k.unwrap_or(defaults.top_k),
        // The smallest set that reaches 0 is the likeliest token, as for every tiny probability.
        top_p: fields.top_p.unwrap_or(defaults.top_p).max(f64::MIN_POSITIVE),
        min_p: fields.min_p.unwrap_or(defaults.min_p),
        // The bits: negative seeds are as good as others.
        seed: fields.seed.map(|seed| seed as u64),
    }
}

/// Penalties and bias.
pub fn adjustments(fields: &SamplingFields) -> Adjustments {
    let none = Adjustments::default();
    Adjustments {
        presence_penalty: fields.presence_penalty.unwrap_or(none.presence_penalty),
        frequency_penalty: fields.frequency_penalty.unwrap_or(none.frequency_penalty),
        repetition_penalty: fields.repetition_penalty.unwrap_or(none.repetition_penalty),
        logit_bias: fields.logit_bias.clone(),
    }
}

/// `stop`: a text or a list of texts.
pub fn stops(fields: &mut Fields<'_>) -> Result<Vec<String>, ApiError> {
    let Some(field) = fields.take("stop") else { return Ok(Vec::new()) };
    let items = match field.value {
        Value::String(_) => vec![field],
        Value::Array(_) => field.list()?,
        _ => return Err(field.wrong("a string or a list of strings")),
    };
    if items.len() > MOST_STOPS {
        let message = format!("`stop` holds {} strings: at most {MOST_STOPS}", items.len());
        return Err(ApiError::conflict("stop", message));
    }
    let text = |item: &Field<'_>| match item.text()? {
        "" => Err(item.wrong("a string that is not empty")),
        text => Ok(text.to_owned()),
    };
    items.iter().map(text).collect()
}

/// A number of tokens to generate.
pub fn token_limit(fields: &mut Fields<'_>, name: &'static str) -> Result<Option<usize>, ApiError> {
    Ok(fields.integer(name, 1..=i64::MAX)?.map(|limit| limit as usize))
}

/// `n`, 1 without it.
pub fn choices(fields: &mut Fields<'_>) -> Result<usize, ApiError> {
    Ok(fields.integer("n", 1..=MOST_CHOICES)?.unwrap_or(1) as usize)
}

/// A number of likeliest tokens to name.
pub fn logprob_count(
    fields: &mut Fields<'_>,
    name: &'static str,
) -> Result<Option<usize>, ApiError> {
    Ok(fields.integer(name, 0..=MOST_LOGPROBS)?.map(|count| count as usize))
}

/// `stream` and `stream_options`.
pub fn stream(fields: &mut Fields<'_>) -> Result<(bool, StreamOptions), ApiError> {
    let stream = fields.boolean("stream")?.unwrap_or(false);
    let Some(field) = fields.take("stream_options") else {
        return Ok((stream, StreamOptions::default()));
    };
    let mut options = field.fields()?;
    let include_usage = options.boolean("include_usage")?.unwrap_or(false);
    // Padding against eavesdroppers: it changes no answer.
    options.boolean("include_obfuscation")?;
    options.finish()?;
    if !stream {
        let message = "`stream_options` is given without `stream`: true";
        return Err(ApiError::conflict("stream_options", message));
    }
    Ok((stream, StreamOptions { include_usage }))
}
