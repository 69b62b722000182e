//! What a card can do, measured; and what would fit on it.

use super::plan::{Plan, Wish, plan};
use crate::error::Result;
use crate::model::{KeysAndValues, LayerWeights, PerLayerBlock, PerLayerInputs, Weights};
use crate::weights::{Storage, Stored};
use std::ffi::c_void;
use w4pack_format::config::TextConfig;
use w4pack_format::scale::ScaleDtype;
use w4pack_kernels::cuda::Gpu;

/// Bytes a second that the card reads: the best of several ways to share a plain reduction of
/// random words, each the median of five runs. Takes 2 GiB, or half of what is free.
pub fn read_bandwidth(gpu: &Gpu) -> Result<f64> {
    gpu.bind()?;
    let bytes = (2 << 30).min(gpu.free_memory()? / 2) & !0xffff;
    let arena = gpu.allocate(bytes)?;
    let (from, words, seed) = (arena.address(), (bytes / 4) as u64, 1u32);
    let (count, out) = ((bytes / 16) as u64, arena.address());
    let multiprocessors = gpu.card().multiprocessors as u32;
    let pointer = |value: *const c_void| value;
    let fill = [
        pointer(std::ptr::from_ref(&from).cast()),
        pointer(std::ptr::from_ref(&words).cast()),
        pointer(std::ptr::from_ref(&seed).cast()),
    ];
    // SAFETY: the parameters of `fill_random`; the arena has that many words.
    unsafe { gpu.launch("fill_random", [16 * multiprocessors, 1], 256, 0, &fill)? };
    let read = [
        pointer(std::ptr::from_ref(&from).cast()),
        pointer(std::ptr::from_ref(&count).cast()),
        pointer(std::ptr::from_ref(&out).cast()),
    ];
    let timer = gpu.timer()?;
    let mut best = 0.0f64;
    for blocks in [2, 4, 8, 16] {
        let mut seconds = Vec::new();
        for _ in 0..6 {
            seconds.push(timer.measure(|| {
                // SAFETY: the parameters of `read_all`; `out` is a word of the arena.
                unsafe { gpu.launch("read_all", [blocks * multiprocessors, 1], 512, 0, &read) }
            })?);
        }
        let mut seconds = seconds.split_off(1); // the first one warms up
        seconds.sort_by(f64::total_cmp);
        best = best.max(bytes as f64 / seconds[2]);
    }
    gpu.wait()?;
    Ok(best)
}

/// The plan for a model of this shape, everything packed with f16 steps and one table.
///
/// Errors: it does not fit.
pub fn plan_for_shape(text: &TextConfig, wish: &Wish) -> Result<Plan> {
    plan(text, &packed_weights(text), wish)
}

fn packed_weights(text: &TextConfig) -> Weights<Stored> {
    let storage = Storage::Packed(ScaleDtype::F16);
    let matrix = |name: &str, rows, columns| Stored { name: name.into(), rows, columns, storage };
    let (hidden, width) = (text.hidden_size, text.hidden_size_per_layer_input);
    let norm = || vec![1.0; hidden];
    let all_layers = text.layers.len() * width;
    let layers = text.layers.iter().map(|layer| {
        let q = text.num_attention_heads * layer.head_dim;
        let k = layer.kv_heads * layer.head_dim;
        LayerWeights {
            input_norm: norm(),
            q_proj: matrix("q", q, hidden),
            q_norm: vec![1.0; layer.head_dim],
            keys_and_values: layer.kv_source.is_none().then(|| KeysAndValues {
                k_proj: matrix("k", k, hidden),
                k_norm: vec![1.0; layer.head_dim],
                v_proj: matrix("v", k, hidden),
            }),
            o_proj: matrix("o", hidden, q),
            post_attention_norm: norm(),
            pre_mlp_norm: norm(),
            gate_proj: matrix("gate", layer.intermediate_size, hidden),
            up_proj: matrix("up", layer.intermediate_size, hidden),
            down_proj: matrix("down", hidden, layer.intermediate_size),
            post_mlp_norm: norm(),
            per_layer_block: (width > 0).then(|| PerLayerBlock {
                input_gate: matrix("per_layer_gate", width, hidden),
                projection: matrix("per_layer_projection", hidden, width),
                post_norm: norm(),
            }),
            scalar: 1.0,
        }
    });
    Weights {
        embed_tokens: matrix("embed_tokens", text.vocab_size, hidden),
        per_layer_inputs: (width > 0).then(|| PerLayerInputs {
            embed_tokens: matrix("table", text.vocab_size_per_layer_input, all_layers),
            model_projection: matrix("projection", all_layers, hidden),
            projection_norm: vec![1.0; width],
        }),
        layers: layers.collect(),
        norm: norm(),
        lm_head: None,
    }
}
