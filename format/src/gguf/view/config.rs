//! config.json of a text-only Gemma 4, from llama.cpp's keys.

use serde_json::{Value, json};

use super::Metadata;
use crate::Result;

/// Keys below `gemma4.` that [`config`] reads.
const READ: [&str; 20] = [
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "rope.freq_base",
    "rope.freq_base_swa",
    "attention.layer_norm_rms_epsilon",
    "attention.key_length",
    "attention.value_length",
    "final_logit_softcapping",
    "attention.sliding_window",
    "attention.shared_kv_layers",
    "embedding_length_per_layer_input",
    "attention.sliding_window_pattern",
    "attention.key_length_swa",
    "attention.value_length_swa",
    "rope.dimension_count",
    "rope.dimension_count_swa",
];

/// More layers than any release has; keeps a hostile file from asking for memory.
const LAYER_LIMIT: u64 = 4096;

/// The configuration. `rope_factors` are those of the full layers, none if the file has none.
///
/// Keys that are not known are carried over under their own names, so that whoever reads the
/// configuration reports them.
pub(super) fn config(metadata: &Metadata<'_>, rope_factors: &[f32]) -> Result<Value> {
    let architecture = "general.architecture";
    if metadata.wanted(architecture)?.as_str() != Some("gemma4") {
        return Err(metadata.fail(architecture, "it is not `gemma4`, which is what w4pack reads"));
    }
    let key = |name: &str| format!("gemma4.{name}");
    let number = |name: &str| metadata.number(&key(name));
    let layers = number("block_count")?;
    if layers > LAYER_LIMIT {
        return Err(metadata.fail(&key("block_count"), format!("{layers} exceeds {LAYER_LIMIT}")));
    }
    let sliding = sliding(metadata, layers as usize)?;
    let shared = number("attention.shared_kv_layers")?;
    let (width, doubled) = widths(metadata, layers as usize, shared as usize)?;
    let heads = metadata.numbers(&key("attention.head_count_kv"), layers as usize)?;
    let Some(kv_heads) = heads.first().filter(|first| heads.iter().all(|n| n == *first)) else {
        let problem = "layers with different numbers of key heads are not supported";
        return Err(metadata.fail(&key("attention.head_count_kv"), problem));
    };
    let kinds = sliding.iter().map(|sliding| match sliding {
        true => "sliding_attention",
        false => "full_attention",
    });
    let vocabulary = metadata.wanted("tokenizer.ggml.tokens")?.as_array();
    let vocabulary = vocabulary.map_or(0, |tokens| tokens.len());
    let id = |name: &str| metadata.get(name).and_then(|value| value.as_u64());
    let eos = id("tokenizer.ggml.eos_token_id").unwrap_or(1);
    let softcap = match metadata.get(&key("final_logit_softcapping")) {
        Some(_) => json!(metadata.fraction(&key("final_logit_softcapping"))?),
        // llama.cpp's default.
        None => json!(30.0),
    };
    let mut config = json!({
        "architectures": ["Gemma4ForCausalLM"],
        "model_type": "gemma4_text",
        "dtype": "bfloat16",
        "attention_bias": false,
        "attention_k_eq_v": false,
        "bos_token_id": id("tokenizer.ggml.bos_token_id").unwrap_or(2),
        "eos_token_id": eos,
        "pad_token_id": id("tokenizer.ggml.padding_token_id").unwrap_or(0),
        "final_logit_softcapping": softcap,
        "head_dim": number("attention.key_length_swa")?,
        "global_head_dim": number("attention.key_length")?,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": number("embedding_length")?,
        "hidden_size_per_layer_input": number("embedding_length_per_layer_input")?,
        "intermediate_size": width,
        "layer_types": kinds.collect::<Vec<_>>(),
        "max_position_embeddings": number("context_length")?,
        "num_attention_heads": number("attention.head_count")?,
        "num_hidden_layers": layers,
        "num_key_value_heads": kv_heads,
        "num_kv_shared_layers": shared,
        "rms_norm_eps": metadata.fraction(&key("attention.layer_norm_rms_epsilon"))?,
        "rope_parameters": {
            "sliding_attention": {
                "rope_type": "default",
                "rope_theta": metadata.fraction(&key("rope.freq_base_swa"))?
            },
            "full_attention": rope(metadata, rope_factors)?
        },
        "sliding_window": number("attention.sliding_window")?,
        "tie_word_embeddings": true,
        "use_double_wide_mlp": doubled,
        "vocab_size": vocabulary,
        "vocab_size_per_layer_input": vocabulary
    });
    for (key, value) in &metadata.gguf.metadata {
        let Some(name) = key.strip_prefix("gemma4.") else { continue };
        if name == "expert_count" && value.as_u64() != Some(0) {
            return Err(metadata.fail(key, "GGUF files of models with experts are not read"));
        } else if !READ.contains(&name) {
            config[key.as_str()] = value.to_string().into();
        }
    }
    Ok(config)
}

/// `quantization_config` that names each packed module: which ones are, no pattern could tell.
pub(super) fn quantization(modules: &[&str]) -> Value {
    json!({
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "dequantize": true,
        "config_groups": {"group_0": {
            "targets": modules,
            "weights": {
                "num_bits": 4, "type": "int", "symmetric": true, "strategy": "group",
                "group_size": 32, "dynamic": false
            }
        }},
        "ignore": []
    })
}

/// Which layers slide: a list, or every so many-th layer does not.
fn sliding(metadata: &Metadata<'_>, layers: usize) -> Result<Vec<bool>> {
    let key = "gemma4.attention.sliding_window_pattern";
    let value = metadata.wanted(key)?;
    let bad = || metadata.fail(key, format!("it is neither a number nor {layers} booleans"));
    match value.as_array() {
        Some(array) => {
            let list: Option<Vec<bool>> =
                array.values().ok_or_else(bad)?.map(|value| value.as_bool()).collect();
            list.filter(|list| list.len() == layers).ok_or_else(bad)
        }
        None => {
            let every = value.as_u64().filter(|every| *every > 0).ok_or_else(bad)?;
            Ok((1..=layers as u64).map(|layer| layer % every != 0).collect())
        }
    }
}

/// The width of the layers that own keys and values, and whether the others are twice as wide.
fn widths(metadata: &Metadata<'_>, layers: usize, shared: usize) -> Result<(u64, bool)> {
    let key = "gemma4.feed_forward_length";
    let widths = metadata.numbers(key, layers)?;
    let first = widths.first().copied().unwrap_or(0);
    let owning = layers.saturating_sub(shared);
    let fits = |doubled: bool| {
        widths.iter().enumerate().all(|(layer, width)| {
            let factor = if doubled && layer >= owning { 2 } else { 1 };
            Some(*width) == first.checked_mul(factor)
        })
    };
    match (fits(false), fits(true)) {
        (true, _) => Ok((first, false)),
        (false, true) => Ok((first, true)),
        (false, false) => {
            Err(metadata.fail(key, "it is neither the same for all layers nor doubled in the last"))
        }
    }
}

/// Rotary angles of the full layers. llama.cpp divides each pair's angle by a factor; a huge one
/// leaves the pair as it is.
fn rope(metadata: &Metadata<'_>, factors: &[f32]) -> Result<Value> {
    let theta = metadata.fraction("gemma4.rope.freq_base")?;
    let Some(&first) = factors.first() else {
        return Ok(json!({"rope_type": "default", "rope_theta": theta}));
    };
    let turned = factors.iter().take_while(|factor| **factor == first).count();
    if factors[turned..].iter().any(|factor| *factor < 1e29) {
        let problem = "its factors are not one number and then huge ones";
        return Err(metadata.fail(crate::gguf::names::ROPE_FREQS, problem));
    }
    Ok(json!({
        "rope_type": "proportional",
        "rope_theta": theta,
        "partial_rotary_factor": turned as f64 / factors.len() as f64,
        "factor": f64::from(first)
    }))
}
