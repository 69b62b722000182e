//! The two spellings of the per-layer head sizes: Google's `global_head_dim`, and the
//! `per_layer_config` that transformers writes when it saves. Its presence alone, even as null,
//! makes readers forget the other one.

use serde_json::{Map, Value};
use w4pack_format::config::{CONFIG_FILE, Config, LayerConfig};

use super::Word;
use crate::report::FaultClass;

type Object = Map<String, Value>;

const PER_LAYER: &str = "per_layer_config";
const GLOBAL: [&str; 2] = ["global_head_dim", "num_global_key_value_heads"];

/// When source and result use different spellings: takes these keys out of the comparison and says
/// whether both say the same of every layer. When they use the same one, leaves all to the
/// comparison key by key.
pub fn compare(expected: &mut Object, found: &mut Object) -> Option<Word> {
    let (of_source, of_result) = (layers(expected), layers(found));
    let (theirs, ours) = (text_level(expected), text_level(found));
    if theirs.contains_key(PER_LAYER) == ours.contains_key(PER_LAYER) {
        return None;
    }
    let stray = GLOBAL.into_iter().find(|key| match (ours.get(*key), theirs.get(*key)) {
        (None, _) => false,
        (Some(value), Some(wanted)) => value != wanted,
        // Only the result has it. The size of full layers is needed where it is the spelling.
        (Some(value), None) if *key == GLOBAL[0] => value.is_null() || ours.contains_key(PER_LAYER),
        (Some(value), None) => !value.is_null(),
    });
    for key in [PER_LAYER, GLOBAL[0], GLOBAL[1]] {
        remove(expected, key);
        remove(found, key);
    }
    let wrong = |detail: String| Some(Word::Wrong(FaultClass::Config, detail));
    if let Some(key) = stray {
        return wrong(format!("`{key}` is not the source's and contradicts the other spelling"));
    }
    match (of_source, of_result) {
        (Some(of_source), Some(of_result)) if of_source == of_result => Some(Word::Variant(
            "the head sizes are spelled another way and say the same of every layer".into(),
        )),
        _ => wrong(format!("`{PER_LAYER}` and `{}` give other head sizes", GLOBAL[0])),
    }
}

fn text_level(config: &Object) -> &Object {
    config.get("text_config").and_then(Value::as_object).unwrap_or(config)
}

fn remove(config: &mut Object, key: &str) {
    match config.get_mut("text_config") {
        Some(Value::Object(text)) => text.shift_remove(key),
        _ => config.shift_remove(key),
    };
}

/// The layers that a configuration describes, if it can be read.
fn layers(config: &Object) -> Option<Vec<LayerConfig>> {
    let text = Value::Object(config.clone()).to_string();
    Config::parse(CONFIG_FILE, text.as_bytes()).ok().map(|config| config.text.layers)
}
