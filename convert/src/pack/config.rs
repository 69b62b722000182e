//! `config.json` of a packed checkpoint: the source's, text-only, with `quantization_config`.

use serde_json::{Map, Value, json};
use w4pack_format::config::Config;
use w4pack_format::names::NameLayout;

/// Top-level keys of a multimodal configuration that a text model has no use for.
const OF_TOWERS: [&str; 16] = [
    "text_config",
    "vision_config",
    "audio_config",
    "image_token_id",
    "image_token_index",
    "audio_token_id",
    "video_token_id",
    "boi_token_id",
    "boi_token_index",
    "eoi_token_id",
    "eoi_token_index",
    "boa_token_id",
    "eoa_token_id",
    "eoa_token_index",
    "mm_tokens_per_image",
    "vision_soft_tokens_per_image",
];

/// The largest f16 number.
const F16_MAX: f32 = 65504.0;

/// The configuration of the `emb4` output.
///
/// Of a multimodal source the text fields move to the top level, in their order, behind
/// `architectures`; then follow the top level's own keys but for those of the towers. A key of both
/// keeps the text model's value, only `eos_token_id` the top level's (Google's list of stop ids).
/// Of a text-only source every key stays where it is. In both `tie_word_embeddings` is true and
/// `quantization_config` comes last.
///
/// `kept` are the modules (names in the output) that stay in bf16 although the targets match them.
pub fn packed_config(config: &Config, kept: &[String]) -> Value {
    let mut packed = match config.layout {
        NameLayout::TextOnly => config.raw.as_object().cloned().unwrap_or_default(),
        NameLayout::Multimodal | NameLayout::MultimodalGemma3 => lifted(&config.raw),
    };
    let family = config.text.family;
    packed.insert("architectures".into(), json!([family.causal_class()]));
    packed.insert("model_type".into(), json!(family.text_type()));
    packed.insert("tie_word_embeddings".into(), json!(true));
    let has_router = config.text.experts.is_some();
    packed.insert("quantization_config".into(), quantization_config(has_router, kept));
    Value::Object(packed)
}

/// The fields of `text_config`, with room for `architectures` in front.
fn lifted(raw: &Value) -> Map<String, Value> {
    let mut fields = Map::new();
    fields.insert("architectures".into(), Value::Null);
    if let Some(text) = raw.get("text_config").and_then(Value::as_object) {
        fields.extend(text.clone());
    }
    for (key, value) in raw.as_object().into_iter().flatten() {
        let of_towers = OF_TOWERS.contains(&key.as_str());
        if key == "eos_token_id" || !(of_towers || fields.contains_key(key)) {
            fields.insert(key.clone(), value.clone());
        }
    }
    fields
}

fn quantization_config(has_router: bool, kept: &[String]) -> Value {
    let mut ignore = vec!["re:.*lm_head$".to_string()];
    if has_router {
        ignore.push(r"re:.*router\.proj$".into());
    }
    ignore.extend(kept.iter().map(|module| ignored(module)));
    json!({
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "version": "0.20.1",
        "dequantize": true,
        "config_groups": {"group_0": {
            "format": "pack-quantized",
            "targets": ["Linear", "re:.*embed_tokens$", "re:.*embed_tokens_per_layer$"],
            "weights": {
                "num_bits": 4, "type": "int", "symmetric": true, "strategy": "group",
                "group_size": 32, "dynamic": false
            },
            "input_activations": null,
            "output_activations": null
        }},
        "ignore": ignore,
        "kv_cache_scheme": null,
        "global_compression_ratio": null,
        "sparsity_config": {},
        "transform_config": {}
    })
}

/// The pattern for one module. Readers put prefixes of their own in front, so it begins with `.*`;
/// Python's `re.match` does not anchor the end, so it ends with `$`.
fn ignored(module: &str) -> String {
    let below = module.strip_prefix(NameLayout::TextOnly.prefix()).unwrap_or(module);
    format!("re:.*{}$", below.replace('.', r"\."))
}

/// Whether a reader that multiplies in f16 can unpack a tensor whose largest step is this one:
/// 8 steps must be a finite f16 number.
pub fn fits_f16_when_unpacked(largest_step: f32) -> bool {
    8.0 * largest_step.abs() <= F16_MAX
}
