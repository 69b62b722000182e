//! One token through layers and head on tensor cores, where every matrix has a kernel for that.
//!
//! Six or seven kernels a layer: q, k and v; attention; its output projection; gate and up; down; gate
//! and projection of the per-layer block, which on sm_90 are one. Behind a norm a kernel makes the digits
//! of its input itself; all others get them from the kernel before. Each asks for the weights of a
//! later one on the way, so that memory works while the chain waits for itself.

use super::matrices::{block_parts, gate_and_up, products, qkv};
use super::stream::Stages;
use super::token::Token;
use super::{Passes, cache_of};
use crate::device::cuda::layout::Layout;
use crate::device::cuda::plan::KvType;
use crate::device::cuda::work_space::qkv_addresses;
use crate::error::Result;
use w4pack_format::config::{LayerConfig, TextConfig};
use w4pack_kernels::cuda::parameters::{
    ATTENTION_HEADS, ATTENTION_THREADS, Input, KvLayer, Matrix, PRODUCT_THREADS, SLIDING_PIECES,
    STATIC_SHARED, Span, TokenAttention, TokenBlock, TokenLaunch, TokenLong, TokenProduct,
    TokenResult,
};
use w4pack_kernels::cuda::{Address, Card, CudaError, Gpu};

/// Most that is asked for ahead of a kernel. More takes bandwidth from what is needed sooner.
const MOST_AHEAD: u64 = 4 << 20;

/// Whether all products of a token have a kernel here that fits into the card's shared memory.
pub(in crate::device::cuda) fn fits(text: &TextConfig, layout: &Layout, card: &Card) -> bool {
    let takes = |result: TokenResult, parts: &[Matrix]| takes(result, parts, card);
    layout.weights.layers.iter().flat_map(products).all(|(result, parts)| takes(result, &parts))
        && text.layers.iter().all(|config| config.head_dim % 32 == 0)
        && takes(TokenResult::Logits, &[layout.weights.head().matrix])
}

/// Whether this product of a token has a kernel here that fits into the card's shared memory.
fn takes(result: TokenResult, parts: &[Matrix], card: &Card) -> bool {
    let shared =
        || TokenProduct::new(result, parts, card.multiprocessors, card.shared_memory).1.shared;
    result.takes(parts) && shared() + STATIC_SHARED <= card.shared_memory
}

/// Whether the card has room for the clusters that take a token's per-layer block and its products with long
/// rows, where there are kernels for that.
pub(in crate::device::cuda) fn has_room_for_clusters(layout: &Layout, gpu: &Gpu) -> bool {
    let mut launches = vec![(TokenBlock::KERNEL, TokenBlock::LAUNCH)];
    let layers = &layout.weights.layers;
    launches.extend(layers.iter().filter_map(|layer| TokenLong::launch(&layer.down_proj.matrix)));
    launches.dedup();
    gpu.has_token_clusters()
        && launches.into_iter().all(|(kernel, TokenLaunch { blocks, shared })| {
            shared + STATIC_SHARED <= gpu.card().shared_memory
                && gpu.fits_cluster(kernel, blocks, PRODUCT_THREADS, shared)
        })
}

/// Words and steps of matrices that were placed one after another.
pub(super) fn span(parts: &[Matrix]) -> Span {
    let (Some(first), Some(last)) = (parts.first(), parts.last()) else { return Span::default() };
    let elements = last.rows as u64 * last.columns as u64;
    let end = last.steps + elements / 32 * 2;
    let bytes = end.saturating_sub(first.values).min(MOST_AHEAD);
    Span { address: first.values, bytes: bytes / 16 * 16 }
}

/// The stages of one token, each product a launch that asks for the weights of a later one.
pub(super) struct OnTensorCores<'a> {
    pub passes: &'a Passes<'a>,
    pub token: &'a Token<'a>,
}

impl OnTensorCores<'_> {
    /// The layer behind this one, if the token goes through it.
    fn next(&self, number: usize) -> Option<usize> {
        Some(number + 1).filter(|next| self.token.layers.contains(next))
    }
}

impl Stages for OnTensorCores<'_> {
    fn attention(&mut self, number: usize, input: Input, out: Address) -> Result<()> {
        let passes = self.passes;
        let (work, weights) = (passes.work(), &passes.layout.weights.layers[number]);
        let o_proj = [weights.o_proj.matrix];
        // The MLP's first weights are the most: they need the time of two kernels, and many blocks to
        // ask for them.
        passes.normed(&qkv(weights), input, work.qkv, &gate_and_up(weights))?;
        // Where a cluster has taken the layer before, it has asked for these.
        let is_asked = number > self.token.layers.start && passes.long(number - 1).is_some();
        passes.tensor_attention(self.token, number, if is_asked { &[] } else { &o_proj })?;
        passes.plain(o_proj[0], work.attention_digits, out, &[weights.down_proj.matrix])
    }

    fn mlp(&mut self, number: usize, input: Input, out: Address) -> Result<()> {
        let passes = self.passes;
        let (work, weights) = (passes.work(), &passes.layout.weights.layers[number]);
        let block_parts = block_parts(weights);
        let ahead = block_parts.as_ref().map_or(&[][..], |parts| parts);
        let (product, launch) = passes.product(TokenResult::Geglu, &gate_and_up(weights), [ahead]);
        let product = TokenProduct { input, digits_out: work.mlp_digits, ..product };
        passes.launch_product(TokenResult::Geglu, &product, launch)?;
        let (down, next) = (weights.down_proj.matrix, self.next(number));
        match passes.long(number) {
            Some((kernel, launch)) => {
                let ahead = passes.ahead_of_next(self.token.caches, number, next);
                let long = TokenLong { matrix: down, digits: work.mlp_digits, out, ahead };
                passes.launch_whole(kernel, launch, &long)
            }
            None => {
                let next = match next {
                    Some(next) => qkv(&passes.layout.weights.layers[next]),
                    None => vec![passes.layout.weights.head().matrix],
                };
                passes.plain(down, work.mlp_digits, out, &next)
            }
        }
    }

    fn per_layer_block(
        &mut self,
        [gate, projection]: [Matrix; 2],
        input: Input,
        gate_with: Address,
        out: Address,
    ) -> Result<()> {
        let (passes, work) = (self.passes, self.passes.work());
        if passes.ways.clusters && TokenBlock::takes(&gate, &projection) {
            let block = TokenBlock { input, gate, projection, gate_with, out };
            return passes.launch_whole(TokenBlock::KERNEL, TokenBlock::LAUNCH, &block);
        }
        let (product, launch) = passes.product(TokenResult::Gated, &[gate], []);
        let product = TokenProduct { input, digits_out: work.gate_digits, gate_with, ..product };
        passes.launch_product(TokenResult::Gated, &product, launch)?;
        passes.plain(projection, work.gate_digits, out, &[])
    }

    fn head(&mut self, input: Input) -> Result<()> {
        let (passes, work) = (self.passes, self.passes.work());
        let matrix = passes.layout.weights.head().matrix;
        let (out, best, cap) = (work.logits, work.step + 8, passes.cap());
        let (product, launch) = passes.product(TokenResult::Logits, &[matrix], []);
        let product = TokenProduct { input, out, best, cap, ..product };
        Ok(passes.launch_product(TokenResult::Logits, &product, launch)?)
    }
}

impl Passes<'_> {
    /// Whether the projection of a token's embedding to its per-layer inputs takes digits that `embed` leaves.
    pub(super) fn projects_from_digits(&self) -> bool {
        let inputs = &self.layout.weights.per_layer_inputs;
        self.ways.tensor_token
            && inputs.as_ref().is_some_and(|inputs| {
                takes(TokenResult::Plain, &[inputs.model_projection.matrix], self.gpu.card())
            })
    }

    /// That projection; the first layer's weights are on their way meanwhile.
    pub(super) fn token_projection(&self, projection: Matrix, out: Address) -> Result<()> {
        let first = self.layout.weights.layers.first().map(qkv).unwrap_or_default();
        self.plain(projection, self.work().embedding_digits, out, &first)
    }

    /// The kernel that takes a layer's projection down in clusters, if one does.
    fn long(&self, number: usize) -> Option<(&'static str, TokenLaunch)> {
        let down = &self.layout.weights.layers[number].down_proj.matrix;
        TokenLong::launch(down).filter(|_| self.ways.clusters)
    }

    /// What is read behind the MLP of layer `number` and before the next one's: norms; q, k, v and the output
    /// projection, or the head; a sliding layer's keys and values.
    fn ahead_of_next(
        &self,
        caches: &[Option<KvLayer>],
        number: usize,
        next: Option<usize>,
    ) -> [Span; 4] {
        let (weights, vectors) = (&self.layout.weights, &self.layout.vectors);
        let norms = vectors.layers[number].post_mlp_norm;
        let up_to = |end: Address| Span { address: norms, bytes: end.saturating_sub(norms) };
        let Some(next) = next else {
            let norm_end = vectors.norm + 4 * self.text.hidden_size as u64 / 16 * 16;
            return [
                up_to(norm_end),
                span(&[weights.head().matrix]),
                Span::default(),
                Span::default(),
            ];
        };
        let mut parts = qkv(&weights.layers[next]);
        parts.push(weights.layers[next].o_proj.matrix);
        let cache = cache_of(caches, next, &self.text.layers[next]);
        let numbers = (cache.ring * cache.kv_heads * cache.head_dim) as u64; // 0 of a full layer
        let bytes = numbers * self.kv.number_bytes() as u64 / 16 * 16;
        let [keys, values] =
            [cache.stored.keys, cache.stored.values].map(|address| Span { address, bytes });
        [up_to(vectors.layers[next].post_mlp_norm), span(&parts), keys, values]
    }

    /// A product and what is to be asked for while it runs.
    fn product<const N: usize>(
        &self,
        result: TokenResult,
        parts: &[Matrix],
        ahead: [&[Matrix]; N],
    ) -> (TokenProduct, TokenLaunch) {
        let card = self.gpu.card();
        let (mut product, launch) =
            TokenProduct::new(result, parts, card.multiprocessors, card.shared_memory);
        for (span_of, parts) in product.ahead.iter_mut().zip(ahead) {
            *span_of = span(parts);
        }
        (product, launch)
    }

    fn launch_product(
        &self,
        result: TokenResult,
        product: &TokenProduct,
        launch: TokenLaunch,
    ) -> Result<(), CudaError> {
        let arguments = [std::ptr::from_ref(product).cast()];
        let grid = [launch.blocks, 1];
        self.launch(
            result.kernel(product.columns as usize),
            grid,
            PRODUCT_THREADS,
            launch.shared,
            &arguments,
        )
    }

    /// A kernel whose only parameter holds its matrices.
    pub(super) fn launch_whole<T>(
        &self,
        kernel: &str,
        launch: TokenLaunch,
        whole: &T,
    ) -> Result<()> {
        let arguments = [std::ptr::from_ref(whole).cast()];
        let grid = [launch.blocks, 1];
        Ok(self.launch(kernel, grid, PRODUCT_THREADS, launch.shared, &arguments)?)
    }

    fn normed(&self, parts: &[Matrix], input: Input, out: Address, ahead: &[Matrix]) -> Result<()> {
        let (product, launch) = self.product(TokenResult::Normed, parts, [ahead]);
        let product = TokenProduct { input, out, ..product };
        Ok(self.launch_product(TokenResult::Normed, &product, launch)?)
    }

    fn plain(&self, matrix: Matrix, digits: Address, out: Address, ahead: &[Matrix]) -> Result<()> {
        let (product, launch) = self.product(TokenResult::Plain, &[matrix], [ahead]);
        let product = TokenProduct { digits, out, ..product };
        Ok(self.launch_product(TokenResult::Plain, &product, launch)?)
    }

    /// Attention up to the digits of the output projection's input.
    pub(super) fn tensor_attention(
        &self,
        token: &Token<'_>,
        number: usize,
        ahead: &[Matrix],
    ) -> Result<()> {
        let (work, config) = (self.work(), &self.text.layers[number]);
        let heads = self.text.num_attention_heads;
        if !has_attention(heads, config, self.kv) {
            let ahead = [span(ahead), Span::default()];
            return self.attention_of_token(token, number, work.attention_digits, ahead);
        }
        let vectors = self.layout.vectors.layers[number];
        let [q, k, v] = qkv_addresses(work.qkv, self.text, config);
        let cache = cache_of(token.caches, number, config);
        let is_full = cache.window == 0;
        let max_pieces = if is_full { work.max_pieces } else { SLIDING_PIECES };
        let attention = TokenAttention {
            cache,
            q,
            k,
            v,
            q_norm: vectors.q_norm,
            k_norm: vectors.k_norm,
            turns: token.turns + 8 * vectors.first_pair as u64,
            digits_out: work.attention_digits,
            pieces: work.pieces,
            piece_state: work.piece_state,
            step: work.step,
            ahead: [span(ahead), Span::default()],
            epsilon: self.epsilon(),
            pairs: config.rope.rotated_pairs as i32,
            heads: heads as i32,
            max_pieces: max_pieces as i32,
            slots: 0,
            slot_bytes: 0,
            qkv_stride: 0,
            turns_stride: 0,
            is_draft: 0,
            padding: 0,
        };
        self.launch_token_attention(&attention, config.head_dim, 1)
    }

    /// Attention of so many tokens.
    pub(super) fn launch_token_attention(
        &self,
        attention: &TokenAttention,
        head_dim: usize,
        tokens: usize,
    ) -> Result<()> {
        let arguments = [std::ptr::from_ref(attention).cast()];
        let heads = tokens * attention.heads as usize;
        let is_full = attention.cache.window == 0;
        let kind = if is_full { "full" } else { "sliding" };
        let kernel = format!("token_attention_{kind}_{head_dim}");
        let grid = [attention.max_pieces as usize, heads / ATTENTION_HEADS];
        self.launch(&kernel, grid, ATTENTION_THREADS, 0, &arguments)?;
        if is_full || !self.gpu.has_clusters() {
            let grid = [head_dim / 32, heads];
            self.launch("token_join", grid, ATTENTION_THREADS, 0, &arguments)?;
        }
        Ok(())
    }
}

/// Whether the tensor cores take this layer's attention.
pub(super) fn has_attention(heads: usize, config: &LayerConfig, kv: KvType) -> bool {
    kv == KvType::F16
        && heads == ATTENTION_HEADS * config.kv_heads
        && [64, 256, 512].contains(&config.head_dim)
}
