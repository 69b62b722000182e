//! One token through layers and head: its way through the stages, and the one with matrix-vector products on
//! ordinary cores, which takes every shape.

use super::chain::Chain;
use super::matrices::{gate_and_up, qkv};
use super::stream::{Places, Stages};
use super::tensor::OnTensorCores;
use super::{Passes, arguments, cache_of};
use crate::device::cuda::work_space::qkv_addresses;
use crate::error::Result;
use std::ops::Range;
use w4pack_format::config::LayerConfig;
use w4pack_kernels::cuda::Address;
use w4pack_kernels::cuda::parameters::{
    Attention, Epilogue, GEMV_THREADS, Gemv, Input, KvLayer, Matrix, STATIC_SHARED, Span, TallGemv,
    digit_bytes, row_shape,
};

/// Row pairs of a block from which on warps of all blocks take them in turn: some eight turns of a warp.
const MANY_PAIRS: usize = 128;

/// The pieces of a full layer that the last block joins by itself; above, a kernel does.
const JOINED_BY_LAST_BLOCK: usize = 8;

/// One token, whose position is in `Step`: the layers it goes through, and what they read of it.
pub(in crate::device::cuda) struct Token<'a> {
    pub caches: &'a [Option<KvLayer>],
    pub layers: Range<usize>,
    pub x: Address,
    pub per_layer: Address,
    pub turns: Address,
}

/// The stages of one token, each product a launch.
struct OnOrdinaryCores<'a> {
    passes: &'a Passes<'a>,
    token: &'a Token<'a>,
}

impl Stages for OnOrdinaryCores<'_> {
    fn attention(&mut self, number: usize, input: Input, out: Address) -> Result<()> {
        let passes = self.passes;
        let (work, weights) = (passes.work(), &passes.layout.weights.layers[number]);
        debug_assert_eq!(passes.text.layers[number].head_dim % 2, 0);
        passes.gemv(&qkv(weights), input, work.qkv, Epilogue::Store)?;
        passes.attention_of_token(self.token, number, 0, [Span::default(); 2])?;
        let input = Input::plain(work.attention);
        passes.gemv(&[weights.o_proj.matrix], input, out, Epilogue::Store)
    }

    fn mlp(&mut self, number: usize, input: Input, out: Address) -> Result<()> {
        let passes = self.passes;
        let (work, weights) = (passes.work(), &passes.layout.weights.layers[number]);
        passes.gemv(&gate_and_up(weights), input, work.mlp, Epilogue::Geglu)?;
        let input = Input::plain(work.mlp);
        passes.gemv(&[weights.down_proj.matrix], input, out, Epilogue::Store)
    }

    fn per_layer_block(
        &mut self,
        [gate, projection]: [Matrix; 2],
        input: Input,
        gate_with: Address,
        out: Address,
    ) -> Result<()> {
        let (passes, work) = (self.passes, self.passes.work());
        passes.launch_gemv(&[gate], input, work.gate, Epilogue::Gated, gate_with)?;
        passes.gemv(&[projection], Input::plain(work.gate), out, Epilogue::Store)
    }

    fn head(&mut self, input: Input) -> Result<()> {
        self.passes.gemv_head(input)
    }
}

impl Passes<'_> {
    /// Layers and head for one token.
    pub fn token_layers(&self, token: &Token<'_>) -> Result<()> {
        let work = self.work();
        let places = Places {
            x: token.x,
            per_layer: token.per_layer,
            streams: work.streams,
            deltas: work.deltas,
        };
        let layers = token.layers.clone();
        if self.ways.chains {
            return self.through_layers(&mut Chain::new(self, token), layers, &places);
        }
        if self.ways.tensor_token {
            let mut stages = OnTensorCores { passes: self, token };
            return self.through_layers(&mut stages, layers, &places);
        }
        self.through_layers(&mut OnOrdinaryCores { passes: self, token }, layers, &places)
    }

    /// Logits and the likeliest id.
    pub(super) fn gemv_head(&self, input: Input) -> Result<()> {
        let head = self.layout.weights.head().matrix;
        self.gemv(&[head], input, self.work().logits, Epilogue::Logits)
    }

    pub(super) fn gemv(
        &self,
        parts: &[Matrix],
        input: Input,
        out: Address,
        epilogue: Epilogue,
    ) -> Result<()> {
        self.launch_gemv(parts, input, out, epilogue, 0)
    }

    fn launch_gemv(
        &self,
        parts: &[Matrix],
        input: Input,
        out: Address,
        epilogue: Epilogue,
        gate_with: Address,
    ) -> Result<()> {
        let gemv = self.one_gemv(parts, input, out, epilogue, gate_with);
        let digits = digit_bytes(gemv.columns as usize);
        let blocks = 2 * self.gpu.card().multiprocessors;
        if gemv.pairs() >= MANY_PAIRS * blocks
            && let Some((tall, kernel)) = TallGemv::of(&gemv)
        {
            return Ok(self.launch(
                kernel,
                [blocks, 1],
                GEMV_THREADS,
                digits,
                &arguments![tall],
            )?);
        }
        let pairs_per_block = gemv.pairs_per_block as usize;
        let blocks = gemv.pairs().div_ceil(pairs_per_block);
        let shared = digits + pairs_per_block * pair_bytes(&gemv);
        Ok(self.launch(gemv.kernel(), [blocks, 1], GEMV_THREADS, shared, &arguments![gemv])?)
    }

    /// The product of one token.
    pub(super) fn one_gemv(
        &self,
        parts: &[Matrix],
        input: Input,
        out: Address,
        epilogue: Epilogue,
        gate_with: Address,
    ) -> Gemv {
        let mut part = [Matrix::NONE; 3];
        part[..parts.len()].copy_from_slice(parts);
        let is_geglu = epilogue == Epilogue::Geglu;
        let rows: i32 = if is_geglu { part[0].rows } else { parts.iter().map(|p| p.rows).sum() };
        let columns = part[0].columns as usize;
        let (lanes, slices) = row_shape(columns);
        let mut gemv = Gemv {
            part,
            input,
            digits: 0,
            out,
            gate_with,
            best: self.work().step + 8,
            digit_stride: 0,
            gate_stride: 0,
            cap: self.cap(),
            parts: parts.len() as i32,
            rows,
            columns: columns as i32,
            lanes,
            slices,
            pairs_per_block: 0,
            epilogue: epilogue as i32,
        };
        // One block a multiprocessor, all with the same number of pairs, so that the next kernel's
        // blocks find room beside them; two where there is much to read.
        let card = self.gpu.card();
        let (pairs, multiprocessors) = (gemv.pairs(), card.multiprocessors);
        let blocks =
            if pairs >= 32 * multiprocessors { 2 * multiprocessors } else { multiprocessors };
        // Where there are few multiprocessors a block's share of the head is more than its memory holds.
        let room = card.shared_memory - STATIC_SHARED - digit_bytes(columns);
        let most = (room / pair_bytes(&gemv)).max(1);
        gemv.pairs_per_block = pairs.div_ceil(blocks).min(most) as i32;
        gemv
    }

    /// To numbers, or to digits where `digits_out` is an address; blocks without positions ask for what lies `ahead`.
    pub(super) fn attention_of_token(
        &self,
        token: &Token<'_>,
        number: usize,
        digits_out: Address,
        ahead: [Span; 2],
    ) -> Result<()> {
        let (work, config) = (self.work(), &self.text.layers[number]);
        let vectors = self.layout.vectors.layers[number];
        let [q, k, v] = qkv_addresses(work.qkv, self.text, config);
        let cache = cache_of(token.caches, number, config);
        let heads = self.text.num_attention_heads;
        let is_full = cache.window == 0;
        let rows = rows_at_once(heads, config, is_full);
        let max_pieces = match is_full {
            true => work.max_pieces,
            // 64 positions a piece.
            false => self.text.sliding_window.div_ceil(64).min(work.max_pieces),
        };
        let join_here = max_pieces <= JOINED_BY_LAST_BLOCK;
        let attention = Attention {
            cache,
            q,
            k,
            v,
            q_norm: vectors.q_norm,
            k_norm: vectors.k_norm,
            turns: token.turns + 8 * vectors.first_pair as u64,
            out: work.attention,
            digits_out,
            pieces: work.pieces,
            piece_state: work.piece_state,
            finished: work.finished,
            step: work.step,
            ahead,
            epsilon: self.epsilon(),
            pairs: config.rope.rotated_pairs as i32,
            heads: heads as i32,
            max_pieces: max_pieces as i32,
            join_here: i32::from(join_here),
            rows: rows as i32,
        };
        let kernel = format!("attention_{}_{}_{rows}", self.kv.name(), config.head_dim);
        self.launch(&kernel, [max_pieces, heads / rows], 128, 0, &arguments![attention])?;
        if !join_here {
            let grid = [config.head_dim.div_ceil(64), heads];
            self.launch("attention_join", grid, 64, 0, &arguments![attention])?;
        }
        Ok(())
    }
}

/// Bytes of shared memory for the sums of a row pair of one token.
pub(super) fn pair_bytes(gemv: &Gemv) -> usize {
    gemv.slices as usize * 2 * size_of::<f32>()
}

/// Query heads of a block: those that share a key head, where there is a kernel for it.
fn rows_at_once(heads: usize, config: &LayerConfig, is_full: bool) -> usize {
    let shares = heads / config.kv_heads;
    if is_full && shares.is_multiple_of(8) && [64, 512].contains(&config.head_dim) { 8 } else { 1 }
}
