//! The residual stream of tokens through layers and head: what each stage reads, and what it leaves to the next one.
//!
//! No stage adds its output to the stream, and norms have no kernels of their own: the next stage reads both
//! through an [`Input`] that says what to do on the way, and leaves the sum in the stream's other place. How a
//! stage is computed, [`Stages`] say: `token.rs`, `chain.rs`, `tensor.rs`, and for several tokens `batch.rs`.

use super::matrices::block_parts;
use super::{Passes, config_width};
use crate::error::Result;
use std::ops::Range;
use w4pack_kernels::cuda::Address;
use w4pack_kernels::cuda::parameters::{Input, Matrix};

/// A way to compute the stages of a layer, and the head behind the layers; layers come by number, one after another.
pub(super) trait Stages {
    /// q, k and v of `input`, attention, and its output projection to `out`.
    fn attention(&mut self, number: usize, input: Input, out: Address) -> Result<()>;

    /// Gate and up of `input`, and down to `out`.
    fn mlp(&mut self, number: usize, input: Input, out: Address) -> Result<()>;

    /// The gate of `input` with the layer's own input at `gate_with`, and its projection to `out`. Not called
    /// where a layer has no such block.
    fn per_layer_block(
        &mut self,
        parts: [Matrix; 2],
        input: Input,
        gate_with: Address,
        out: Address,
    ) -> Result<()>;

    /// Logits of `input`, and the likeliest id.
    fn head(&mut self, input: Input) -> Result<()>;
}

/// Where streams and what is added to them lie; of several tokens those of the first.
#[derive(Clone, Copy)]
pub(super) struct Places {
    /// The stream in front of the first layer.
    pub x: Address,
    /// The layers' own inputs, `[layers, width]`.
    pub per_layer: Address,
    /// Two places of the stream, read and written in turn.
    pub streams: [Address; 2],
    /// Outputs of attention, MLP and per-layer block.
    pub deltas: [Address; 3],
}

impl Places {
    /// Where the stream goes next: never where it is.
    fn other(&self, at: Address) -> Address {
        let [one, other] = self.streams;
        if at == one { other } else { one }
    }
}

/// The stream on its way: where it is, and what is still to be added to it.
#[derive(Clone, Copy)]
struct Stream {
    at: Address,
    delta: Address,
    delta_norm: Address,
    scalar: f32,
}

impl Stream {
    /// The stream that a stage's output is to be added to, brought up to date at `at`.
    fn with(at: Address, delta: Address, delta_norm: Address) -> Self {
        Self { at, delta, delta_norm, scalar: 1.0 }
    }
}

impl Passes<'_> {
    /// From the stream at `x` through these layers and the head.
    pub(super) fn through_layers(
        &self,
        stages: &mut impl Stages,
        layers: Range<usize>,
        places: &Places,
    ) -> Result<()> {
        let mut stream = Stream::with(places.x, 0, 0);
        for number in layers {
            stream = self.through_layer(stages, number, stream, places)?;
        }
        stages.head(self.input(&stream, self.layout.vectors.norm, 0))
    }

    fn through_layer(
        &self,
        stages: &mut impl Stages,
        number: usize,
        stream: Stream,
        places: &Places,
    ) -> Result<Stream> {
        let weights = &self.layout.weights.layers[number];
        let vectors = self.layout.vectors.layers[number];
        let [attention_out, mlp_out, block_out] = places.deltas;

        // A stream without a delta stays where it is.
        let moved = if stream.delta == 0 { 0 } else { places.other(stream.at) };
        let input = self.input(&stream, vectors.input_norm, moved);
        stages.attention(number, input, attention_out)?;
        let at = if moved == 0 { stream.at } else { moved };
        let stream = Stream::with(at, attention_out, vectors.post_attention_norm);

        let at = places.other(at);
        stages.mlp(number, self.input(&stream, vectors.pre_mlp_norm, at), mlp_out)?;
        let mut stream = Stream::with(at, mlp_out, vectors.post_mlp_norm);

        if let Some(parts) = block_parts(weights) {
            let at = places.other(at);
            let gate_with = places.per_layer + (4 * number * config_width(self.text)) as u64;
            stages.per_layer_block(parts, self.input(&stream, 0, at), gate_with, block_out)?;
            stream = Stream::with(at, block_out, vectors.post_block_norm);
        }
        Ok(Stream { scalar: weights.scalar, ..stream })
    }

    /// The stream through a norm (0: none); it is written to `out` (0: nowhere) on the way.
    fn input(&self, stream: &Stream, norm: Address, out: Address) -> Input {
        Input {
            stream: stream.at,
            delta: stream.delta,
            delta_norm: stream.delta_norm,
            norm,
            stream_out: out,
            scalar: stream.scalar,
            epsilon: self.epsilon(),
        }
    }
}
