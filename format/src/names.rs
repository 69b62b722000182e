//! Tensor names: what a Gemma text model must hold, in every layout.
//!
//! Source: transformers 5.24 `modeling_gemma4.py`, `modeling_gemma3.py`. The multimodal layout puts
//! the text model below `model.language_model.`, the text-only one below `model.`; behind the prefix
//! names are equal.

use crate::config::{ExpertsConfig, Family, LayerConfig, TextConfig};

/// Which prefix the text tensors carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NameLayout {
    /// Google's files: `model.language_model.layers.0.…`, with the towers beside it.
    Multimodal,
    /// Older names, as Google published Gemma 3: `language_model.model.layers.0.…`. transformers
    /// renames them while loading and saves them as [`NameLayout::Multimodal`].
    MultimodalGemma3,
    /// `Gemma4ForCausalLM`: `model.layers.0.…`.
    TextOnly,
}

impl NameLayout {
    /// What stands before the name of a text tensor.
    pub fn prefix(self) -> &'static str {
        match self {
            NameLayout::Multimodal => "model.language_model.",
            NameLayout::MultimodalGemma3 => "language_model.model.",
            NameLayout::TextOnly => "model.",
        }
    }

    /// Whether the names leave room for towers.
    pub fn is_multimodal(self) -> bool {
        self != NameLayout::TextOnly
    }

    /// The layout whose prefix some of the names carry; text-only when they carry neither
    /// multimodal one.
    pub fn of_names<'n>(mut names: impl Iterator<Item = &'n str>) -> NameLayout {
        let multimodal = [NameLayout::Multimodal, NameLayout::MultimodalGemma3];
        names
            .find_map(|name| {
                multimodal.into_iter().find(|layout| name.starts_with(layout.prefix()))
            })
            .unwrap_or(NameLayout::TextOnly)
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
    /// The weight of the linear that chooses experts, `[experts, hidden]`: never packed, as in
    /// Google's own W4A16 releases, and because loaders build it without quantization.
    Router,
    /// Norm weights, `layer_scalar` and the router's factors, never packed.
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
    /// The stack that holds it in a checkpoint of bf16, if it is no tensor of its own there.
    pub stack: Option<Stack>,
}

/// Matrices of all experts of a layer in one tensor.
///
/// A checkpoint in bf16 has `experts.gate_up_proj` (`[experts, 2 * width, hidden]`, gate first) and
/// `experts.down_proj` (`[experts, hidden, width]`). Packed, each matrix is a module of its own:
/// `experts.3.gate_proj`, `.up_proj`, `.down_proj`, as llm-compressor writes and vLLM reads them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stack {
    /// Its name without the layout's prefix; there is no `.weight` behind it.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Where the matrix begins, in rows counted through all experts.
    pub first_row: usize,
}

impl TextTensor {
    /// The module: the name without `.weight`, as targets and packed names use it.
    pub fn module(&self) -> &str {
        self.name.strip_suffix(".weight").unwrap_or(&self.name)
    }

    /// Whether the tensor may be packed in 4 bits.
    pub fn is_matrix(&self) -> bool {
        !matches!(self.role, Role::Vector | Role::Router)
    }

    /// The name, without prefix, of the tensor that holds it in a checkpoint of bf16.
    pub fn dense_name(&self) -> &str {
        self.stack.as_ref().map_or(&self.name, |stack| &stack.name)
    }

    /// The shape of that tensor.
    pub fn dense_shape(&self) -> &[usize] {
        self.stack.as_ref().map_or(&self.shape, |stack| &stack.shape)
    }

    /// Where it begins in that tensor, in rows of its own length.
    pub fn dense_first_row(&self) -> usize {
        self.stack.as_ref().map_or(0, |stack| stack.first_row)
    }
}

/// The tensors of the text model as a checkpoint in bf16 holds them: [`text_tensors`] with every
/// stack of experts in one piece.
pub fn dense_tensors(config: &TextConfig) -> Vec<TextTensor> {
    let mut dense: Vec<TextTensor> = Vec::new();
    for tensor in text_tensors(config) {
        let whole = match tensor.stack {
            None => tensor,
            // Its matrices follow each other.
            Some(stack) if dense.last().is_some_and(|last| last.name == stack.name) => continue,
            Some(stack) => {
                TextTensor { name: stack.name, shape: stack.shape, stack: None, ..tensor }
            }
        };
        dense.push(whole);
    }
    dense
}

/// Every tensor of the text model, in the order of the data's way through it. Tied: no `lm_head`.
/// Every expert's matrices stand here by themselves, those of a stack in the order of its rows.
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
        if !layer.values_are_keys {
            tensors.add("self_attn.v_proj.weight", Role::Linear, &[keys, hidden]);
        }
    }
    tensors.add("self_attn.o_proj.weight", Role::Linear, &[hidden, queries]);
    tensors.add("post_attention_layernorm.weight", Role::Vector, &[hidden]);
    tensors.add("pre_feedforward_layernorm.weight", Role::Vector, &[hidden]);
    tensors.add("mlp.gate_proj.weight", Role::Linear, &[wide, hidden]);
    tensors.add("mlp.up_proj.weight", Role::Linear, &[wide, hidden]);
    tensors.add("mlp.down_proj.weight", Role::Linear, &[hidden, wide]);
    if let Some(experts) = &config.experts {
        add_experts(tensors, hidden, experts);
    }
    tensors.add("post_feedforward_layernorm.weight", Role::Vector, &[hidden]);
    if per_layer > 0 {
        tensors.add("per_layer_input_gate.weight", Role::Linear, &[per_layer, hidden]);
        tensors.add("per_layer_projection.weight", Role::Linear, &[hidden, per_layer]);
        tensors.add("post_per_layer_input_norm.weight", Role::Vector, &[hidden]);
    }
    if config.family != Family::Gemma3 {
        tensors.add("layer_scalar", Role::Vector, &[1]);
    }
}

fn add_experts(tensors: &mut Tensors, hidden: usize, experts: &ExpertsConfig) {
    let ExpertsConfig { count, intermediate_size: wide, .. } = *experts;
    tensors.add("post_feedforward_layernorm_1.weight", Role::Vector, &[hidden]);
    tensors.add("router.scale", Role::Vector, &[hidden]);
    tensors.add("router.proj.weight", Role::Router, &[count, hidden]);
    tensors.add("router.per_expert_scale", Role::Vector, &[count]);
    tensors.add("pre_feedforward_layernorm_2.weight", Role::Vector, &[hidden]);
    for expert in 0..count {
        let stack = ("experts.gate_up_proj", [count, 2 * wide, hidden]);
        for (half, part) in ["gate_proj", "up_proj"].into_iter().enumerate() {
            let name = format!("experts.{expert}.{part}.weight");
            tensors.add_stacked(&name, &[wide, hidden], stack, (2 * expert + half) * wide);
        }
    }
    for expert in 0..count {
        let stack = ("experts.down_proj", [count, hidden, wide]);
        let name = format!("experts.{expert}.down_proj.weight");
        tensors.add_stacked(&name, &[hidden, wide], stack, expert * hidden);
    }
    tensors.add("post_feedforward_layernorm_2.weight", Role::Vector, &[hidden]);
}

struct Tensors {
    list: Vec<TextTensor>,
    layer: Option<usize>,
}

impl Tensors {
    fn add(&mut self, name: &str, role: Role, shape: &[usize]) {
        let (name, shape) = (self.in_layer(name), shape.to_vec());
        self.list.push(TextTensor { name, role, shape, layer: self.layer, stack: None });
    }

    /// Adds a linear that is a part of a stack in bf16.
    fn add_stacked(
        &mut self,
        name: &str,
        shape: &[usize],
        (stack, stack_shape): (&str, [usize; 3]),
        first_row: usize,
    ) {
        let stack = Stack { name: self.in_layer(stack), shape: stack_shape.into(), first_row };
        let (name, shape) = (self.in_layer(name), shape.to_vec());
        let (role, layer) = (Role::Linear, self.layer);
        self.list.push(TextTensor { name, role, shape, layer, stack: Some(stack) });
    }

    fn in_layer(&self, name: &str) -> String {
        match self.layer {
            Some(layer) => format!("layers.{layer}.{name}"),
            None => name.into(),
        }
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
        "model.multi_modal_projector.",
        // Older names, as in Gemma 3 as Google published it.
        "vision_tower.",
        "audio_tower.",
        "embed_vision.",
        "embed_audio.",
        "multi_modal_projector.",
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
