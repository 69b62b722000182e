//! The keys of config.json that both sides share, and those that a layout adds or drops.

use serde_json::{Map, Value};
use w4pack_format::config::Family;
use w4pack_format::names::NameLayout;

use super::{Facts, Word, head_sizes, layout_of};
use crate::report::FaultClass;
use crate::spelling::shortened;

type Object = Map<String, Value>;

/// Top-level keys of a multimodal configuration that only image and audio need.
const OF_TOWERS: [&str; 16] = [
    "audio_config",
    "audio_token_id",
    "boa_token_id",
    "boi_token_id",
    "boi_token_index",
    "eoa_token_id",
    "eoa_token_index",
    "eoi_token_id",
    "eoi_token_index",
    "image_token_id",
    "image_token_index",
    "mm_tokens_per_image",
    "text_config",
    "video_token_id",
    "vision_config",
    "vision_soft_tokens_per_image",
];

/// Keys that say who wrote the file and change nothing; each holds a text.
const OF_WRITERS: [&str; 2] = ["transformers_version", "_name_or_path"];

/// Keys whose default is null, so that writers may leave them out or add them as null. Source:
/// transformers 5.24 `configuration_gemma4.py`. Elsewhere null is a value like any other.
const NULL_BY_DEFAULT: [&str; 8] = [
    "expert_intermediate_size",
    "final_logit_softcapping",
    "moe_intermediate_size",
    "num_experts",
    "num_global_key_value_heads",
    "problem_type",
    "top_k_experts",
    "use_bidirectional_attention",
];

const TIE: &str = "tie_word_embeddings";

/// Compares all keys but `quantization_config`.
pub fn compare(theirs: &Object, ours: &Object, facts: &Facts) -> Vec<Word> {
    let mut words = Vec::new();
    let declared = layout_of(ours);
    if declared.is_multimodal() != facts.layout.is_multimodal() {
        words.push(wrong(format!(
            "it describes a {} model, the tensors carry {} names",
            name(declared),
            name(facts.layout)
        )));
    }
    let mut expected = match (layout_of(theirs).is_multimodal(), declared.is_multimodal()) {
        (false, true) => {
            words.push(wrong("it is multimodal, the source is text-only".into()));
            return words;
        }
        (true, true) => theirs.clone(),
        (true, false) => of_text_model(lifted(theirs), theirs),
        (false, false) => of_text_model(theirs.clone(), theirs),
    };
    let mut found = ours.clone();
    found.shift_remove("quantization_config");
    words.extend(check_tie(theirs, ours, facts));
    for config in [&mut expected, &mut found] {
        remove_ties(config);
    }
    words.extend(head_sizes::compare(&mut expected, &mut found));
    objects("", &expected, &found, &mut words);
    words
}

fn wrong(detail: String) -> Word {
    Word::Wrong(FaultClass::Config, detail)
}

fn name(layout: NameLayout) -> &'static str {
    if layout.is_multimodal() { "multimodal" } else { "text-only" }
}

/// The tie flag must stand there and say whether the file holds a head of its own.
fn check_tie(theirs: &Object, ours: &Object, facts: &Facts) -> Vec<Word> {
    let nested =
        |config: &Object| config.get("text_config").and_then(|text| text.get(TIE)).cloned();
    let mut flags = vec![("", ours.get(TIE).cloned())];
    if ours.contains_key("text_config") {
        flags.push(("text_config.", nested(ours)));
    }
    let mut words = Vec::new();
    for (path, flag) in flags {
        let head = if facts.has_head { "a head of its own" } else { "no head of its own" };
        if flag == Some(Value::Bool(!facts.has_head)) {
            continue;
        }
        let found = flag.as_ref().map_or("absent".into(), Value::to_string);
        let detail = format!("`{path}{TIE}` is {found}, but the result has {head}");
        let as_source = !path.is_empty() && flag.is_none() && nested(theirs).is_none();
        words.push(if as_source {
            Word::Variant(format!("`{path}{TIE}` is absent, as in the source"))
        } else {
            Word::Wrong(FaultClass::Tie, detail)
        });
    }
    words
}

fn remove_ties(config: &mut Object) {
    config.shift_remove(TIE);
    if let Some(Value::Object(text)) = config.get_mut("text_config") {
        text.shift_remove(TIE);
    }
}

/// The text-only configuration of a multimodal one: the text model's keys, then the top level's
/// own but for the towers'. Of a key that stands on both levels the text model's value holds, but
/// for `eos_token_id`: the top level's list of stop ids is the fuller one.
fn lifted(theirs: &Object) -> Object {
    let mut lifted = Object::new();
    if let Some(Value::Object(text)) = theirs.get("text_config") {
        lifted.extend(text.iter().map(|(key, value)| (key.clone(), value.clone())));
    }
    for (key, value) in theirs.iter().filter(|(key, _)| !OF_TOWERS.contains(&key.as_str())) {
        if key == "eos_token_id" {
            lifted.insert(key.clone(), value.clone());
        } else {
            lifted.entry(key.clone()).or_insert_with(|| value.clone());
        }
    }
    lifted
}

/// Names the text-only class and model of the source's family.
fn of_text_model(mut config: Object, source: &Object) -> Object {
    let model_type = source.get("model_type").and_then(Value::as_str);
    if let Some((family, _)) = model_type.and_then(Family::of) {
        config.insert("architectures".into(), vec![Value::from(family.causal_class())].into());
        config.insert("model_type".into(), family.text_type().into());
    }
    config
}

/// Compares two objects key by key, nested ones by path.
fn objects(path: &str, expected: &Object, found: &Object, words: &mut Vec<Word>) {
    let is_text_level = ["", "text_config."].contains(&path);
    let of_writers = |key: &str| is_text_level && OF_WRITERS.contains(&key);
    let null_by_default = |key: &str| is_text_level && NULL_BY_DEFAULT.contains(&key);
    for (key, wanted) in expected {
        let at = format!("{path}{key}");
        let Some(value) = found.get(key) else {
            words.push(if of_writers(key) || (wanted.is_null() && null_by_default(key)) {
                Word::Variant(format!("`{at}` ({wanted}) is left out"))
            } else {
                wrong(format!("`{at}` is absent, it must be {}", shown(wanted)))
            });
            continue;
        };
        if let (Value::Object(wanted), Value::Object(value)) = (wanted, value) {
            objects(&format!("{at}."), wanted, value, words);
            continue;
        }
        let detail = || format!("`{at}` is {}, it must be {}", shown(value), shown(wanted));
        match agreement(wanted, value) {
            Agreement::Same => {}
            Agreement::OtherSpelling => words.push(Word::Variant(detail())),
            Agreement::No if of_writers(key) && value.is_string() => {
                words.push(Word::Variant(detail()));
            }
            Agreement::No => words.push(wrong(detail())),
        }
    }
    for (key, value) in found.iter().filter(|(key, _)| !expected.contains_key(*key)) {
        let detail = format!("`{path}{key}` is {}, the source has no such key", shown(value));
        let harmless = (of_writers(key) && value.is_string())
            || (null_by_default(key) && value.is_null())
            // The former name of `dtype`.
            || (key == "torch_dtype" && is_text_level && expected.get("dtype") == Some(value));
        words.push(if harmless { Word::Variant(detail) } else { wrong(detail) });
    }
}

fn shown(value: &Value) -> String {
    shortened(&value.to_string())
}

/// How a value agrees with the source's.
enum Agreement {
    Same,
    /// The source's 30.0 as 30.
    OtherSpelling,
    No,
}

/// Whether two values agree. Readers demand integers where the source has one: 128.0 is not 128.
fn agreement(wanted: &Value, found: &Value) -> Agreement {
    match (wanted, found) {
        _ if wanted == found => Agreement::Same,
        (Value::Number(wanted), Value::Number(found))
            if wanted.is_f64() && !found.is_f64() && wanted.as_f64() == found.as_f64() =>
        {
            Agreement::OtherSpelling
        }
        _ => Agreement::No,
    }
}
