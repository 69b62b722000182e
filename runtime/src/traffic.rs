//! Bytes that a step reads from memory: what a speed is measured against.

use crate::model::Weights;
use w4pack_format::config::{LayerKind, TextConfig};

/// What a device reads, in bytes, if it reads everything once.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Traffic {
    /// Matrices for a token whose logits are wanted: all layers, the head, of experts as many as a
    /// token uses, and its rows of the tables.
    pub token: usize,
    /// Matrices for prompt tokens whose logits nobody wants: the layers that own keys and values, of
    /// the last one those of keys and values alone.
    pub prompt: usize,
    /// Keys and values that all sliding layers read of a position.
    pub sliding_position: f64,
    /// Positions that a sliding layer sees.
    pub window: usize,
    /// Keys and values that all full layers read of a position.
    pub full_position: f64,
}

impl Traffic {
    /// Of a model whose matrices have `bytes` and whose cache takes `kept_bytes` a number.
    pub(crate) fn of<M>(
        weights: &Weights<M>,
        text: &TextConfig,
        rows: impl Fn(&M) -> usize,
        bytes: impl Fn(&M) -> usize,
        kept_bytes: f64,
    ) -> Traffic {
        let row = |table: &M| bytes(table) / rows(table);
        let mut prompt = row(&weights.embed_tokens);
        if let Some(inputs) = &weights.per_layer_inputs {
            prompt += row(&inputs.embed_tokens) + bytes(&inputs.model_projection);
        }
        let mut token = prompt + bytes(weights.head());
        let (mut sliding, mut full) = (0, 0);
        for (number, (layer, config)) in weights.layers.iter().zip(&text.layers).enumerate() {
            let mut sum: usize = layer.linears().into_iter().map(&bytes).sum();
            if let Some(experts) = &text.experts {
                let all: usize = layer.expert_linears().into_iter().map(&bytes).sum();
                sum += all * experts.used / experts.count;
            }
            token += sum;
            if number + 1 < text.owning_layers() {
                prompt += sum;
            } else if let Some(own) = &layer.keys_and_values {
                prompt += bytes(&own.k_proj) + own.v_proj.as_ref().map_or(0, &bytes);
            }
            let numbers = 2 * config.kv_heads * config.head_dim;
            match config.kind {
                LayerKind::Sliding => sliding += numbers,
                LayerKind::Full => full += numbers,
            }
        }
        Traffic {
            token,
            prompt,
            sliding_position: sliding as f64 * kept_bytes,
            window: text.sliding_window,
            full_position: full as f64 * kept_bytes,
        }
    }

    /// For a token generated behind `depth` others.
    pub fn decode(&self, depth: usize) -> f64 {
        let positions = depth + 1;
        let sliding = self.sliding_position * positions.min(self.window) as f64;
        self.token as f64 + sliding + self.full_position * positions as f64
    }

    /// For a prompt read `chunk` tokens at a time, keys and values not counted.
    pub fn prefill(&self, tokens: usize, chunk: usize) -> f64 {
        (self.prompt * tokens.div_ceil(chunk) + self.token - self.prompt) as f64
    }
}
