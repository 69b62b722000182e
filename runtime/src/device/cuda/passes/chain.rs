//! One token through layers and head on cards before sm_80: chains of products, each chain one launch.
//!
//! Two launches a layer: attention; then its output projection, gate and up, down, gate and projection of the
//! per-layer block, and q, k and v of the next layer. Products run on ordinary cores, attention where
//! prompts do; the head has a launch of its own.

use super::Passes;
use super::matrices::{gate_and_up, products, qkv};
use super::stream::Stages;
use super::tensor::{has_attention, span};
use super::token::Token;
use crate::device::cuda::layout::Layout;
use crate::device::cuda::ways::Products;
use crate::error::Result;
use w4pack_format::config::TextConfig;
use w4pack_kernels::cuda::parameters::{
    ChainProduct, Input, MOST_CHAINED, Matrix, STATIC_SHARED, Span, TokenChain, TokenResult,
};
use w4pack_kernels::cuda::{Address, Card, Gpu};

/// A second-level cache that has room for what later kernels read: no Turing card's has, newer ones that run
/// the same kernels may.
const LARGE_CACHE: usize = 24 << 20;

/// Whether the kernels hold chains, and all products of a token have a place in one.
pub(in crate::device::cuda) fn fits(text: &TextConfig, layout: &Layout, gpu: &Gpu) -> bool {
    let card = gpu.card();
    let takes = |(result, parts): (TokenResult, Vec<Matrix>)| {
        ChainProduct::new(result, &parts, card.multiprocessors)
            .is_some_and(|product| product.launch().shared + STATIC_SHARED <= card.shared_memory)
    };
    gpu.has_token_chain()
        && text.layers.iter().all(|config| config.head_dim % 32 == 0)
        && layout.weights.layers.iter().flat_map(products).all(takes)
}

fn has_large_cache(card: &Card) -> bool {
    card.cache >= LARGE_CACHE
}

/// The stages of one token: products on their way to the card, until attention or the head needs them.
pub(super) struct Chain<'a> {
    passes: &'a Passes<'a>,
    token: &'a Token<'a>,
    products: Vec<ChainProduct>,
}

impl<'a> Chain<'a> {
    pub fn new(passes: &'a Passes<'a>, token: &'a Token<'a>) -> Self {
        Self { passes, token, products: Vec::new() }
    }

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

    /// Up to the digits of the output projection's input; meanwhile idle blocks ask for what follows.
    fn launch_attention(&self, number: usize) -> Result<()> {
        let (passes, token) = (self.passes, self.token);
        let (heads, config) = (passes.text.num_attention_heads, &passes.text.layers[number]);
        if passes.ways.products == Products::Mma && has_attention(heads, config, passes.kv) {
            return passes.tensor_attention(token, number, &[]);
        }
        let weights = &passes.layout.weights.layers[number];
        let ahead = match has_large_cache(passes.gpu.card()) {
            true => [span(&[weights.o_proj.matrix]), span(&gate_and_up(weights))],
            false => [Span::default(); 2],
        };
        passes.attention_of_token(token, number, passes.work().attention_digits, ahead)
    }
}

impl Stages for Chain<'_> {
    fn attention(&mut self, number: usize, input: Input, out: Address) -> Result<()> {
        let (work, weights) = (self.passes.work(), &self.passes.layout.weights.layers[number]);
        self.normed(&qkv(weights), input, work.qkv)?;
        self.launch()?;
        self.launch_attention(number)?;
        self.plain(weights.o_proj.matrix, work.attention_digits, out)
    }

    fn mlp(&mut self, number: usize, input: Input, out: Address) -> Result<()> {
        let (work, weights) = (self.passes.work(), &self.passes.layout.weights.layers[number]);
        self.push(TokenResult::Geglu, &gate_and_up(weights), |chained| {
            (chained.product.input, chained.product.digits_out) = (input, work.mlp_digits);
        })?;
        self.plain(weights.down_proj.matrix, work.mlp_digits, out)
    }

    fn per_layer_block(
        &mut self,
        [gate, projection]: [Matrix; 2],
        input: Input,
        gate_with: Address,
        out: Address,
    ) -> Result<()> {
        let work = self.passes.work();
        self.push(TokenResult::Gated, &[gate], |chained| {
            let product = &mut chained.product;
            (product.input, product.digits_out) = (input, work.gate_digits);
            product.gate_with = gate_with;
        })?;
        self.plain(projection, work.gate_digits, out)
    }

    fn head(&mut self, input: Input) -> Result<()> {
        self.launch()?;
        // Alone, a chain takes 76 us for E2B's head on an H200, gemv.cu 64.
        self.passes.gemv_head(input)
    }
}
