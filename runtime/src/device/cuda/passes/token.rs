//! One token through layers and head with matrix-vector products on ordinary cores.
//!
//! Norms, residual additions and GeGLU have no kernels of their own: each product reads the stream
//! through an [`Input`] that says what to do on the way.

use super::{Passes, arguments, cache_of, config_width, qkv};
use crate::device::cuda::work_space::qkv_addresses;
use crate::error::Result;
use w4pack_format::config::LayerConfig;
use w4pack_kernels::cuda::Address;
use w4pack_kernels::cuda::parameters::{
    Attention, Epilogue, GEMV_THREADS, Gemv, Input, KvLayer, Matrix, Span, digit_bytes, row_shape,
};

/// The pieces of a full layer that the last block joins by itself; above, a kernel does.
const JOINED_BY_LAST_BLOCK: usize = 8;

/// The residual stream of one token on its way: where it is, and what is still to be added to it.
#[derive(Clone, Copy)]
pub(super) struct Stream {
    pub at: Address,
    pub delta: Address,
    pub delta_norm: Address,
    pub scalar: f32,
}

impl Stream {
    pub fn new(at: Address) -> Self {
        Self { at, delta: 0, delta_norm: 0, scalar: 1.0 }
    }
}

impl Passes<'_> {
    /// Layers and head for one token, whose position is in `Step`.
    pub fn token_layers(
        &self,
        caches: &[Option<KvLayer>],
        layers: std::ops::Range<usize>,
        x: Address,
        per_layer: Address,
        turns: Address,
    ) -> Result<()> {
        if self.chains {
            return self.chained_token_layers(caches, layers, x, per_layer, turns);
        }
        if self.tensor_token {
            return self.tensor_token_layers(caches, layers, x, per_layer, turns);
        }
        let mut stream = Stream::new(x);
        for number in layers {
            stream = self.token_layer(caches, number, stream, per_layer, turns)?;
        }
        let input = self.input(&stream, self.layout.vectors.norm, 0);
        let head = self.layout.weights.head().matrix;
        self.gemv(&[head], input, self.work().logits, Epilogue::Logits)
    }

    /// The stream through a norm (0: none); it is written to `out` (0: nowhere) on the way.
    pub(super) fn input(&self, stream: &Stream, norm: Address, out: Address) -> Input {
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

    /// The stream that a block's output is to be added to, brought up to date at `at`.
    pub(super) fn advance(&self, at: Address, delta: Address, delta_norm: Address) -> Stream {
        Stream { at, delta, delta_norm, scalar: 1.0 }
    }

    /// Where the stream goes next: never where it is.
    pub(super) fn other(&self, at: Address) -> Address {
        let [one, other] = self.work().streams;
        if at == one { other } else { one }
    }

    fn token_layer(
        &self,
        caches: &[Option<KvLayer>],
        number: usize,
        stream: Stream,
        per_layer: Address,
        turns: Address,
    ) -> Result<Stream> {
        let (work, weights) = (self.work(), &self.layout.weights.layers[number]);
        let vectors = self.layout.vectors.layers[number];
        let config = &self.text.layers[number];
        let [attention_out, mlp_out, block_out] = work.deltas;

        // A stream without a delta stays where it is.
        let next = if stream.delta == 0 { 0 } else { self.other(stream.at) };
        let input = self.input(&stream, vectors.input_norm, next);
        self.gemv(&qkv(weights), input, work.qkv, Epilogue::Store)?;
        let at = if next == 0 { stream.at } else { next };
        self.attention_of_token(caches, number, turns, 0, [Span::default(); 2])?;
        let input = Input::plain(work.attention);
        self.gemv(&[weights.o_proj.matrix], input, attention_out, Epilogue::Store)?;

        let stream = self.advance(at, attention_out, vectors.post_attention_norm);
        let at = self.other(at);
        let input = self.input(&stream, vectors.pre_mlp_norm, at);
        let gate_and_up = [weights.gate_proj.matrix, weights.up_proj.matrix];
        self.gemv(&gate_and_up, input, work.mlp, Epilogue::Geglu)?;
        let input = Input::plain(work.mlp);
        self.gemv(&[weights.down_proj.matrix], input, mlp_out, Epilogue::Store)?;
        let stream = self.advance(at, mlp_out, vectors.post_mlp_norm);

        let Some(block) = &weights.per_layer_block else {
            return Ok(Stream { scalar: weights.scalar, ..stream });
        };
        let at = self.other(at);
        let input = self.input(&stream, 0, at);
        let width = config_width(self.text);
        self.gemv_gated(
            block.input_gate.matrix,
            input,
            work.gate,
            per_layer + (4 * number * width) as u64,
        )?;
        let input = Input::plain(work.gate);
        self.gemv(&[block.projection.matrix], input, block_out, Epilogue::Store)?;
        let stream = self.advance(at, block_out, vectors.post_block_norm);
        debug_assert_eq!(config.head_dim % 2, 0);
        Ok(Stream { scalar: weights.scalar, ..stream })
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

    fn gemv_gated(
        &self,
        matrix: Matrix,
        input: Input,
        out: Address,
        gate_with: Address,
    ) -> Result<()> {
        self.launch_gemv(&[matrix], input, out, Epilogue::Gated, gate_with)
    }

    fn launch_gemv(
        &self,
        parts: &[Matrix],
        input: Input,
        out: Address,
        epilogue: Epilogue,
        gate_with: Address,
    ) -> Result<()> {
        let mut part = [Matrix::NONE; 3];
        part[..parts.len()].copy_from_slice(parts);
        let is_geglu = epilogue == Epilogue::Geglu;
        let rows: i32 = if is_geglu { part[0].rows } else { parts.iter().map(|p| p.rows).sum() };
        let pairs = if is_geglu { rows } else { (rows + 1) / 2 } as usize;
        let columns = part[0].columns as usize;
        let (lanes, slices) = row_shape(columns);
        // One block a multiprocessor, all with the same number of pairs, so that the next kernel's
        // blocks find room beside them; two where there is much to read.
        let multiprocessors = self.gpu.card().multiprocessors;
        let blocks =
            if pairs >= 32 * multiprocessors { 2 * multiprocessors } else { multiprocessors };
        let pairs_per_block = pairs.div_ceil(blocks);
        let blocks = pairs.div_ceil(pairs_per_block);
        let gemv = Gemv {
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
            pairs_per_block: pairs_per_block as i32,
            epilogue: epilogue as i32,
        };
        let shared = digit_bytes(columns) + pairs_per_block * slices as usize * 2 * 4;
        Ok(self.launch(gemv.kernel(), [blocks, 1], GEMV_THREADS, shared, &arguments![gemv])?)
    }

    /// To numbers, or to digits where `digits_out` is an address; blocks without positions ask for what lies `ahead`.
    pub(super) fn attention_of_token(
        &self,
        caches: &[Option<KvLayer>],
        number: usize,
        turns: Address,
        digits_out: Address,
        ahead: [Span; 2],
    ) -> Result<()> {
        let (work, config) = (self.work(), &self.text.layers[number]);
        let vectors = self.layout.vectors.layers[number];
        let [q, k, v] = qkv_addresses(work.qkv, self.text, config);
        let cache = cache_of(caches, number, config);
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
            turns: turns + 8 * vectors.first_pair as u64,
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

/// Query heads of a block: those that share a key head, where there is a kernel for it.
fn rows_at_once(heads: usize, config: &LayerConfig, is_full: bool) -> usize {
    let shares = heads / config.kv_heads;
    if is_full && shares.is_multiple_of(8) && [64, 512].contains(&config.head_dim) { 8 } else { 1 }
}
