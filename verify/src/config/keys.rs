//! The keys of config.json that both sides share, and those that a layout adds or drops.

use serde_json::{Map, Value};
use w4pack_format::config::{CONFIG_FILE, Config};
use w4pack_format::names::NameLayout;

use super::{Facts, Word, layout_of};
use crate::report::FaultClass;

type Object = Map<String, Value>;

/// Top-level keys of a multimodal configuration that only image and audio need.
const OF_TOWERS: [&str; 12] = [
    "audio_config",
    "audio_token_id",
    "boa_token_id",
    "boi_token_id",
    "eoa_token_id",
    "eoa_token_index",
    "eoi_token_id",
    "image_token_id",
    "text_config",
    "video_token_id",
    "vision_config",
    "vision_soft_tokens_per_image",
];

/// Keys that say who wrote the file and change nothing.
const OF_WRITERS: [&str; 3] = ["transformers_version", "_name_or_path", "torch_dtype"];

/// Keys in which the per-layer head sizes are spelled; transformers rewrites them when it saves.
const OF_HEAD_SIZES: [&str; 3] =
    ["global_head_dim", "num_global_key_value_heads", "per_layer_config"];

/// Compares all keys but `quantization_config`.
pub fn compare(theirs: &Object, ours: &Object, facts: &Facts) -> Vec<Word> {
    let mut words = Vec::new();
    let declared = layout_of(ours);
    if declared != facts.layout {
        words.push(wrong(format!(
            "it describes a {} model, the tensors carry {} names",
            name(declared),
            name(facts.layout)
        )));
    }
    let mut rest = ours.clone();
    rest.shift_remove("quantization_config");
    check_tie(&mut rest, facts, &mut words);
    match (layout_of(theirs), declared) {
        (NameLayout::TextOnly, NameLayout::Multimodal) => {
            words.push(wrong("it is multimodal, the source is text-only".into()));
        }
        (NameLayout::Multimodal, NameLayout::TextOnly) => {
            let expected = text_only(theirs, &rest);
            objects("", &expected, &rest, &mut words);
        }
        _ => {
            let mut expected = theirs.clone();
            remove_ties(&mut expected);
            objects("", &expected, &rest, &mut words);
        }
    }
    accept_head_sizes(theirs, ours, words)
}

fn wrong(detail: String) -> Word {
    Word::Wrong(FaultClass::Config, detail)
}

fn name(layout: NameLayout) -> &'static str {
    match layout {
        NameLayout::Multimodal => "multimodal",
        NameLayout::TextOnly => "text-only",
    }
}

/// The tie flag must say whether the file holds a head of its own; removes it from the comparison.
fn check_tie(ours: &mut Object, facts: &Facts, words: &mut Vec<Word>) {
    let expected = !facts.has_head;
    let nested = ours.get("text_config").and_then(|text| text.get("tie_word_embeddings"));
    let flags = [("", ours.get("tie_word_embeddings")), ("text_config.", nested)];
    for (path, flag) in flags {
        // Absent or null means tied, nested: what the top level says.
        let said = match flag {
            None | Some(Value::Null) if path.is_empty() => true,
            None | Some(Value::Null) => continue,
            Some(flag) => *flag == Value::Bool(true),
        };
        if said != expected {
            let found = flag.map_or("absent".into(), Value::to_string);
            let head = if facts.has_head { "a head of its own" } else { "no head of its own" };
            words.push(Word::Wrong(
                FaultClass::Tie,
                format!("`{path}tie_word_embeddings` is {found}, but the result has {head}"),
            ));
        }
    }
    remove_ties(ours);
}

fn remove_ties(config: &mut Object) {
    config.shift_remove("tie_word_embeddings");
    if let Some(Value::Object(text)) = config.get_mut("text_config") {
        text.shift_remove("tie_word_embeddings");
    }
}

/// The text-only configuration of a multimodal one.
///
/// Where both levels have a key (stop ids, dtype), either one's value is accepted: `ours` decides
/// which is expected.
fn text_only(theirs: &Object, ours: &Object) -> Object {
    let empty = Object::new();
    let text = theirs.get("text_config").and_then(Value::as_object).unwrap_or(&empty);
    let mut expected = text.clone();
    for (key, value) in theirs {
        let both = text.contains_key(key);
        if OF_TOWERS.contains(&key.as_str()) || (both && ours.get(key) != Some(value)) {
            continue;
        }
        if !both && !ours.contains_key(key) && OF_WRITERS.contains(&key.as_str()) {
            continue;
        }
        expected.insert(key.clone(), value.clone());
    }
    expected.insert("architectures".into(), vec![Value::from("Gemma4ForCausalLM")].into());
    expected.insert("model_type".into(), "gemma4_text".into());
    remove_ties(&mut expected);
    expected
}

/// Compares two objects key by key, nested ones by path.
fn objects(path: &str, expected: &Object, found: &Object, words: &mut Vec<Word>) {
    for (key, wanted) in expected {
        let at = format!("{path}{key}");
        match (wanted, found.get(key)) {
            (Value::Object(wanted), Some(Value::Object(found))) => {
                objects(&format!("{at}."), wanted, found, words);
            }
            (_, Some(found)) if same(wanted, found) => {}
            (Value::Null, None) => words.push(Word::Variant(format!("`{at}` (null) is left out"))),
            (_, found) => {
                let found = found.map_or("absent".into(), Value::to_string);
                let detail = format!("`{at}` is {found}, it must be {wanted}");
                let free = OF_WRITERS.contains(&key.as_str());
                words.push(if free { Word::Variant(detail) } else { wrong(detail) });
            }
        }
    }
    for (key, found) in found.iter().filter(|(key, _)| !expected.contains_key(*key)) {
        let detail = format!("`{path}{key}` is {found}, the source has no such key");
        let free = found.is_null() || OF_WRITERS.contains(&key.as_str());
        words.push(if free { Word::Variant(detail) } else { wrong(detail) });
    }
}

/// Equal values; 30 and 30.0 are one number.
fn same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => {
            one == other || (one.as_f64() == other.as_f64() && one.is_f64() != other.is_f64())
        }
        _ => one == other,
    }
}

/// Both spellings of the head sizes are accepted when they say the same about every layer.
fn accept_head_sizes(theirs: &Object, ours: &Object, words: Vec<Word>) -> Vec<Word> {
    let about_sizes = |word: &Word| match word {
        Word::Wrong(FaultClass::Config, detail) => OF_HEAD_SIZES.iter().any(|key| {
            detail.starts_with(&format!("`{key}`"))
                || detail.starts_with(&format!("`text_config.{key}`"))
                || detail.starts_with(&format!("`{key}."))
                || detail.starts_with(&format!("`text_config.{key}."))
        }),
        _ => false,
    };
    let text = |object: &Object| {
        let mut object = object.clone();
        object.shift_remove("quantization_config");
        Config::parse(CONFIG_FILE, Value::Object(object).to_string().as_bytes())
            .ok()
            .map(|config| config.text)
    };
    let spelled_anew = OF_HEAD_SIZES[2];
    let other_spelling = layered(theirs, spelled_anew) != layered(ours, spelled_anew);
    if !words.iter().any(about_sizes) || !other_spelling {
        return words;
    }
    match (text(theirs), text(ours)) {
        (Some(theirs), Some(ours)) if theirs.layers == ours.layers => {
            let mut kept: Vec<Word> = words.into_iter().filter(|word| !about_sizes(word)).collect();
            kept.push(Word::Variant(
                "the head sizes are spelled another way and say the same of every layer".into(),
            ));
            kept
        }
        _ => words,
    }
}

/// Whether a configuration uses a key, on the text level.
fn layered(config: &Object, key: &str) -> bool {
    let text = config.get("text_config").and_then(Value::as_object).unwrap_or(config);
    text.contains_key(key)
}
