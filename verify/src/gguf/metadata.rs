//! What a GGUF file says beside its tensors: architecture, vocabulary, merges and chat template,
//! held against the source's files. It is read as every reader of ours sees it, as the files of a
//! packed checkpoint.

use std::sync::Arc;

use serde_json::{Map, Value};
use w4pack_format::config::CONFIG_FILE;
use w4pack_format::gguf::view::GgufSource;
use w4pack_format::source::Source;
use w4pack_format::{FormatError, Result, json};

use crate::report::FaultClass;

const TOKENIZER: &str = "tokenizer.json";
const TEMPLATE: &str = "chat_template.jinja";

/// Keys that a text-only configuration has of its own, or spells in another way than the source's.
const OWN_KEYS: [&str; 8] = [
    "architectures",
    "model_type",
    "dtype",
    "quantization_config",
    "tie_word_embeddings",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
];

/// Something that the file says otherwise than the source.
pub(super) struct Difference {
    pub class: FaultClass,
    pub detail: String,
}

/// All differences. Errors: a file that cannot be read, or that is not what its name says.
pub(super) fn differences(
    files: &Arc<dyn Source>,
    path: &str,
    source: &dyn Source,
) -> Result<Vec<Difference>> {
    let view = GgufSource::open(files.clone(), path)?;
    let mut found = Vec::new();
    let (ours, theirs) = (object(&view, CONFIG_FILE)?, object(source, CONFIG_FILE)?);
    let text = theirs.get("text_config").and_then(Value::as_object).unwrap_or(&theirs);
    for (key, ours) in ours.iter().filter(|(key, _)| !OWN_KEYS.contains(&key.as_str())) {
        let said = text.get(key).or(theirs.get(key)).filter(|value| !value.is_null());
        if let Some(said) = said.filter(|said| !is_same(ours, said)) {
            let detail = format!("its metadata make `{key}` {ours}, the source has {said}");
            found.push(Difference { class: FaultClass::Config, detail });
        }
    }
    if source.size(TOKENIZER).is_some() {
        found.extend(tokenizer(&object(&view, TOKENIZER)?, &object(source, TOKENIZER)?));
    }
    let template =
        |files: &dyn Source| files.size(TEMPLATE).map(|_| files.read_file(TEMPLATE)).transpose();
    let detail = match (template(&view)?, template(source)?) {
        (Some(ours), Some(theirs)) if ours != theirs => "its chat template is not the source's",
        (None, Some(_)) => "it has no chat template, the source has one",
        (Some(_), None) if !has_template_in_settings(source)? => {
            "it has a chat template, the source has none"
        }
        _ => return Ok(found),
    };
    found.push(Difference { class: FaultClass::CompanionFile, detail: detail.into() });
    Ok(found)
}

fn has_template_in_settings(source: &dyn Source) -> Result<bool> {
    const SETTINGS: &str = "tokenizer_config.json";
    let is_there = source.size(SETTINGS).is_some();
    Ok(is_there && object(source, SETTINGS)?.contains_key("chat_template"))
}

fn object(source: &dyn Source, file: &str) -> Result<Map<String, Value>> {
    match json::parse(file, &source.read_file(file)?)? {
        Value::Object(object) => Ok(object),
        _ => {
            Err(FormatError::Json { file: file.into(), problem: "it is not a JSON object".into() })
        }
    }
}

/// Whether two values mean the same. A fraction went through f32; of objects only what both name is
/// compared, since each side leaves defaults out.
fn is_same(ours: &Value, theirs: &Value) -> bool {
    match (ours, theirs) {
        (Value::Number(ours), Value::Number(theirs)) => {
            let pair = ours.as_f64().zip(theirs.as_f64());
            pair.is_some_and(|(ours, theirs)| (ours - theirs).abs() <= 1e-6 * theirs.abs())
        }
        (Value::Object(ours), Value::Object(theirs)) => ours
            .iter()
            .all(|(key, ours)| theirs.get(key).is_none_or(|theirs| is_same(ours, theirs))),
        (Value::Array(ours), Value::Array(theirs)) => {
            ours.len() == theirs.len() && ours.iter().zip(theirs).all(|(a, b)| is_same(a, b))
        }
        _ => ours == theirs,
    }
}

/// Tokens with other ids, and merges in another order.
fn tokenizer(ours: &Map<String, Value>, theirs: &Map<String, Value>) -> Vec<Difference> {
    let vocabulary = |tokenizer: &Map<String, Value>| {
        tokenizer.get("model").and_then(|model| model["vocab"].as_object()).cloned()
    };
    let (ours_by_token, theirs_by_token) =
        (vocabulary(ours).unwrap_or_default(), vocabulary(theirs).unwrap_or_default());
    let mut found = Vec::new();
    let mut fail = |detail| found.push(Difference { class: FaultClass::CompanionFile, detail });
    let other = theirs_by_token.iter().filter(|(token, id)| ours_by_token.get(*token) != Some(*id));
    let other: Vec<&String> = other.map(|(token, _)| token).collect();
    if let Some(first) = other.first() {
        let count = other.len();
        fail(format!("{count} tokens of the source have another id or none, `{first}` the first"));
    }
    let merges = |tokenizer: &Map<String, Value>| -> Vec<[String; 2]> {
        let list = tokenizer.get("model").and_then(|model| model["merges"].as_array());
        list.into_iter().flatten().map(halves).collect()
    };
    if merges(ours) != merges(theirs) {
        fail("its merges are not the source's".into());
    }
    found
}

/// A merge in either spelling: a list of two, or one text with a space between.
fn halves(merge: &Value) -> [String; 2] {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
    match merge {
        Value::Array(pair) if pair.len() == 2 => [text(&pair[0]), text(&pair[1])],
        other => {
            let whole = text(other);
            let (one, two) = whole.split_once(' ').unwrap_or((&whole, ""));
            [one.into(), two.into()]
        }
    }
}
