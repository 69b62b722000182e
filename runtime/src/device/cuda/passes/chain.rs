//! One token through layers and head on cards before sm_80: chains of products, each chain one launch.
//!
//! Two launches a layer: attention; then its output projection, gate and up, down, gate and projection of the
//! per-layer block, and q, k and v of the next layer. Products run on ordinary cores, attention where
//! prompts do; the head has a launch of its own.

use super::tensor::{gate_and_up, has_attention, span};
use super::token::Stream;
use super::{Passes, Products, config_width, qkv};
use crate::device::cuda::layout::{Layout, Placed};
use crate::error::Result;
use crate::model::LayerWeights;
use std::ops::Range;
use w4pack_format::config::TextConfig;
use w4pack_kernels::cuda::parameters::{
    ChainProduct, Epilogue, Input, KvLayer, MOST_CHAINED, Matrix, STATIC_SHARED, Span, TokenChain,
    TokenResult,
};
use w4pack_kernels::cuda::{Address, Card, Gpu};

/// A second-level cache that has room for what later kernels read: no Turing card's has, newer ones that run
/// the same kernels may.
const LARGE_CACHE: usize = 24 << 20;

/// Whether the kernels hold chains, and all products of a token have a place in one.
pub(in crate::device::cuda) fn fits(text: &TextConfig, layout: &Layout, gpu: &Gpu) -> bool {
    let card = gpu.card();
    let takes = |result: TokenResult, parts: &[Matrix]| {
        ChainProduct::new(result, parts, card.multiprocessors)
            .is_some_and(|product| product.launch().shared + STATIC_SHARED <= card.shared_memory)
    };
    let layer = |layer: &LayerWeights<Placed>| {
        takes(TokenResult::Normed, &qkv(layer))
            && takes(TokenResult::Plain, &[layer.o_proj.matrix])
            && takes(TokenResult::Geglu, &gate_and_up(layer))
            && takes(TokenResult::Plain, &[layer.down_proj.matrix])
            && layer.per_layer_block.as_ref().is_none_or(|block| {
                takes(TokenResult::Gated, &[block.input_gate.matrix])
                    && takes(TokenResult::Plain, &[block.projection.matrix])
            })
    };
    gpu.has_token_chain()
        && text.layers.iter().all(|config| config.head_dim % 32 == 0)
        && layout.weights.layers.iter().all(layer)
}

fn has_large_cache(card: &Card) -> bool {
    card.cache >= LARGE_CACHE
}

/// Products on their way to the card.
struct Chain<'a> {
    passes: &'a Passes<'a>,
    products: Vec<ChainProduct>,
}

impl Chain<'_> {
    fn push(
        &mut self,
        result: TokenResult,
        parts: &[Matrix],
        fill: impl FnOnce(&mut ChainProduct),
    ) -> Result<()> {
        if self.products.len() == MOST_CHAINED {
            self.launch()?;
        }
        let multiprocessors = self.passes.gpu.card().multiprocessors;
        let product = ChainProduct::new(result, parts, multiprocessors);
        let mut product = product.expect("`fits` has asked for every product");
        fill(&mut product);
        self.products.push(product);
        Ok(())
    }

    fn normed(&mut self, parts: &[Matrix], input: Input, out: Address) -> Result<()> {
        self.push(TokenResult::Normed, parts, |chained| {
            (chained.product.input, chained.product.out) = (input, out);
        })
    }

    fn plain(&mut self, matrix: Matrix, digits: Address, out: Address) -> Result<()> {
        self.push(TokenResult::Plain, &[matrix], |chained| {
            (chained.product.digits, chained.product.out) = (digits, out);
        })
    }

    /// What has come together, if anything has.
    fn launch(&mut self) -> Result<()> {
        if self.products.is_empty() {
            return Ok(());
        }
        let passes = self.passes;
        let (done, prefetch) = (passes.work().done, has_large_cache(passes.gpu.card()));
        let (chain, launch) = TokenChain::new(&self.products, done, prefetch);
        self.products.clear();
        passes.launch_whole(TokenChain::KERNEL, launch, &chain)
    }
}

impl Passes<'_> {
    /// Layers and head for one token, whose position is in `Step`.
    pub(super) fn chained_token_layers(
        &self,
        caches: &[Option<KvLayer>],
        layers: Range<usize>,
        x: Address,
        per_layer: Address,
        turns: Address,
    ) -> Result<()> {
        let mut chain = Chain { passes: self, products: Vec::new() };
        let mut stream = Stream::new(x);
        for number in layers {
            stream =
                self.chained_token_layer(&mut chain, caches, number, stream, per_layer, turns)?;
        }
        chain.launch()?;
        // Alone, a chain takes 76 us for E2B's head on an H200, gemv.cu 64.
        let input = self.input(&stream, self.layout.vectors.norm, 0);
        let head = self.layout.weights.head().matrix;
        self.gemv(&[head], input, self.work().logits, Epilogue::Logits)
    }

    fn chained_token_layer(
        &self,
        chain: &mut Chain<'_>,
        caches: &[Option<KvLayer>],
        number: usize,
        stream: Stream,
        per_layer: Address,
        turns: Address,
    ) -> Result<Stream> {
        let (work, weights) = (self.work(), &self.layout.weights.layers[number]);
        let vectors = self.layout.vectors.layers[number];
        let [attention_out, mlp_out, block_out] = work.deltas;

        // A stream without a delta stays where it is.
        let moved = if stream.delta == 0 { 0 } else { self.other(stream.at) };
        chain.normed(&qkv(weights), self.input(&stream, vectors.input_norm, moved), work.qkv)?;
        chain.launch()?;
        let at = if moved == 0 { stream.at } else { moved };
        self.chained_attention(caches, number, turns)?;
        chain.plain(weights.o_proj.matrix, work.attention_digits, attention_out)?;

        let stream = self.advance(at, attention_out, vectors.post_attention_norm);
        let at = self.other(at);
        let input = self.input(&stream, vectors.pre_mlp_norm, at);
        chain.push(TokenResult::Geglu, &gate_and_up(weights), |chained| {
            (chained.product.input, chained.product.digits_out) = (input, work.mlp_digits);
        })?;
        chain.plain(weights.down_proj.matrix, work.mlp_digits, mlp_out)?;
        let stream = self.advance(at, mlp_out, vectors.post_mlp_norm);

        let Some(block) = &weights.per_layer_block else {
            return Ok(Stream { scalar: weights.scalar, ..stream });
        };
        let at = self.other(at);
        let input = self.input(&stream, 0, at);
        let gate_with = per_layer + (4 * number * config_width(self.text)) as u64;
        chain.push(TokenResult::Gated, &[block.input_gate.matrix], |chained| {
            let product = &mut chained.product;
            (product.input, product.digits_out) = (input, work.gate_digits);
            product.gate_with = gate_with;
        })?;
        chain.plain(block.projection.matrix, work.gate_digits, block_out)?;
        let stream = self.advance(at, block_out, vectors.post_block_norm);
        Ok(Stream { scalar: weights.scalar, ..stream })
    }

    /// Up to the digits of the output projection's input; meanwhile idle blocks ask for what follows.
    fn chained_attention(
        &self,
        caches: &[Option<KvLayer>],
        number: usize,
        turns: Address,
    ) -> Result<()> {
        let (heads, config) = (self.text.num_attention_heads, &self.text.layers[number]);
        if self.products == Products::Mma && has_attention(heads, config, self.kv) {
            return self.tensor_attention(caches, number, turns, &[]);
        }
        let weights = &self.layout.weights.layers[number];
        let ahead = match has_large_cache(self.gpu.card()) {
            true => [span(&[weights.o_proj.matrix]), span(&gate_and_up(weights))],
            false => [Span::default(); 2],
        };
        self.attention_of_token(caches, number, turns, self.work().attention_digits, ahead)
    }
}
