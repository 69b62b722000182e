//! `config.json` of a packed checkpoint: the source's, with `quantization_config`.

use serde_json::{Map, Value, json};
use w4pack_format::config::Config;
use w4pack_format::names::{NameLayout, Role};

use crate::Layout;

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

/// The towers, whose linears stay in bf16: readers would match them as targets.
const TOWERS: [&str; 4] =
    ["re:.*vision_tower.*", "re:.*audio_tower.*", "re:.*embed_vision.*", "re:.*embed_audio.*"];

const TIE: &str = "tie_word_embeddings";

/// The largest f16 number.
const F16_MAX: f32 = 65504.0;

/// What decides the configuration of an output beside the source's.
pub struct Packing<'a> {
    /// The layout asked for.
    pub layout: Layout,
    /// The names of the tensors.
    pub names: NameLayout,
    /// Modules (names in the output) that stay in bf16 although the layout packs them.
    pub kept: &'a [String],
    /// Whether the output holds `lm_head` tensors.
    pub own_head: bool,
    /// Whether every stored step is bf16.
    pub all_scales_bf16: bool,
}

/// The configuration of a packed output.
///
/// Multimodal names: every key of the source stays where it is.
///
/// Text-only names: of a multimodal source the text fields move to the top level, in their order, behind
/// `architectures`; then follow the top level's own keys but for those of the towers. A key of both
/// keeps the text model's value, only `eos_token_id` the top level's (Google's list of stop ids).
/// Of a text-only source every key stays where it is.
///
/// In all `tie_word_embeddings` says on every level whether there is no head of its own, and
/// `quantization_config` comes last.
pub fn packed_config(config: &Config, packing: &Packing<'_>) -> Value {
    let (names, tied) = (packing.names, json!(!packing.own_head));
    let as_it_is = || config.raw.as_object().cloned().unwrap_or_default();
    let mut packed = match (config.layout.is_multimodal(), names.is_multimodal()) {
        (true, false) => lifted(&config.raw),
        _ => as_it_is(),
    };
    if !names.is_multimodal() {
        let family = config.text.family;
        packed.insert("architectures".into(), json!([family.causal_class()]));
        packed.insert("model_type".into(), json!(family.text_type()));
    } else if let Some(text) = packed.get_mut("text_config").and_then(Value::as_object_mut) {
        text.insert(TIE.into(), tied.clone());
    }
    packed.insert(TIE.into(), tied);
    // A source may be packed already; the key comes last in any case.
    packed.shift_remove("quantization_config");
    let has_router = config.text.experts.is_some();
    packed.insert("quantization_config".into(), quantization_config(has_router, packing));
    Value::Object(packed)
}

/// The text of a config.json for the text model alone, not packed: what [`packed_config`] does, but
/// for the packing.
pub fn text_only_config(config: &Config) -> Vec<u8> {
    let packing = Packing {
        layout: Layout::Emb4,
        names: NameLayout::TextOnly,
        kept: &[],
        own_head: !config.tie_word_embeddings,
        all_scales_bf16: false,
    };
    let mut value = packed_config(config, &packing);
    if let Value::Object(fields) = &mut value {
        fields.shift_remove("quantization_config");
    }
    json_text(&value)
}

/// Indented JSON with a final newline.
pub(super) fn json_text(value: &Value) -> Vec<u8> {
    let mut text = format!("{value:#}").into_bytes();
    text.push(b'\n');
    text
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

fn quantization_config(has_router: bool, packing: &Packing<'_>) -> Value {
    let &Packing { layout, names, kept, own_head, all_scales_bf16 } = packing;
    let (mut targets, mut ignore) = (vec!["Linear".to_string()], Vec::new());
    if layout.packs(Role::EmbedTokens) {
        targets.push("re:.*embed_tokens$".into());
    }
    if layout.packs(Role::EmbedTokensPerLayer) {
        targets.push("re:.*embed_tokens_per_layer$".into());
    }
    // A tied head must not be a target: vLLM would compute logits from memory that nobody filled.
    // One of its own must be: vLLM's `Linear` does not match it.
    let head = if own_head { &mut targets } else { &mut ignore };
    head.push("re:.*lm_head$".into());
    if has_router {
        ignore.push(r"re:.*router\.proj$".into());
    }
    if layout == Layout::LinearPle4 {
        ignore.push("re:.*embed_tokens$".into());
    }
    ignore.extend(kept.iter().map(|module| ignored(names, module)));
    if names.is_multimodal() {
        ignore.extend(TOWERS.map(String::from));
    }
    let mut config = json!({
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "version": "0.20.1",
        "config_groups": {"group_0": {
            "format": "pack-quantized",
            "targets": targets,
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
    });
    // Without it transformers cannot load a packed table, and casts scales to bf16.
    if layout != Layout::Linear || !all_scales_bf16 {
        config["dequantize"] = json!(true);
    }
    config
}

/// The pattern for one module. Readers put prefixes of their own in front, so it begins with `.*`;
/// Python's `re.match` does not anchor the end, so it ends with `$`.
fn ignored(names: NameLayout, module: &str) -> String {
    let below = module.strip_prefix(names.prefix()).unwrap_or(module);
    format!("re:.*{}$", below.replace('.', r"\."))
}

/// Whether a reader that multiplies in f16 can unpack a tensor whose largest step is this one:
/// 8 steps must be a finite f16 number.
pub fn fits_f16_when_unpacked(largest_step: f32) -> bool {
    8.0 * largest_step.abs() <= F16_MAX
}
