//! Which matrices of a layer are multiplied together, and what becomes of their products.

use crate::device::cuda::layout::Placed;
use crate::model::LayerWeights;
use w4pack_kernels::cuda::parameters::{Matrix, TokenResult};

/// q, and k and v where the layer owns them.
pub(super) fn qkv(layer: &LayerWeights<Placed>) -> Vec<Matrix> {
    let mut parts = vec![layer.q_proj.matrix];
    if let Some(own) = &layer.keys_and_values {
        // Where the values are the keys' projection, loading has refused.
        parts.push(own.k_proj.matrix);
        parts.extend(own.v_proj.as_ref().map(|v_proj| v_proj.matrix));
    }
    parts
}

pub(super) fn gate_and_up(layer: &LayerWeights<Placed>) -> [Matrix; 2] {
    [layer.gate_proj.matrix, layer.up_proj.matrix]
}

/// Gate and projection of the per-layer block, which are multiplied one after the other, where there is one.
pub(super) fn block_parts(layer: &LayerWeights<Placed>) -> Option<[Matrix; 2]> {
    let block = layer.per_layer_block.as_ref()?;
    Some([block.input_gate.matrix, block.projection.matrix])
}

/// All products that a token needs of a layer.
pub(super) fn products(layer: &LayerWeights<Placed>) -> Vec<(TokenResult, Vec<Matrix>)> {
    let mut products = vec![
        (TokenResult::Normed, qkv(layer)),
        (TokenResult::Plain, vec![layer.o_proj.matrix]),
        (TokenResult::Geglu, gate_and_up(layer).to_vec()),
        (TokenResult::Plain, vec![layer.down_proj.matrix]),
    ];
    if let Some([gate, projection]) = block_parts(layer) {
        products.push((TokenResult::Gated, vec![gate]));
        products.push((TokenResult::Plain, vec![projection]));
    }
    products
}
