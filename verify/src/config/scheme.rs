//! `quantization_config`: what it says must be what the tensors show, for every reader.

use serde_json::{Map, Value};
use w4pack_format::config::CONFIG_FILE;
use w4pack_format::quantization::{ModuleClass, Quantization, Target};

use super::facts::Facts;
use super::layouts::Layout;
use super::{Word, patterns};
use crate::report::FaultClass;
use crate::spelling::shortened;

type Object = Map<String, Value>;

const FIELD: &str = "quantization_config";

/// Checks `quantization_config` of a result's configuration.
pub fn check_scheme(config: &Object, facts: &Facts) -> Vec<Word> {
    let Some(value) = config.get(FIELD) else {
        return vec![wrong(format!("`{FIELD}` is missing"))];
    };
    let (scheme, object) = match (Quantization::parse(CONFIG_FILE, value), value.as_object()) {
        (Ok(scheme), Some(object)) => (scheme, object),
        (Err(error), _) => return vec![wrong(error.to_string())],
        (Ok(_), None) => return vec![wrong(format!("`{FIELD}` is not an object"))],
    };
    let possible: Vec<(Layout, Value)> =
        Layout::possible(facts).into_iter().map(|layout| (layout, layout.scheme(facts))).collect();
    if possible.iter().any(|(_, expected)| *expected == *value) {
        return Vec::new();
    }
    let mut words = check_values(object);
    words.extend(check_groups(object, facts));
    for module in &facts.modules {
        if scheme.covers(&module.name, module.class()) != module.packed {
            let (said, is) =
                if module.packed { ("leaves out", "packed") } else { ("covers", "bf16") };
            words.push(wrong(format!("it {said} `{}`, which is {is}", module.name)));
        }
    }
    words.extend(check_head(&scheme, facts));
    match possible.first() {
        None => words.push(wrong("no layout holds just these tensors in 4 bits".into())),
        Some((layout, expected)) => {
            words.extend(check_dequantize(object, expected, layout.wants_dequantize(facts), facts));
            words.extend(differences(object, expected));
        }
    }
    words
}

fn wrong(detail: String) -> Word {
    Word::Wrong(FaultClass::Config, detail)
}

/// Kinds of values, where the official readers demand one. Other keys were refused in parsing.
fn check_values(scheme: &Object) -> Vec<Word> {
    let is_version = |value: &Value| {
        let text = value.as_str().unwrap_or_default();
        let parts: Vec<&str> = text.split('.').collect();
        let number = |part: &&str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        parts.len() >= 2 && parts.iter().take(2).all(number) && text.len() < 40
    };
    let is_empty = |value: &Value| value.as_object().is_some_and(Map::is_empty) || value.is_null();
    let mut words = Vec::new();
    for (key, value) in scheme {
        let good = match key.as_str() {
            "version" => is_version(value),
            "kv_cache_scheme" | "moe_sparsity_config" => value.is_null(),
            "global_compression_ratio" => value.is_null() || value.is_number(),
            "sparsity_config" | "transform_config" => is_empty(value),
            "input_activations" | "output_activations" => false,
            "run_compressed" => value.is_boolean() && scheme.get("dequantize") != Some(value),
            "use_optimized_inference" => value.is_boolean(),
            _ => true,
        };
        if !good {
            let value = shortened(&value.to_string());
            words.push(wrong(format!("`{FIELD}.{key}` is {value}, which readers refuse")));
        }
    }
    words
}

/// One group under a plain name, its values of the right kinds, and entries that every reader
/// takes the same way.
fn check_groups(scheme: &Object, facts: &Facts) -> Vec<Word> {
    let mut words = Vec::new();
    let groups = scheme.get("config_groups").and_then(Value::as_object);
    let groups: Vec<(&String, &Value)> = groups.into_iter().flatten().collect();
    if groups.len() > 1 {
        words.push(wrong("it has more than one config group".into()));
    }
    let mut lists = vec![scheme.get("ignore")];
    for (name, group) in groups {
        let plain = name.strip_prefix("group_").is_some_and(|n| n.parse::<u32>().is_ok());
        if !plain {
            let name = shortened(name);
            words.push(wrong(format!("its config group is called `{name}`, not `group_0`")));
        }
        lists.push(group.get("targets"));
        for key in ["input_activations", "output_activations"] {
            if let Some(value) = group.get(key).filter(|value| !value.is_null()) {
                let value = shortened(&value.to_string());
                words.push(wrong(format!("`{key}` is {value}: packed weights need null")));
            }
        }
        for (key, value) in group.get("weights").and_then(Value::as_object).into_iter().flatten() {
            let good = match key.as_str() {
                "dynamic" => value.is_boolean(),
                "observer" => value.is_string() || value.is_null(),
                "observer_kwargs" => value.is_object() || value.is_null(),
                _ => true,
            };
            if !good {
                let value = shortened(&value.to_string());
                words.push(wrong(format!("`weights.{key}` is {value}, which readers refuse")));
            }
        }
    }
    let entries = lists.into_iter().flatten().filter_map(Value::as_array).flatten();
    for entry in entries.filter_map(Value::as_str) {
        words.extend(patterns::problem(entry, facts).map(|problem| wrong(shortened(&problem))));
    }
    words
}

/// A tied head must not be named; a head of its own is covered exactly when it is packed.
fn check_head(scheme: &Quantization, facts: &Facts) -> Option<Word> {
    let covered = scheme.covers("lm_head", ModuleClass::Linear);
    if facts.has_head {
        return (covered != facts.head_packed)
            .then(|| wrong(format!("whether it covers lm_head ({covered}) does not fit it")));
    }
    let named = scheme.targets.iter().any(|target| match target {
        Target::Name(name) => name == "lm_head",
        Target::Pattern(pattern) => pattern.is_match("lm_head"),
    });
    // vLLM would compute logits from memory that nobody filled.
    named.then(|| wrong("it names lm_head as a target, but the head is tied".into()))
}

/// Without `dequantize` transformers cannot load packed tables, and casts scales to bf16.
fn check_dequantize(
    scheme: &Object,
    expected: &Value,
    wanted: bool,
    facts: &Facts,
) -> Option<Word> {
    match scheme.get("dequantize") {
        Some(Value::Bool(false)) if wanted => {
            Some(wrong(format!("`{FIELD}.dequantize` is false, this layout needs true")))
        }
        // The official writer leaves the key out. A scheme that is w4pack's but for it is not the
        // official writer's.
        None if wanted && facts.has_packed_table() => {
            let mut with = scheme.clone();
            with.insert("dequantize".into(), true.into());
            let detail = "it is missing, and without it transformers cannot load a packed table";
            (Value::Object(with) == *expected)
                .then(|| wrong(format!("`{FIELD}.dequantize`: {detail}")))
        }
        _ => None,
    }
}

/// The ways in which a sound scheme differs from w4pack's own.
fn differences(found: &Object, expected: &Value) -> Vec<Word> {
    let mut words = Vec::new();
    let Some(expected) = expected.as_object() else { return words };
    for (key, wanted) in expected {
        let value = found.get(key);
        if value != Some(wanted) {
            let value = value.map_or("absent".into(), |value| value.to_string());
            words
                .push(Word::Variant(format!("`{FIELD}.{key}` is {value}, w4pack writes {wanted}")));
        }
    }
    for (key, value) in found.iter().filter(|(key, _)| !expected.contains_key(*key)) {
        words.push(Word::Variant(format!("`{FIELD}.{key}` is {value}, w4pack leaves it out")));
    }
    words
}
