//! Several tokens through all layers and the head together, on tensor cores: one each of several sequences,
//! or some that one sequence tries.
//!
//! The stages of `tensor.rs`, with a column of a product for each token, so that weights are read once
//! for all. Every token's sums are those that it has alone, in the same order. Behind a norm a
//! kernel of its own makes the digits, a block a token: made in every block of the product, as for one
//! token, they would cost as often as there are tokens.

use super::tensor::{gate_and_up, has_attention, span};
use super::token::Stream;
use super::{Passes, arguments, cache_of, config_width, qkv};
use crate::device::cuda::work_space::{BatchWork, qkv_addresses};
use crate::error::Result;
use w4pack_kernels::cuda::Address;
use w4pack_kernels::cuda::parameters::{
    ATTENTION_HEADS, ATTENTION_THREADS, BatchProduct, Input, KEYS_THREADS, KvLayer, Matrix,
    PRODUCT_THREADS, SLIDING_PIECES, STATIC_SHARED, Span, TokenAttention, TokenKeys, TokenResult,
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
            && self.tensor_token
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
        let layers = &self.layout.weights.layers;
        let head = self.layout.weights.head().matrix;
        let mut stream = Stream::new(x);
        for number in 0..layers.len() {
            let next = layers.get(number + 1).map_or_else(|| vec![head], qkv);
            stream = self.batch_layer(&slots, number, stream, &next)?;
        }
        let input = self.input(&stream, self.layout.vectors.norm, 0);
        let x = self.batch_digits(input, self.text.hidden_size, tokens)?;
        let product = self.batch_product(TokenResult::Logits, &[head], x, tokens, []);
        let product =
            BatchProduct { out: batch.logits, steps: batch.steps, cap: self.cap(), ..product };
        self.launch_batch(TokenResult::Logits, &product)
    }

    /// `next`: the matrices behind this layer.
    fn batch_layer(
        &self,
        slots: &Slots<'_>,
        number: usize,
        stream: Stream,
        next: &[Matrix],
    ) -> Result<Stream> {
        let tokens = slots.tokens;
        let (batch, weights) = (self.layout.batch, &self.layout.weights.layers[number]);
        let vectors = self.layout.vectors.layers[number];
        let hidden = self.text.hidden_size;
        let [attention_out, mlp_out, block_out] = batch.deltas;
        let (o_proj, down) = ([weights.o_proj.matrix], [weights.down_proj.matrix]);
        let block_parts: Vec<Matrix> = weights
            .per_layer_block
            .iter()
            .flat_map(|block| [block.input_gate.matrix, block.projection.matrix])
            .collect();
        let other = |at: Address| {
            let [one, other] = batch.streams;
            if at == one { other } else { one }
        };

        // A stream without a delta stays where it is.
        let moved = if stream.delta == 0 { 0 } else { other(stream.at) };
        let h =
            self.batch_digits(self.input(&stream, vectors.input_norm, moved), hidden, tokens)?;
        let gate_and_up = gate_and_up(weights);
        self.batch_store(&qkv(weights), h, tokens, batch.qkv, [&gate_and_up])?;
        let at = if moved == 0 { stream.at } else { moved };
        self.batch_attention(slots, number, &o_proj)?;
        let attended = Digits { digits: batch.attention_digits, factors: 0 };
        self.batch_store(&o_proj, attended, tokens, attention_out, [&down])?;

        let stream = self.advance(at, attention_out, vectors.post_attention_norm);
        let at = other(at);
        let h = self.batch_digits(self.input(&stream, vectors.pre_mlp_norm, at), hidden, tokens)?;
        let product =
            self.batch_product(TokenResult::Geglu, &gate_and_up, h, tokens, [&block_parts]);
        let product = BatchProduct { digits_out: batch.mlp_digits, ..product };
        self.launch_batch(TokenResult::Geglu, &product)?;
        let activated = Digits { digits: batch.mlp_digits, factors: 0 };
        self.batch_store(&down, activated, tokens, mlp_out, [next])?;
        let stream = self.advance(at, mlp_out, vectors.post_mlp_norm);

        let Some(block) = &weights.per_layer_block else {
            return Ok(Stream { scalar: weights.scalar, ..stream });
        };
        let at = other(at);
        let width = config_width(self.text);
        let x = self.batch_digits(self.input(&stream, 0, at), hidden, tokens)?;
        let gate = [block.input_gate.matrix];
        let product = BatchProduct {
            digits_out: batch.gate_digits,
            gate_with: batch.per_layer + (4 * number * width) as u64,
            gate_stride: (self.text.layers.len() * width) as u64,
            ..self.batch_product(TokenResult::Gated, &gate, x, tokens, [])
        };
        self.launch_batch(TokenResult::Gated, &product)?;
        let gated = Digits { digits: batch.gate_digits, factors: 0 };
        self.batch_store(&[block.projection.matrix], gated, tokens, block_out, [])?;
        let stream = self.advance(at, block_out, vectors.post_block_norm);
        Ok(Stream { scalar: weights.scalar, ..stream })
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
        let kind = if is_full { "full" } else { "sliding" };
        let kernel = format!("token_attention_{kind}_{}", config.head_dim);
        let grid = [max_pieces, tokens * heads / ATTENTION_HEADS];
        self.launch(&kernel, grid, ATTENTION_THREADS, 0, &arguments![attention])?;
        if is_full || !self.gpu.has_clusters() {
            let grid = [config.head_dim / 32, tokens * heads];
            self.launch("token_join", grid, ATTENTION_THREADS, 0, &arguments![attention])?;
        }
        Ok(())
    }
}
