//! What llama.cpp calls the tensors of a Gemma 4 text model.
//!
//! Source: `gguf-py/gguf/tensor_mapping.py` and `conversion/gemma.py` of llama.cpp.

/// The tensor of proportional rotary angles, which llama.cpp divides the full layers' angles by.
pub const ROPE_FREQS: &str = "rope_freqs.weight";

/// Names outside of the layers: ours (without prefix), llama.cpp's.
const OUTSIDE: [(&str, &str); 5] = [
    ("embed_tokens.weight", "token_embd.weight"),
    ("embed_tokens_per_layer.weight", "per_layer_token_embd.weight"),
    ("per_layer_model_projection.weight", "per_layer_model_proj.weight"),
    ("per_layer_projection_norm.weight", "per_layer_proj_norm.weight"),
    ("norm.weight", "output_norm.weight"),
];

/// Names below `layers.N.`, and llama.cpp's below `blk.N.`.
const IN_LAYERS: [(&str, &str); 17] = [
    ("input_layernorm.weight", "attn_norm.weight"),
    ("self_attn.q_proj.weight", "attn_q.weight"),
    ("self_attn.q_norm.weight", "attn_q_norm.weight"),
    ("self_attn.k_proj.weight", "attn_k.weight"),
    ("self_attn.k_norm.weight", "attn_k_norm.weight"),
    ("self_attn.v_proj.weight", "attn_v.weight"),
    ("self_attn.o_proj.weight", "attn_output.weight"),
    ("post_attention_layernorm.weight", "post_attention_norm.weight"),
    ("pre_feedforward_layernorm.weight", "ffn_norm.weight"),
    ("mlp.gate_proj.weight", "ffn_gate.weight"),
    ("mlp.up_proj.weight", "ffn_up.weight"),
    ("mlp.down_proj.weight", "ffn_down.weight"),
    ("post_feedforward_layernorm.weight", "post_ffw_norm.weight"),
    ("per_layer_input_gate.weight", "inp_gate.weight"),
    ("per_layer_projection.weight", "proj.weight"),
    ("post_per_layer_input_norm.weight", "post_norm.weight"),
    ("layer_scalar", "layer_output_scale.weight"),
];

/// llama.cpp's name of a text tensor (name without prefix: `layers.0.mlp.up_proj.weight`); `None`
/// for a name that is none of the model's.
pub fn to_gguf(text_name: &str) -> Option<String> {
    match text_name.strip_prefix("layers.").and_then(|rest| rest.split_once('.')) {
        Some((layer, rest)) => {
            let found = IN_LAYERS.iter().find(|(ours, _)| *ours == rest)?;
            Some(format!("blk.{layer}.{}", found.1))
        }
        None => OUTSIDE.iter().find(|(ours, _)| *ours == text_name).map(|found| found.1.into()),
    }
}

/// The text tensor that llama.cpp calls so.
pub fn from_gguf(name: &str) -> Option<String> {
    match name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) {
        Some((layer, rest)) => {
            let found = IN_LAYERS.iter().find(|(_, theirs)| *theirs == rest)?;
            Some(format!("layers.{layer}.{}", found.0))
        }
        None => OUTSIDE.iter().find(|(_, theirs)| *theirs == name).map(|found| found.0.into()),
    }
}
