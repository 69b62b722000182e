//! A small Gemma-4-shaped source with every kind of group, in Google's multimodal layout.

use serde_json::json;
use w4pack_format::config::Config;
use w4pack_format::names::{Role, text_tensors};

use super::checkpoint::Parts;
use super::tensors::Tensor;
use crate::oracle::round_to_bf16;

/// Random numbers that are the same in every run (splitmix64).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// The configuration: four layers, two of which read the others' keys and values.
pub fn config() -> serde_json::Value {
    let kinds = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"];
    json!({
        "architectures": ["Gemma4ForConditionalGeneration"],
        "model_type": "gemma4",
        "dtype": "bfloat16",
        "eos_token_id": [1, 106],
        "image_token_id": 60,
        "tie_word_embeddings": true,
        "vision_config": {"model_type": "gemma4_vision"},
        "audio_config": null,
        "text_config": {
            "model_type": "gemma4_text",
            "dtype": "bfloat16",
            "eos_token_id": 1, "bos_token_id": 2, "pad_token_id": 0,
            "final_logit_softcapping": 30.0,
            "global_head_dim": 64, "head_dim": 32,
            "hidden_activation": "gelu_pytorch_tanh",
            "hidden_size": 64, "hidden_size_per_layer_input": 32, "intermediate_size": 64,
            "layer_types": kinds,
            "max_position_embeddings": 128,
            "num_attention_heads": 2, "num_key_value_heads": 1,
            "num_hidden_layers": 4, "num_kv_shared_layers": 2,
            "rms_norm_eps": 1e-6,
            "rope_parameters": {
                "full_attention": {
                    "partial_rotary_factor": 0.25, "rope_theta": 1e6, "rope_type": "proportional"
                },
                "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"}
            },
            "sliding_window": 16,
            "tie_word_embeddings": true,
            "use_double_wide_mlp": true,
            "vocab_size": 64, "vocab_size_per_layer_input": 64
        }
    })
}

/// One group: mostly peaks 7 and 8 under a positive f32 step, but also negative steps, single
/// levels, all zeros, and zeros of both signs.
pub fn group(random: &mut Random) -> [u16; 32] {
    let significand = (1u64 << 23) + random.below(1 << 23);
    let size = significand as f64 * 2f64.powi(random.below(8) as i32 - 32);
    let kind = random.below(16);
    let negative = kind == 1;
    let step = if negative { -size } else { size };
    std::array::from_fn(|i| {
        let code = match kind {
            0 => 0,
            2 => i64::from(i == 5) * 3,
            3 => 2 * (random.below(7) as i64 - 3),
            _ if i == 0 => -8 + random.below(2) as i64,
            _ => random.below(16) as i64 - 8,
        };
        if code == 0 {
            // Mostly +0.0; here and there -0.0, as signed steps leave it.
            return if negative || random.below(20) == 0 { 0x8000 } else { 0 };
        }
        round_to_bf16(code as f64 * step)
    })
}

/// The whole source.
pub fn source(seed: u64) -> Parts {
    let mut random = Random(seed);
    let config_bytes = config().to_string().into_bytes();
    let config = Config::parse("config.json", &config_bytes).unwrap();
    let mut parts = Parts::default();
    for tensor in text_tensors(&config.text) {
        let elements: usize = tensor.shape.iter().product();
        let bits: Vec<u16> = if tensor.role == Role::Vector {
            (0..elements).map(|_| 0x3F00 + random.below(0x100) as u16).collect()
        } else {
            (0..elements / 32).flat_map(|_| group(&mut random)).collect()
        };
        let name = config.layout.full_name(&tensor.name);
        parts.tensors.insert(name, Tensor::of_halves(&tensor.shape, &bits));
    }
    for name in ["model.vision_tower.encoder.q_proj.weight", "model.embed_vision.weight"] {
        let bits: Vec<u16> = (0..64).map(|_| 0x3F00 + random.below(0x100) as u16).collect();
        parts.tensors.insert(name.into(), Tensor::of_halves(&[2, 32], &bits));
    }
    for (path, content) in [
        ("tokenizer.json", r#"{"model": {}}"#),
        ("generation_config.json", r#"{"eos_token_id": [1, 106]}"#),
        ("chat_template.jinja", "{{ bos_token }}"),
        ("README.md", "a model"),
    ] {
        parts.files.insert(path.into(), content.as_bytes().to_vec());
    }
    parts.files.insert("config.json".into(), config_bytes);
    parts
}
