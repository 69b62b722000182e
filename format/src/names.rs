//! Tensor names: what a Gemma 4 text model must hold, in either layout.
//!
//! Source: transformers 5.24 `modeling_gemma4.py`. The multimodal layout puts the text model below
//! `model.language_model.`, the text-only one below `model.`; behind the prefix names are equal.

use crate::config::{LayerConfig, TextConfig};

/// Which prefix the text tensors carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NameLayout {
    /// Google's files: `model.language_model.layers.0.…`, with the towers beside it.
    Multimodal,
    /// `Gemma4ForCausalLM`: `model.layers.0.…`.
    TextOnly,
}

impl NameLayout {
    /// What stands before the name of a text tensor.
    pub fn prefix(self) -> &'static str {
        match self {
            NameLayout::Multimodal => "model.language_model.",
            NameLayout::TextOnly => "model.",
        }
    }

    /// The layout that tensors follow, whatever a configuration says of it.
    pub fn of_tensors<'n>(mut names: impl Iterator<Item = &'n str>) -> NameLayout {
        match names.any(|name| name.starts_with(NameLayout::Multimodal.prefix())) {
            true => NameLayout::Multimodal,
            false => NameLayout::TextOnly,
        }
    }

    /// The full name of a text tensor.
    pub fn full_name(self, text_name: &str) -> String {
        format!("{}{text_name}", self.prefix())
    }
}

/// What a text tensor is for, which decides how it may be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// The weight of a linear, `[out, in]`.
    Linear,
    /// `embed_tokens`, which is also the head: `[vocabulary, hidden]`.
    EmbedTokens,
    /// `embed_tokens_per_layer`: `[vocabulary, layers * per-layer width]`.
    EmbedTokensPerLayer,
    /// Norm weights and `layer_scalar`, never packed.
    Vector,
}

/// A tensor that the configuration demands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextTensor {
    /// Name without the layout's prefix: `layers.0.self_attn.q_proj.weight`.
    pub name: String,
    /// What it is for.
    pub role: Role,
    /// Its shape when it is not packed.
    pub shape: Vec<usize>,
    /// The layer it belongs to.
    pub layer: Option<usize>,
}

impl TextTensor {
    /// The module: the name without `.weight`, as targets and packed names use it.
    pub fn module(&self) -> &str {
        self.name.strip_suffix(".weight").unwrap_or(&self.name)
    }

    /// Whether the tensor may be packed in 4 bits (every role but [`Role::Vector`]).
    pub fn is_matrix(&self) -> bool {
        self.role != Role::Vector
    }
}

/// Every tensor of the text model, in the order of the data's way through it. Tied: no `lm_head`.
///
/// E2B: 540 tensors, 276 of them linears.
pub fn text_tensors(config: &TextConfig) -> Vec<TextTensor> {
    let hidden = config.hidden_size;
    let per_layer = config.hidden_size_per_layer_input;
    let all_layers = config.layers.len() * per_layer;
    let mut tensors = Tensors { list: Vec::new(), layer: None };
    tensors.add("embed_tokens.weight", Role::EmbedTokens, &[config.vocab_size, hidden]);
    if per_layer > 0 {
        let rows = config.vocab_size_per_layer_input;
        let table = "embed_tokens_per_layer.weight";
        tensors.add(table, Role::EmbedTokensPerLayer, &[rows, all_layers]);
        tensors.add("per_layer_model_projection.weight", Role::Linear, &[all_layers, hidden]);
        tensors.add("per_layer_projection_norm.weight", Role::Vector, &[per_layer]);
    }
    for (number, layer) in config.layers.iter().enumerate() {
        tensors.layer = Some(number);
        add_layer(&mut tensors, config, layer);
    }
    tensors.layer = None;
    tensors.add("norm.weight", Role::Vector, &[hidden]);
    tensors.list
}

fn add_layer(tensors: &mut Tensors, config: &TextConfig, layer: &LayerConfig) {
    let hidden = config.hidden_size;
    let queries = config.num_attention_heads * layer.head_dim;
    let keys = layer.kv_heads * layer.head_dim;
    let wide = layer.intermediate_size;
    let per_layer = config.hidden_size_per_layer_input;
    tensors.add("input_layernorm.weight", Role::Vector, &[hidden]);
    tensors.add("self_attn.q_proj.weight", Role::Linear, &[queries, hidden]);
    tensors.add("self_attn.q_norm.weight", Role::Vector, &[layer.head_dim]);
    if layer.kv_source.is_none() {
        tensors.add("self_attn.k_proj.weight", Role::Linear, &[keys, hidden]);
        tensors.add("self_attn.k_norm.weight", Role::Vector, &[layer.head_dim]);
        tensors.add("self_attn.v_proj.weight", Role::Linear, &[keys, hidden]);
    }
    tensors.add("self_attn.o_proj.weight", Role::Linear, &[hidden, queries]);
    tensors.add("post_attention_layernorm.weight", Role::Vector, &[hidden]);
    tensors.add("pre_feedforward_layernorm.weight", Role::Vector, &[hidden]);
    tensors.add("mlp.gate_proj.weight", Role::Linear, &[wide, hidden]);
    tensors.add("mlp.up_proj.weight", Role::Linear, &[wide, hidden]);
    tensors.add("mlp.down_proj.weight", Role::Linear, &[hidden, wide]);
    tensors.add("post_feedforward_layernorm.weight", Role::Vector, &[hidden]);
    if per_layer > 0 {
        tensors.add("per_layer_input_gate.weight", Role::Linear, &[per_layer, hidden]);
        tensors.add("per_layer_projection.weight", Role::Linear, &[hidden, per_layer]);
        tensors.add("post_per_layer_input_norm.weight", Role::Vector, &[hidden]);
    }
    tensors.add("layer_scalar", Role::Vector, &[1]);
}

struct Tensors {
    list: Vec<TextTensor>,
    layer: Option<usize>,
}

impl Tensors {
    fn add(&mut self, name: &str, role: Role, shape: &[usize]) {
        let name = match self.layer {
            Some(layer) => format!("layers.{layer}.{name}"),
            None => name.into(),
        };
        self.list.push(TextTensor { name, role, shape: shape.to_vec(), layer: self.layer });
    }
}

/// Whether a full tensor name belongs to the vision or audio side.
///
/// Decided by prefix: the towers hold names such as `q_proj` and `layers.0` too.
pub fn is_tower(name: &str) -> bool {
    [
        "model.vision_tower.",
        "model.audio_tower.",
        "model.embed_vision.",
        "model.embed_audio.",
        "model.vision_embedder.",
    ]
    .iter()
    .any(|prefix| name.starts_with(prefix))
}

/// Whether a text tensor (name without prefix) holds keys or values of a layer that reads another
/// layer's: releases before the QAT ones carry such tensors, and nothing reads them.
pub fn is_unused_shared_kv(config: &TextConfig, text_name: &str) -> bool {
    let Some((layer, rest)) =
        text_name.strip_prefix("layers.").and_then(|name| name.split_once('.'))
    else {
        return false;
    };
    let of_keys = ["self_attn.k_proj.weight", "self_attn.v_proj.weight", "self_attn.k_norm.weight"];
    of_keys.contains(&rest)
        && layer
            .parse::<usize>()
            .ok()
            .and_then(|layer| config.layers.get(layer))
            .is_some_and(|layer| layer.kv_source.is_some())
}
