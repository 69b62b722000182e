//! Several tokens through all layers and the head together, on tensor cores: one each of several sequences,
//! or some that one sequence tries.
//!
//! The stages of `tensor.rs`, with a column of a product for each token, so that weights are read once
//! for all. Every token's sums are those that it has alone, in the same order. Behind a norm a
//! kernel of its own makes the digits, a block a token: made in every block of the product, as for one
//! token, they would cost as often as there are tokens.

use super::matrices::{block_parts, gate_and_up, qkv};
use super::stream::{Places, Stages};
use super::tensor::{has_attention, span};
use super::{Passes, arguments, cache_of, config_width};
use crate::device::cuda::work_space::{BatchWork, qkv_addresses};
use crate::error::Result;
use w4pack_kernels::cuda::Address;
use w4pack_kernels::cuda::parameters::{
    BatchProduct, Input, KEYS_THREADS, KvLayer, Matrix, PRODUCT_THREADS, SLIDING_PIECES,
    STATIC_SHARED, Span, TokenAttention, TokenKeys, TokenResult,
};

/// What tokens that go together are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::device::cuda) enum Columns {
    /// One each of different slots, which do not meet.
    OfSlots,
    /// Of one slot, at neighbouring positions: each sees those before it.
    OfOne,
}

/// A product's input: digits, and what its results are multiplied by.
#[derive(Clone, Copy)]
struct Digits {
    digits: Address,
    factors: Address,
}

/// Whose tokens they are and how many.
struct Slots<'c> {
    caches: &'c [Option<KvLayer>],
    second: Option<&'c [Option<KvLayer>]>,
    tokens: usize,
    columns: Columns,
}

/// The stages of several tokens.
struct Together<'a> {
    passes: &'a Passes<'a>,
    slots: Slots<'a>,
}

impl Together<'_> {
    /// The digits of every token's input.
    fn digits(&self, input: Input) -> Result<Digits> {
        self.passes.batch_digits(input, self.passes.text.hidden_size, self.slots.tokens)
    }
}

impl Stages for Together<'_> {
    fn attention(&mut self, number: usize, input: Input, out: Address) -> Result<()> {
        let (passes, tokens) = (self.passes, self.slots.tokens);
        let (batch, weights) = (passes.layout.batch, &passes.layout.weights.layers[number]);
        let o_proj = [weights.o_proj.matrix];
        let h = self.digits(input)?;
        passes.batch_store(&qkv(weights), h, tokens, batch.qkv, [&gate_and_up(weights)])?;
        passes.batch_attention(&self.slots, number, &o_proj)?;
        let attended = Digits { digits: batch.attention_digits, factors: 0 };
        passes.batch_store(&o_proj, attended, tokens, out, [&[weights.down_proj.matrix]])
    }

    fn mlp(&mut self, number: usize, input: Input, out: Address) -> Result<()> {
        let (passes, tokens) = (self.passes, self.slots.tokens);
        let (batch, layers) = (passes.layout.batch, &passes.layout.weights.layers);
        let (weights, head) = (&layers[number], passes.layout.weights.head().matrix);
        let block_parts = block_parts(weights);
        let ahead = block_parts.as_ref().map_or(&[][..], |parts| parts);
        let h = self.digits(input)?;
        let product =
            passes.batch_product(TokenResult::Geglu, &gate_and_up(weights), h, tokens, [ahead]);
        let product = BatchProduct { digits_out: batch.mlp_digits, ..product };
        passes.launch_batch(TokenResult::Geglu, &product)?;
        let activated = Digits { digits: batch.mlp_digits, factors: 0 };
        let next = layers.get(number + 1).map_or_else(|| vec![head], qkv);
        passes.batch_store(&[weights.down_proj.matrix], activated, tokens, out, [&next])
    }

    fn per_layer_block(
        &mut self,
        [gate, projection]: [Matrix; 2],
        input: Input,
        gate_with: Address,
        out: Address,
    ) -> Result<()> {
        let (passes, tokens) = (self.passes, self.slots.tokens);
        let batch = passes.layout.batch;
        let x = self.digits(input)?;
        let product = BatchProduct {
            digits_out: batch.gate_digits,
            gate_with,
            gate_stride: (passes.text.layers.len() * config_width(passes.text)) as u64,
            ..passes.batch_product(TokenResult::Gated, &[gate], x, tokens, [])
        };
        passes.launch_batch(TokenResult::Gated, &product)?;
        let gated = Digits { digits: batch.gate_digits, factors: 0 };
        passes.batch_store(&[projection], gated, tokens, out, [])
    }

    fn head(&mut self, input: Input) -> Result<()> {
        let (passes, batch) = (self.passes, self.passes.layout.batch);
        let head = [passes.layout.weights.head().matrix];
        let x = self.digits(input)?;
        let product = passes.batch_product(TokenResult::Logits, &head, x, self.slots.tokens, []);
        let product =
            BatchProduct { out: batch.logits, steps: batch.steps, cap: passes.cap(), ..product };
        passes.launch_batch(TokenResult::Logits, &product)
    }
}

impl Passes<'_> {
    /// Whether this many tokens can go together: every product has a kernel that fits, every layer's
    /// attention is on tensor cores, and there is work space.
    pub fn takes_batches(&self) -> bool {
        let tokens = self.layout.batch.tokens;
        let card = self.gpu.card();
        let takes = |result: TokenResult, parts: &[Matrix]| {
            let (multiprocessors, room) = (card.multiprocessors, card.shared_memory);
            let shared = || {
                BatchProduct::new(result, parts, tokens, multiprocessors, room)
                    .launch(result)
                    .shared
            };
            result.takes(parts) && shared() + STATIC_SHARED <= room
        };
        let heads = self.text.num_attention_heads;
        let inputs = &self.layout.weights.per_layer_inputs;
        tokens > 1
            && self.ways.tensor_token
            && inputs.as_ref().is_none_or(|inputs| {
                takes(TokenResult::Plain, &[inputs.model_projection.matrix])
            })
            && self.text.layers.iter().all(|layer| has_attention(heads, layer, self.kv))
            // The widest matrices, and the ones of which two tiles lie in shared memory at once.
            && self.layout.weights.layers.iter().all(|layer| {
                takes(TokenResult::Plain, &[layer.down_proj.matrix])
                    && takes(TokenResult::Geglu, &gate_and_up(layer))
            })
    }

    /// A decode step of several sequences, whose tokens and slots are in the batch's work space: to the
    /// logits and the best id of each. `caches` are those of the first slot, `second` of the next one, if
    /// there is one.
    pub fn batch_step(
        &self,
        caches: &[Option<KvLayer>],
        second: Option<&[Option<KvLayer>]>,
        tokens: usize,
        columns: Columns,
    ) -> Result<()> {
        let slots = Slots { caches, second, tokens, columns };
        let batch = &self.layout.batch;
        let [x, _] = batch.streams;
        self.embed_steps(batch.steps, batch.ids, tokens, x, batch.turns)?;
        if let Some(inputs) = &self.layout.weights.per_layer_inputs {
            let projection = [inputs.model_projection.matrix];
            let x = self.batch_digits(Input::plain(x), self.text.hidden_size, tokens)?;
            self.batch_store(&projection, x, tokens, batch.per_layer, [&[]])?;
            self.per_layer_inputs(batch.ids, tokens, batch.per_layer)?;
        }
        let places =
            Places { x, per_layer: batch.per_layer, streams: batch.streams, deltas: batch.deltas };
        let layers = 0..self.layout.weights.layers.len();
        self.through_layers(&mut Together { passes: self, slots }, layers, &places)
    }

    /// The digits of every token's input.
    fn batch_digits(&self, input: Input, columns: usize, tokens: usize) -> Result<Digits> {
        let BatchWork { digits, factors, .. } = self.layout.batch;
        let columns = columns as i32;
        let arguments = arguments![input, columns, digits, factors];
        self.launch("batch_digits", [tokens, 1], PRODUCT_THREADS, 0, &arguments)?;
        Ok(Digits { digits, factors })
    }

    /// A product, and what is to be asked for while it runs.
    fn batch_product<const N: usize>(
        &self,
        result: TokenResult,
        parts: &[Matrix],
        x: Digits,
        tokens: usize,
        ahead: [&[Matrix]; N],
    ) -> BatchProduct {
        let card = self.gpu.card();
        let (multiprocessors, shared) = (card.multiprocessors, card.shared_memory);
        let product = BatchProduct::new(result, parts, tokens, multiprocessors, shared);
        let mut spans = [Span::default(); 2];
        for (span_of, parts) in spans.iter_mut().zip(ahead) {
            *span_of = span(parts);
        }
        BatchProduct { digits: x.digits, factors: x.factors, ahead: spans, ..product }
    }

    fn launch_batch(&self, result: TokenResult, product: &BatchProduct) -> Result<()> {
        let launch = product.launch(result);
        let kernel = product.kernel(result);
        let product = *product;
        let grid = [launch.blocks, 1];
        Ok(self.launch(&kernel, grid, PRODUCT_THREADS, launch.shared, &arguments![product])?)
    }

    fn batch_store<const N: usize>(
        &self,
        parts: &[Matrix],
        x: Digits,
        tokens: usize,
        out: Address,
        ahead: [&[Matrix]; N],
    ) -> Result<()> {
        let product = self.batch_product(TokenResult::Plain, parts, x, tokens, ahead);
        self.launch_batch(TokenResult::Plain, &BatchProduct { out, ..product })
    }

    /// Attention of every token with its slot, up to the digits of the output projection's input.
    fn batch_attention(&self, slots: &Slots<'_>, number: usize, ahead: &[Matrix]) -> Result<()> {
        let &Slots { caches, second, tokens, columns } = slots;
        let (batch, config) = (self.layout.batch, &self.text.layers[number]);
        let vectors = self.layout.vectors.layers[number];
        let heads = self.text.num_attention_heads;
        let [q, k, v] = qkv_addresses(batch.qkv, self.text, config);
        let cache = cache_of(caches, number, config);
        let slot_bytes = second
            .map_or(0, |second| cache_of(second, number, config).stored.keys - cache.stored.keys);
        let is_full = cache.window == 0;
        let max_pieces = if is_full { self.work().max_pieces } else { SLIDING_PIECES };
        let rows = qkv(&self.layout.weights.layers[number]);
        let is_draft = columns == Columns::OfOne;
        let turns = batch.turns + 8 * vectors.first_pair as u64;
        let qkv_stride = rows.iter().map(|part| part.rows).sum();
        let turns_stride = self.layout.vectors.pairs as i32;
        if is_draft && k != 0 {
            // All of them are there before any token attends.
            let keys = TokenKeys {
                cache,
                k,
                v,
                k_norm: vectors.k_norm,
                turns,
                step: batch.steps,
                slots: batch.slots,
                slot_bytes,
                epsilon: self.epsilon(),
                pairs: config.rope.rotated_pairs as i32,
                qkv_stride,
                turns_stride,
            };
            let kernel = format!("token_keys_{}", config.head_dim);
            let grid = [2 * config.kv_heads, tokens];
            self.launch(&kernel, grid, KEYS_THREADS, 0, &arguments![keys])?;
        }
        let attention = TokenAttention {
            cache,
            q,
            k: if is_draft { 0 } else { k },
            v: if is_draft { 0 } else { v },
            q_norm: vectors.q_norm,
            k_norm: vectors.k_norm,
            turns,
            digits_out: batch.attention_digits,
            pieces: batch.pieces,
            piece_state: batch.piece_state,
            step: batch.steps,
            ahead: [span(ahead), Span::default()],
            epsilon: self.epsilon(),
            pairs: config.rope.rotated_pairs as i32,
            heads: heads as i32,
            max_pieces: max_pieces as i32,
            slots: batch.slots,
            slot_bytes,
            qkv_stride,
            turns_stride,
            is_draft: i32::from(is_draft),
            padding: 0,
        };
        self.launch_token_attention(&attention, config.head_dim, tokens)
    }
}
