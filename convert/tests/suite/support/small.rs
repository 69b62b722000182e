//! A small checkpoint in Google's layout, with all that makes the real one special: layers without
//! keys and values, doubled MLPs, per-layer embeddings, towers beside the text model.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use half::bf16;
use serde_json::{Value, json};
use w4pack_format::config::Config;
use w4pack_format::dtype::Dtype;
use w4pack_format::header::Header;
use w4pack_format::names::{NameLayout, text_tensors};

/// A tensor as it lies in a file.
#[derive(Clone)]
pub struct Tensor {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

/// A checkpoint to be written, and to be tampered with before.
#[derive(Clone)]
pub struct Small {
    pub config: Value,
    pub tensors: BTreeMap<String, Tensor>,
    pub files: BTreeMap<String, Vec<u8>>,
    pub layout: NameLayout,
}

/// The matrix that tests put special groups into; layer 0 owns its keys and values.
pub const MATRIX: &str = "layers.0.mlp.up_proj.weight";

fn text_config() -> Value {
    json!({
        "attention_bias": false, "attention_k_eq_v": false, "bos_token_id": 2,
        "dtype": "bfloat16", "eos_token_id": 1, "final_logit_softcapping": 30.0,
        "global_head_dim": 64, "head_dim": 32, "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 64, "hidden_size_per_layer_input": 32, "intermediate_size": 64,
        "layer_types": [
            "sliding_attention", "full_attention", "sliding_attention", "full_attention"
        ],
        "max_position_embeddings": 512, "model_type": "gemma4_text", "num_attention_heads": 2,
        "num_hidden_layers": 4, "num_key_value_heads": 1, "num_kv_shared_layers": 2,
        "pad_token_id": 0, "rms_norm_eps": 1e-6,
        "rope_parameters": {
            "full_attention": {
                "partial_rotary_factor": 0.25, "rope_theta": 1e6, "rope_type": "proportional"
            },
            "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"}
        },
        "sliding_window": 8, "tie_word_embeddings": true, "use_double_wide_mlp": true,
        "vocab_size": 160, "vocab_size_per_layer_input": 160
    })
}

impl Small {
    /// In Google's multimodal layout, towers included.
    pub fn google(seed: u64) -> Small {
        let config = json!({
            "architectures": ["Gemma4ForConditionalGeneration"],
            "model_type": "gemma4", "eos_token_id": [1, 106], "tie_word_embeddings": true,
            "text_config": text_config(), "vision_config": {}, "audio_config": {}
        });
        let mut small = Self::with(config, NameLayout::Multimodal, seed);
        let towers = [
            "model.vision_tower.encoder.layers.0.q_proj.linear.weight",
            "model.audio_tower.layers.0.norm.weight",
            "model.embed_vision.embedding_projection.weight",
        ];
        for (number, name) in towers.into_iter().enumerate() {
            let bytes = (0..2 * 33).map(|byte| (byte * 7 + number) as u8).collect();
            small
                .tensors
                .insert(name.into(), Tensor { dtype: Dtype::BF16, shape: vec![3, 11], bytes });
        }
        small
    }

    /// The same text model under text-only names.
    pub fn text_only(seed: u64) -> Small {
        let mut config = text_config();
        config["architectures"] = json!(["Gemma4ForCausalLM"]);
        config["eos_token_id"] = json!([1, 106]);
        Self::with(config, NameLayout::TextOnly, seed)
    }

    fn with(config: Value, layout: NameLayout, seed: u64) -> Small {
        let parsed = Config::parse("config.json", config.to_string().as_bytes()).unwrap();
        let mut random = Random(seed);
        let mut tensors = BTreeMap::new();
        for tensor in text_tensors(&parsed.text) {
            let elements: usize = tensor.shape.iter().product();
            let bytes = if tensor.is_matrix() {
                (0..elements / 32).flat_map(|_| random.group()).collect()
            } else {
                (0..elements).flat_map(|_| bf16::from_f32(random.unit()).to_le_bytes()).collect()
            };
            let name = layout.full_name(&tensor.name);
            tensors.insert(name, Tensor { dtype: Dtype::BF16, shape: tensor.shape, bytes });
        }
        let files = [
            ("tokenizer.json", r#"{"model": {}}"#),
            ("tokenizer_config.json", r#"{"chat_template": "{{ bos_token }}"}"#),
            ("generation_config.json", r#"{"eos_token_id": [1, 106]}"#),
        ];
        let files = files.map(|(name, text)| (name.to_string(), text.as_bytes().to_vec()));
        Small { config, tensors, files: files.into(), layout }
    }

    /// A text tensor by its name without prefix.
    pub fn tensor(&mut self, text_name: &str) -> &mut Tensor {
        self.tensors.get_mut(&self.layout.full_name(text_name)).unwrap()
    }

    /// Replaces a group of [`MATRIX`], which has two groups in a row.
    pub fn set_group(&mut self, row: usize, group: usize, bits: &[u16; 32]) {
        let begin = 64 * (2 * row + group);
        let bytes: Vec<u8> = bits.iter().flat_map(|bits| bits.to_le_bytes()).collect();
        self.tensor(MATRIX).bytes[begin..begin + 64].copy_from_slice(&bytes);
    }

    /// Writes one file, or shards with an index, over what may lie there.
    pub fn write(&self, folder: &Path, shards: usize) {
        fs::create_dir_all(folder).unwrap();
        let names: Vec<&String> = self.tensors.keys().collect();
        let mut weight_map = serde_json::Map::new();
        for shard in 0..shards {
            let file = match shards {
                1 => "model.safetensors".to_string(),
                _ => format!("model-{:05}-of-{shards:05}.safetensors", shard + 1),
            };
            let own: Vec<&String> = names.iter().skip(shard).step_by(shards).copied().collect();
            let entry = |name: &&String| {
                let tensor = &self.tensors[*name];
                (name.to_string(), tensor.dtype, tensor.shape.clone())
            };
            let header = Header::lay_out(&own.iter().map(entry).collect::<Vec<_>>()).unwrap();
            let mut bytes = header.prefix();
            for name in own {
                bytes.extend_from_slice(&self.tensors[name].bytes);
                weight_map.insert(name.clone(), json!(file));
            }
            fs::write(folder.join(file), bytes).unwrap();
        }
        if shards > 1 {
            let total: usize = self.tensors.values().map(|tensor| tensor.bytes.len()).sum();
            let index = json!({"metadata": {"total_size": total}, "weight_map": weight_map});
            fs::write(folder.join("model.safetensors.index.json"), index.to_string()).unwrap();
        }
        fs::write(folder.join("config.json"), self.config.to_string()).unwrap();
        for (name, bytes) in &self.files {
            fs::write(folder.join(name), bytes).unwrap();
        }
    }
}

/// bf16(code·step) for 32 codes.
pub fn group(codes: [i8; 32], step: f64) -> [u16; 32] {
    codes.map(|code| bf16::from_f64(f64::from(code) * step).to_bits())
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// In 0.5..1.5.
    fn unit(&mut self) -> f32 {
        0.5 + (self.next() >> 40) as f32 / (1 << 24) as f32
    }

    /// A group on the grid, its step between 2^-9 and 2^-7 with all of f32's bits.
    fn group(&mut self) -> Vec<u8> {
        let step = f64::from(self.unit()) / 256.0;
        let codes = std::array::from_fn(|_| (self.next() % 16) as i8 - 8);
        group(codes, step).iter().flat_map(|bits| bits.to_le_bytes()).collect()
    }
}
