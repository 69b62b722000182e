//! Several tokens through all layers and the head together on ordinary cores: one each of several sequences, or
//! some that one sequence tries.
//!
//! The stages of `token.rs`, with products of up to eight tokens, so that weights are read once for all. In front
//! of each a kernel makes the digits, a block a token. Attention goes token by token: where one sequence tries
//! them, each finds the keys and values of those before it. Every token has the sums that it has alone, in the
//! same order.

use super::matrices::{gate_and_up, qkv};
use super::stream::{Places, Stages};
use super::tensor::has_attention;
use super::token::{Token, pair_bytes};
use super::{Passes, arguments, config_width};
use crate::device::cuda::ways::Products;
use crate::device::cuda::work_space::Work;
use crate::error::Result;
use w4pack_kernels::cuda::Address;
use w4pack_kernels::cuda::parameters::{
    Epilogue, GEMV_THREADS, Gemv, Input, KvLayer, Matrix, Span, Step, digit_bytes,
};

/// Tokens that a product takes at most: `gemv_m2` to `gemv_m8`.
const EIGHT: usize = 8;
/// Most shared memory of a block, of the 48 KiB that every card has.
const MOST_SHARED: usize = 32 << 10;
/// Behind a token's digits lies what its products are multiplied by.
const FACTOR: usize = size_of::<f32>();
/// Digits are read sixteen bytes at a time.
const ALIGNMENT: usize = 16;

/// What becomes of a product, and where it goes; of several tokens those of the first.
#[derive(Clone, Copy)]
struct Outcome {
    epilogue: Epilogue,
    out: Address,
    gate_with: Address,
}

impl Outcome {
    fn store(out: Address) -> Self {
        Self { epilogue: Epilogue::Store, out, gate_with: 0 }
    }
}

/// The stages of several tokens, each with the caches of its slot.
struct Together<'a> {
    passes: &'a Passes<'a>,
    caches: &'a [&'a [Option<KvLayer>]],
}

impl Together<'_> {
    /// A product of every token, in equal parts of as many as a kernel takes: of two tokens or more, so is each.
    fn product(&self, parts: &[Matrix], input: Input, outcome: Outcome) -> Result<()> {
        let tokens = self.caches.len();
        let count = tokens.div_ceil(tokens.div_ceil(EIGHT));
        for first in (0..tokens).step_by(count) {
            self.passes.gemv_of_several(parts, input, outcome, first, count.min(tokens - first))?;
        }
        Ok(())
    }
}

impl Stages for Together<'_> {
    fn attention(&mut self, number: usize, input: Input, out: Address) -> Result<()> {
        let passes = self.passes;
        let (batch, work) = (passes.layout.batch, passes.work());
        let weights = &passes.layout.weights.layers[number];
        let (parts, o_proj) = (qkv(weights), weights.o_proj.matrix);
        self.product(&parts, input, Outcome::store(batch.qkv))?;
        let width: i32 = parts.iter().map(|part| part.rows).sum();
        for (token, caches) in self.caches.iter().enumerate() {
            let at = |base: Address, bytes: usize| base + (token * bytes) as u64;
            let of_token = Work {
                qkv: at(batch.qkv, 4 * width as usize),
                attention: at(batch.attention, 4 * o_proj.columns as usize),
                step: at(batch.steps, size_of::<Step>()),
                ..*work
            };
            let token = Token {
                caches,
                layers: 0..passes.text.layers.len(),
                x: batch.streams[0],
                per_layer: batch.per_layer,
                turns: at(batch.turns, 8 * passes.layout.vectors.pairs),
            };
            let passes = Passes { work: of_token, ..*passes };
            passes.attention_of_token(&token, number, 0, [Span::default(); 2])?;
        }
        self.product(&[o_proj], Input::plain(batch.attention), Outcome::store(out))
    }

    fn mlp(&mut self, number: usize, input: Input, out: Address) -> Result<()> {
        let (batch, layers) = (self.passes.layout.batch, &self.passes.layout.weights.layers);
        let activated = Outcome { epilogue: Epilogue::Geglu, ..Outcome::store(batch.mlp) };
        self.product(&gate_and_up(&layers[number]), input, activated)?;
        let down = layers[number].down_proj.matrix;
        self.product(&[down], Input::plain(batch.mlp), Outcome::store(out))
    }

    fn per_layer_block(
        &mut self,
        [gate, projection]: [Matrix; 2],
        input: Input,
        gate_with: Address,
        out: Address,
    ) -> Result<()> {
        let batch = self.passes.layout.batch;
        let gated = Outcome { epilogue: Epilogue::Gated, out: batch.gate, gate_with };
        self.product(&[gate], input, gated)?;
        self.product(&[projection], Input::plain(batch.gate), Outcome::store(out))
    }

    fn head(&mut self, input: Input) -> Result<()> {
        let (batch, head) = (self.passes.layout.batch, self.passes.layout.weights.head().matrix);
        let logits = Outcome { epilogue: Epilogue::Logits, ..Outcome::store(batch.logits) };
        self.product(&[head], input, logits)
    }
}

impl Passes<'_> {
    /// Whether several tokens can go together here: there is work space, and ordinary cores are what takes a
    /// token's attention when it is alone.
    pub fn takes_several(&self) -> bool {
        let heads = self.text.num_attention_heads;
        let on_tensor_cores = |layer| has_attention(heads, layer, self.kv);
        self.layout.batch.tokens > 1
            && (self.ways.products == Products::Ffma
                || !self.text.layers.iter().any(on_tensor_cores))
    }

    /// A decode step of tokens that are in the batch's work space, two or more, each with the caches of its
    /// slot: to the logits and the best id of each, which is 0 before.
    pub fn several(&self, caches: &[&[Option<KvLayer>]]) -> Result<()> {
        let tokens = caches.len();
        let batch = &self.layout.batch;
        let [x, _] = batch.streams;
        let mut stages = Together { passes: self, caches };
        self.embed_steps(batch.steps, batch.ids, tokens, x, batch.turns)?;
        if let Some(inputs) = &self.layout.weights.per_layer_inputs {
            let projection = [inputs.model_projection.matrix];
            stages.product(&projection, Input::plain(x), Outcome::store(batch.per_layer))?;
            self.per_layer_inputs(batch.ids, tokens, batch.per_layer)?;
        }
        let places =
            Places { x, per_layer: batch.per_layer, streams: batch.streams, deltas: batch.deltas };
        self.through_layers(&mut stages, 0..self.layout.weights.layers.len(), &places)
    }

    /// The product of `count` tokens from the first one on, 2 to 8.
    fn gemv_of_several(
        &self,
        parts: &[Matrix],
        input: Input,
        outcome: Outcome,
        first: usize,
        count: usize,
    ) -> Result<()> {
        let columns = parts[0].columns as usize;
        let batch = self.layout.batch;
        let at = |base: Address, bytes: usize| match base {
            0 => 0,
            base => base + (first * bytes) as u64,
        };
        let input = Input {
            stream: at(input.stream, 4 * columns),
            delta: at(input.delta, 4 * columns),
            stream_out: at(input.stream_out, 4 * columns),
            ..input
        };
        let stride = (digit_bytes(columns) + FACTOR).next_multiple_of(ALIGNMENT);
        let (digits, digit_stride, width) = (batch.mlp_digits, stride as u64, columns as i32);
        let arguments = arguments![input, width, digits, digit_stride];
        self.launch("digits", [count, 1], GEMV_THREADS, 0, &arguments)?;

        let alone = self.one_gemv(parts, input, 0, outcome.epilogue, 0);
        let gate_stride = self.text.layers.len() * config_width(self.text);
        // A block has no digits to make, so there may be as many blocks as there are.
        let pair_bytes = pair_bytes(&alone) * count;
        let pairs_per_block =
            (alone.pairs_per_block as usize).min((MOST_SHARED / pair_bytes).max(1));
        let gemv = Gemv {
            digits,
            digit_stride,
            out: at(outcome.out, 4 * alone.rows as usize),
            gate_with: at(outcome.gate_with, 4 * gate_stride),
            gate_stride: gate_stride as i32,
            best: at(batch.best, 8),
            pairs_per_block: pairs_per_block as i32,
            ..alone
        };
        let blocks = gemv.pairs().div_ceil(pairs_per_block);
        let (kernel, shared) = (format!("gemv_m{count}"), pairs_per_block * pair_bytes);
        Ok(self.launch(&kernel, [blocks, 1], GEMV_THREADS, shared, &arguments![gemv])?)
    }
}
