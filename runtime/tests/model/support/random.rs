//! A small model of random weights, so that everything but agreement with others can be tested
//! with nothing beside the repository.

use super::checkpoint::Draft;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde_json::json;
use w4pack_format::config::Config;
use w4pack_format::names::{Role, text_tensors};
use w4pack_format::scale::ScaleDtype;

pub const WINDOW: usize = 8;
pub const VOCABULARY: usize = 160;

/// Seven layers, window 8: sliding, sliding, full, sliding | sliding, full, full. The layers
/// behind the bar share keys and values: the sliding one reads layer 3, the full ones layer 2.
pub fn config() -> serde_json::Value {
    let kinds = ["sliding", "sliding", "full", "sliding", "sliding", "full", "full"];
    let kinds: Vec<String> = kinds.iter().map(|kind| format!("{kind}_attention")).collect();
    json!({
        "architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text",
        "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 7,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "global_head_dim": 64,
        "layer_types": kinds, "sliding_window": WINDOW, "num_kv_shared_layers": 3,
        "use_double_wide_mlp": true, "hidden_size_per_layer_input": 32,
        "vocab_size": VOCABULARY, "vocab_size_per_layer_input": VOCABULARY,
        "rms_norm_eps": 1e-6, "final_logit_softcapping": 30.0, "max_position_embeddings": 1024,
        "tie_word_embeddings": true, "eos_token_id": [1, 106],
        "rope_parameters": {
            "full_attention": {
                "rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}
        }
    })
}

/// A name, a configuration, and the positions to try it at.
pub type Shape = (&'static str, serde_json::Value, usize);

/// Of so many query heads that share a key head, rows of these lengths, and heads of sliding and of full layers.
pub fn shaped(
    heads: usize,
    [hidden, mlp, per_layer]: [usize; 3],
    head_dims: [usize; 2],
) -> serde_json::Value {
    let mut config = config();
    for (name, value) in [
        ("hidden_size", hidden),
        ("intermediate_size", mlp),
        ("hidden_size_per_layer_input", per_layer),
        ("head_dim", head_dims[0]),
        ("global_head_dim", head_dims[1]),
        ("num_attention_heads", heads),
        ("num_key_value_heads", 1),
    ] {
        config[name] = json!(value);
    }
    config
}

/// Shapes whose single tokens go through a card's layers on tensor cores: the smallest, one of unequal heads, one
/// of E2B's widths.
pub fn tensor_core_shapes() -> [Shape; 3] {
    [
        ("small", shaped(8, [128, 128, 128], [64, 64]), 90),
        ("mixed", shaped(8, [256, 384, 128], [32, 64]), 90),
        ("wide", shaped(8, [1536, 1536, 256], [256, 512]), 24),
    ]
}

/// A packed checkpoint with all 16 codes, steps of both signs and, tensor by tensor, of every
/// dtype.
pub fn packed(seed: u64) -> Draft {
    packed_as(config(), seed)
}

/// The same of another configuration.
pub fn packed_as(config: serde_json::Value, seed: u64) -> Draft {
    packed_with(config, seed, &ScaleDtype::ALL)
}

/// The same with steps of these dtypes, in turn.
pub fn packed_with(config: serde_json::Value, seed: u64, dtypes: &[ScaleDtype]) -> Draft {
    let mut draft = Draft { config, tensors: Vec::new() };
    draft.config["quantization_config"] = super::checkpoint::quantization();
    let bytes = serde_json::to_vec(&draft.config).expect("JSON prints");
    let config = Config::parse("config.json", &bytes).expect("the config is sound");
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    for (number, tensor) in text_tensors(&config.text).into_iter().enumerate() {
        let name = config.layout.full_name(&tensor.name);
        let elements: usize = tensor.shape.iter().product();
        if matches!(tensor.role, Role::Vector | Role::Router) {
            let values: Vec<f32> = (0..elements).map(|_| 0.5 + uniform(&mut random)).collect();
            draft.add_bf16(&name, &tensor.shape, &values);
            continue;
        }
        // Variance 1/columns: the stream keeps its size.
        let size = (tensor.shape[1] as f32).sqrt().recip() / 4.0;
        let codes: Vec<i8> = (0..elements).map(|_| (random.next_u32() % 16) as i8 - 8).collect();
        let steps: Vec<f32> = (0..elements / 32)
            .map(|_| {
                let sign = if random.next_u32() & 1 == 0 { 1.0 } else { -1.0 };
                sign * size * (0.5 + uniform(&mut random))
            })
            .collect();
        let module = name.strip_suffix(".weight").expect("matrices have weights").to_string();
        draft.add_packed(&module, &tensor.shape, &codes, &steps, dtypes[number % dtypes.len()]);
    }
    draft
}

/// Token ids, none of them special.
pub fn tokens(count: usize, seed: u64) -> Vec<u32> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    (0..count).map(|_| random.next_u32() % VOCABULARY as u32).collect()
}

/// A number in 0..1.
fn uniform(random: &mut ChaCha8Rng) -> f32 {
    (random.next_u32() >> 8) as f32 / (1 << 24) as f32
}
