//! `quantization_config`: what it says must be what the tensors show, for every reader.

use serde_json::{Map, Value, json};
use w4pack_format::config::CONFIG_FILE;
use w4pack_format::names::NameLayout;
use w4pack_format::quantization::{ModuleClass, Quantization};

use super::Word;
use crate::report::FaultClass;

/// What the tensors of a result show.
#[derive(Debug, Clone)]
pub struct Facts {
    /// The names' layout.
    pub layout: NameLayout,
    /// Modules of the text model that could be packed: full name, class, whether they are.
    pub modules: Vec<(String, ModuleClass, bool)>,
    /// Whether `embed_tokens` and `embed_tokens_per_layer` are packed (none: no such table).
    pub tables_packed: [bool; 2],
    /// Whether the file holds a head of its own, and whether that is packed.
    pub has_head: bool,
    /// Only meaningful with a head.
    pub head_packed: bool,
    /// Whether every scale is bf16.
    pub all_scales_bf16: bool,
}

const FIELD: &str = "quantization_config";

const TOWER_PATTERNS: [&str; 4] =
    ["re:.*vision_tower.*", "re:.*audio_tower.*", "re:.*embed_vision.*", "re:.*embed_audio.*"];

/// Checks `quantization_config` of a result's configuration.
pub fn check_scheme(config: &Map<String, Value>, facts: &Facts) -> Vec<Word> {
    let wrong = |detail: String| Word::Wrong(FaultClass::Config, detail);
    let Some(value) = config.get(FIELD) else {
        return vec![wrong(format!("`{FIELD}` is missing"))];
    };
    let scheme = match Quantization::parse(CONFIG_FILE, value) {
        Ok(scheme) => scheme,
        Err(error) => return vec![wrong(error.to_string())],
    };
    let mut words = Vec::new();
    let mut groups = value["config_groups"].as_object().into_iter().flat_map(Map::values);
    if groups.clone().count() > 1 {
        words.push(wrong("it has more than one config group".into()));
    }
    let lists = groups.next().map(|group| &group["targets"]).into_iter().chain(value.get("ignore"));
    for pattern in lists.filter_map(Value::as_array).flatten().filter_map(Value::as_str) {
        let open =
            pattern.starts_with("re:") && !pattern.ends_with('$') && !pattern.ends_with(".*");
        if open {
            let detail = format!("the pattern `{pattern}` is not anchored with $");
            words.push(wrong(detail));
        }
    }
    for (module, class, packed) in &facts.modules {
        if scheme.covers(module, *class) != *packed {
            let (said, is) = if *packed { ("leaves out", "packed") } else { ("covers", "bf16") };
            words.push(wrong(format!("it {said} `{module}`, which is {is}")));
        }
    }
    words.extend(check_head(value, &scheme, facts));
    words.extend(check_dequantize(value, facts));
    let expected = expected(facts);
    words.extend(differences(value, &expected));
    words
}

/// A tied head must not be named; a head of its own is covered exactly when it is packed.
fn check_head(value: &Value, scheme: &Quantization, facts: &Facts) -> Option<Word> {
    let covered = scheme.covers("lm_head", ModuleClass::Linear);
    if facts.has_head && covered != facts.head_packed {
        let detail = format!("whether it covers lm_head ({covered}) does not fit the tensors");
        return Some(Word::Wrong(FaultClass::Config, detail));
    }
    let named = value.pointer("/config_groups/group_0/targets").and_then(Value::as_array);
    let named = named.into_iter().flatten().filter_map(Value::as_str);
    let named = named.filter(|target| target.contains("lm_head")).count() > 0;
    if !facts.has_head && covered && named {
        let detail = "it names lm_head as a target, but the head is tied";
        return Some(Word::Wrong(FaultClass::Config, detail.into()));
    }
    None
}

/// Without `dequantize` transformers cannot load packed tables, and casts scales to bf16.
fn check_dequantize(value: &Value, facts: &Facts) -> Option<Word> {
    match value.get("dequantize") {
        Some(Value::Bool(false)) if wants_dequantize(facts) => {
            let detail = format!("`{FIELD}.dequantize` is false, this layout needs true");
            Some(Word::Wrong(FaultClass::Config, detail))
        }
        _ => None,
    }
}

fn wants_dequantize(facts: &Facts) -> bool {
    facts.tables_packed.contains(&true) || !facts.all_scales_bf16
}

/// What w4pack writes for such tensors.
fn expected(facts: &Facts) -> Value {
    let [embed, per_layer] = facts.tables_packed;
    let pattern = |name: &str| Value::from(format!("re:.*{name}$"));
    let (mut targets, mut ignore) = (vec![Value::from("Linear")], Vec::new());
    if embed {
        targets.push(pattern("embed_tokens"));
    }
    if per_layer {
        targets.push(pattern("embed_tokens_per_layer"));
    }
    let head = if facts.has_head { &mut targets } else { &mut ignore };
    head.push(pattern("lm_head"));
    if per_layer && !embed {
        ignore.push(pattern("embed_tokens"));
    }
    if facts.layout == NameLayout::Multimodal {
        ignore.extend(TOWER_PATTERNS.map(Value::from));
    }
    let mut scheme = json!({
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "version": "0.20.1",
        "config_groups": {"group_0": {
            "format": "pack-quantized",
            "targets": targets,
            "weights": {
                "num_bits": 4, "type": "int", "symmetric": true,
                "strategy": "group", "group_size": 32, "dynamic": false
            },
            "input_activations": null,
            "output_activations": null
        }},
        "ignore": ignore,
        "kv_cache_scheme": null,
        "global_compression_ratio": null,
        "sparsity_config": {},
        "transform_config": {}
    });
    if wants_dequantize(facts) {
        scheme["dequantize"] = true.into();
    }
    scheme
}

/// Accepted ways in which a sound scheme differs from w4pack's own.
fn differences(found: &Value, expected: &Value) -> Vec<Word> {
    let mut words = Vec::new();
    let (Some(found), Some(expected)) = (found.as_object(), expected.as_object()) else {
        return words;
    };
    for (key, wanted) in expected {
        let value = found.get(key);
        if value != Some(wanted) {
            let value = value.map_or("absent".into(), Value::to_string);
            words
                .push(Word::Variant(format!("`{FIELD}.{key}` is {value}, w4pack writes {wanted}")));
        }
    }
    for (key, value) in found.iter().filter(|(key, _)| !expected.contains_key(*key)) {
        words.push(Word::Variant(format!("`{FIELD}.{key}` is {value}, w4pack leaves it out")));
    }
    words
}
