//! The forward pass on the card, stage by stage; the stages carry the names of `forward.rs`.
//!
//! Two ways through a layer. [`Passes::token_layers`] takes one token with matrix-vector products:
//! every decode step (captured once as a graph), and the last token of a prompt behind the layers
//! that own keys and values. [`Passes::chunk_layers`] takes a chunk of a prompt with matrix products.
//! Norms, residual additions and GeGLU have no kernels of their own in the first: each product reads
//! the stream through an [`Input`] that says what to do on the way.

use super::plan::{KvType, Layout, Placed, Work, qkv_width};
use crate::error::Result;
use crate::model::LayerWeights;
use std::ffi::c_void;
use w4pack_format::config::{LayerConfig, TextConfig};
use w4pack_kernels::cuda::parameters::{
    Activations, Attend, Attention, Commit, Epilogue, GEMV_THREADS, Gemm, Gemv, Input, Kind,
    KvLayer, MapRows, Matrix, NormRows, RopeRows, digit_bytes, row_shape,
};
use w4pack_kernels::cuda::{Address, CudaError, Gpu};

/// How prompts are multiplied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Products {
    /// On tensor cores.
    Mma,
    /// On ordinary cores.
    Ffma,
}

/// The pieces of a full layer that the last block joins by itself; above, a kernel does.
const JOINED_BY_LAST_BLOCK: usize = 8;

/// What launches need: the card, the model's shape and every address.
pub(super) struct Passes<'a> {
    pub gpu: &'a Gpu,
    pub text: &'a TextConfig,
    pub layout: &'a Layout,
    pub kv: KvType,
    pub products: Products,
    /// Whether one token goes through the layers on tensor cores, see `token.rs`.
    pub tensor_token: bool,
    /// The per-layer table as the kernel sees it, and whether its rows are the tokens'.
    pub table: Option<(Matrix, bool)>,
}

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

/// Pointers to local variables: names only, so that nothing temporary is pointed to.
macro_rules! arguments {
    ($($value:ident),* $(,)?) => { [$(std::ptr::from_ref(&$value).cast::<c_void>()),*] };
}

impl Passes<'_> {
    pub(super) fn launch(
        &self,
        kernel: &str,
        grid: [usize; 2],
        threads: u32,
        shared: usize,
        arguments: &[*const c_void],
    ) -> Result<(), CudaError> {
        let grid = grid.map(|size| size as u32);
        // SAFETY: parameter types are those of `parameters`, addresses come from the layout, whose
        // blocks have the sizes that the kernels' shapes ask for.
        unsafe { self.gpu.launch(kernel, grid, threads, shared as u32, arguments) }
    }

    pub(super) fn work(&self) -> &Work {
        &self.layout.work
    }

    pub(super) fn epsilon(&self) -> f32 {
        self.text.rms_norm_eps as f32
    }

    pub(super) fn cap(&self) -> f32 {
        self.text.final_logit_softcapping.map_or(0.0, |cap| cap as f32)
    }

    // One token.

    /// A whole decode step: the token in `Step` to logits and the best id.
    pub fn step(&self, caches: &[Option<KvLayer>]) -> Result<()> {
        let work = self.work();
        let [x, _] = work.streams;
        self.embed(0, 1, 0, x, work.turns)?;
        self.per_layer_inputs_of_token(x)?;
        let (per_layer, turns) = (work.per_layer, work.turns);
        let layers = 0..self.text.layers.len();
        self.token_layers(caches, layers, x, per_layer, turns)
    }

    /// Embeddings and rotations of a chunk (`ids` an address), or of the token in `Step` (0).
    fn embed(
        &self,
        ids: Address,
        tokens: usize,
        first: usize,
        x: Address,
        turns: Address,
    ) -> Result<()> {
        let table = self.layout.weights.embed_tokens.matrix;
        let factor = (self.text.hidden_size as f64).sqrt() as f32;
        let Work { step, id, .. } = *self.work();
        let (frequencies, pairs) = (self.layout.vectors.frequencies, self.layout.vectors.pairs);
        let (first, pairs) = (first as i32, pairs as i32);
        let arguments =
            arguments![table, ids, first, step, id, factor, x, frequencies, pairs, turns];
        Ok(self.launch("embed", [tokens, 1], 256, 0, &arguments)?)
    }

    fn per_layer_inputs_of_token(&self, x: Address) -> Result<()> {
        let Some(inputs) = &self.layout.weights.per_layer_inputs else { return Ok(()) };
        let projection = inputs.model_projection.matrix;
        self.gemv(&[projection], Input::plain(x), self.work().per_layer, Epilogue::Store)?;
        self.per_layer_inputs(self.work().id, 1, self.work().per_layer)
    }

    fn per_layer_inputs(&self, ids: Address, tokens: usize, inputs: Address) -> Result<()> {
        let Some((table, rows_are_tokens)) = self.table else { return Ok(()) };
        let width = self.text.hidden_size_per_layer_input;
        let projection_factor = (self.text.hidden_size as f64).powf(-0.5) as f32;
        let table_factor = (width as f64).sqrt() as f32;
        let (norm, epsilon) = (self.layout.vectors.projection_norm, self.epsilon());
        let (rows_are_tokens, columns) = (i32::from(rows_are_tokens), width as i32);
        let arguments = arguments![
            table,
            ids,
            rows_are_tokens,
            projection_factor,
            norm,
            epsilon,
            table_factor,
            columns,
            inputs,
        ];
        let grid = [self.text.layers.len(), tokens];
        Ok(self.launch("per_layer_inputs", grid, 256, 0, &arguments)?)
    }

    /// Layers and head for one token, whose position is in `Step`.
    pub fn token_layers(
        &self,
        caches: &[Option<KvLayer>],
        layers: std::ops::Range<usize>,
        x: Address,
        per_layer: Address,
        turns: Address,
    ) -> Result<()> {
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
        self.attention_of_token(caches, number, turns)?;
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

    fn gemv(&self, parts: &[Matrix], input: Input, out: Address, epilogue: Epilogue) -> Result<()> {
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

    pub(super) fn attention_of_token(
        &self,
        caches: &[Option<KvLayer>],
        number: usize,
        turns: Address,
    ) -> Result<()> {
        let (work, config) = (self.work(), &self.text.layers[number]);
        let vectors = self.layout.vectors.layers[number];
        let (q_width, k_width) = qkv_width(self.text, config);
        let owns = config.kv_source.is_none();
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
            q: work.qkv,
            k: if owns { work.qkv + 4 * q_width as u64 } else { 0 },
            v: if owns { work.qkv + 4 * (q_width + k_width) as u64 } else { 0 },
            q_norm: vectors.q_norm,
            k_norm: vectors.k_norm,
            turns: turns + 8 * vectors.first_pair as u64,
            out: work.attention,
            pieces: work.pieces,
            piece_state: work.piece_state,
            finished: work.finished,
            step: work.step,
            epsilon: self.epsilon(),
            pairs: config.rope.rotated_pairs as i32,
            heads: heads as i32,
            max_pieces: max_pieces as i32,
            join_here: i32::from(join_here),
            padding: 0,
        };
        let kernel = format!("attention_{}_{}_{rows}", self.kv.name(), config.head_dim);
        self.launch(&kernel, [max_pieces, heads / rows], 128, 0, &arguments![attention])?;
        if !join_here {
            let grid = [config.head_dim.div_ceil(64), heads];
            self.launch("attention_join", grid, 64, 0, &arguments![attention])?;
        }
        Ok(())
    }

    // A chunk of a prompt.

    /// A chunk up to and with the layers `layers`; its ids are in place. The stream is left in
    /// `chunk_stream`, with nothing to add.
    pub fn chunk_layers(
        &self,
        caches: &[Option<KvLayer>],
        first: usize,
        tokens: usize,
        layers: std::ops::Range<usize>,
    ) -> Result<()> {
        let work = self.work();
        self.embed(work.chunk_ids, tokens, first, work.chunk_stream, work.chunk_turns)?;
        if let Some(inputs) = &self.layout.weights.per_layer_inputs {
            // A norm of nothing: the embeddings as activations.
            let projection = [inputs.model_projection.matrix];
            let x = self.norm_rows(&projection, tokens, 0, 0, 0, 1.0)?;
            let stride = projection[0].rows as usize;
            self.gemm(&projection, x, tokens, work.chunk_per_layer, stride)?;
            self.per_layer_inputs(work.chunk_ids, tokens, work.chunk_per_layer)?;
        }
        for number in layers {
            self.chunk_layer(caches, number, first, tokens)?;
        }
        Ok(())
    }

    fn chunk_layer(
        &self,
        caches: &[Option<KvLayer>],
        number: usize,
        first: usize,
        tokens: usize,
    ) -> Result<()> {
        let (work, weights) = (self.work(), &self.layout.weights.layers[number]);
        let (vectors, config) = (self.layout.vectors.layers[number], &self.text.layers[number]);
        let delta = work.chunk_delta;
        let hidden = self.text.hidden_size;

        let parts = qkv(weights);
        let stride: usize = parts.iter().map(|part| part.rows as usize).sum();
        let h = self.norm_rows(&parts, tokens, 0, 0, vectors.input_norm, 1.0)?;
        self.gemm(&parts, h, tokens, work.chunk_qkv, stride)?;
        self.attention_of_chunk(caches, number, first, tokens, stride)?;
        let parts = [weights.o_proj.matrix];
        let columns = parts[0].columns as usize;
        let a = self.map_rows(&parts, tokens, (work.chunk_attention, columns), (0, 0), columns)?;
        self.gemm(&parts, a, tokens, delta, hidden)?;

        let parts = [weights.gate_proj.matrix, weights.up_proj.matrix];
        let mlp = config.intermediate_size;
        let norm = vectors.post_attention_norm;
        let h = self.norm_rows(&parts, tokens, delta, norm, vectors.pre_mlp_norm, 1.0)?;
        self.gemm(&parts, h, tokens, work.chunk_wide, 2 * mlp)?;
        let parts = [weights.down_proj.matrix];
        let up = work.chunk_wide + 4 * mlp as u64;
        let m = self.map_rows(&parts, tokens, (work.chunk_wide, 2 * mlp), (up, 2 * mlp), mlp)?;
        self.gemm(&parts, m, tokens, delta, hidden)?;

        let Some(block) = &weights.per_layer_block else {
            self.norm_rows(&[], tokens, delta, vectors.post_mlp_norm, 0, weights.scalar)?;
            return Ok(());
        };
        let parts = [block.input_gate.matrix];
        let width = config_width(self.text);
        let x = self.norm_rows(&parts, tokens, delta, vectors.post_mlp_norm, 0, 1.0)?;
        self.gemm(&parts, x, tokens, work.chunk_wide, width)?;
        let parts = [block.projection.matrix];
        let per_layer = work.chunk_per_layer + (4 * number * width) as u64;
        let all_layers = self.text.layers.len() * width;
        let g = self.map_rows(
            &parts,
            tokens,
            (work.chunk_wide, width),
            (per_layer, all_layers),
            width,
        )?;
        self.gemm(&parts, g, tokens, delta, hidden)?;
        self.norm_rows(&[], tokens, delta, vectors.post_block_norm, 0, weights.scalar)?;
        Ok(())
    }

    /// How the activations of a product with these matrices lie: tensor cores take packed ones.
    fn format(&self, parts: &[Matrix], tokens: usize, columns: usize) -> Activations {
        let is_plain = parts.iter().any(|part| part.kind == Kind::PlainBf16 as i32);
        let is_mma = self.products == Products::Mma && !is_plain && !parts.is_empty();
        let work = self.work();
        Activations {
            values: work.activations,
            scales: work.activation_scales,
            plane: (tokens * columns) as u64,
            format: i32::from(is_mma),
            padding: 0,
        }
    }

    /// `stream = (stream + rms(delta) * delta_norm) * scalar`; returns `rms(stream) * norm` for a
    /// product with `parts`.
    fn norm_rows(
        &self,
        parts: &[Matrix],
        tokens: usize,
        delta: Address,
        delta_norm: Address,
        norm: Address,
        scalar: f32,
    ) -> Result<Activations> {
        let hidden = self.text.hidden_size;
        let out = self.format(parts, tokens, hidden);
        let rows = NormRows {
            stream: self.work().chunk_stream,
            delta,
            delta_norm,
            norm,
            out,
            scalar,
            epsilon: self.epsilon(),
            columns: hidden as i32,
            padding: 0,
        };
        self.launch("norm_rows", [tokens, 1], 256, 4 * hidden, &arguments![rows])?;
        Ok(out)
    }

    /// `input`, or `gelu(input) * with`, for a product with `parts`; each an address and a stride.
    fn map_rows(
        &self,
        parts: &[Matrix],
        tokens: usize,
        input: (Address, usize),
        with: (Address, usize),
        columns: usize,
    ) -> Result<Activations> {
        let out = self.format(parts, tokens, columns);
        let rows = MapRows {
            input: input.0,
            with: with.0,
            out,
            in_stride: input.1 as u64,
            with_stride: with.1 as u64,
            columns: columns as i32,
            padding: 0,
        };
        self.launch("map_rows", [tokens, 1], 256, 0, &arguments![rows])?;
        Ok(out)
    }

    /// Products of the same activations, their rows side by side in `out`.
    fn gemm(
        &self,
        parts: &[Matrix],
        x: Activations,
        tokens: usize,
        out: Address,
        stride: usize,
    ) -> Result<()> {
        let mut first = 0;
        for &weight in parts {
            let gemm = Gemm {
                weight,
                x,
                out: out + 4 * first as u64,
                out_stride: stride as u64,
                tokens: tokens as i32,
                padding: 0,
            };
            let grid = [(weight.rows as usize).div_ceil(64), tokens.div_ceil(64)];
            let (kernel, threads, shared) = match x.format {
                1 => ("gemm_mma", 128, self.gpu.gemm_mma_shared()),
                _ => ("gemm_ffma", 256, 0),
            };
            self.launch(kernel, grid, threads, shared, &arguments![gemm])?;
            first += weight.rows as usize;
        }
        Ok(())
    }

    fn attention_of_chunk(
        &self,
        caches: &[Option<KvLayer>],
        number: usize,
        first: usize,
        tokens: usize,
        stride: usize,
    ) -> Result<()> {
        let (work, config) = (self.work(), &self.text.layers[number]);
        let vectors = self.layout.vectors.layers[number];
        let (q_width, k_width) = qkv_width(self.text, config);
        let owns = config.kv_source.is_none();
        let cache = cache_of(caches, number, config);
        let heads = self.text.num_attention_heads;
        let rope = RopeRows {
            cache,
            q: work.chunk_qkv,
            k: if owns { work.chunk_qkv + 4 * q_width as u64 } else { 0 },
            v: if owns { work.chunk_qkv + 4 * (q_width + k_width) as u64 } else { 0 },
            q_norm: vectors.q_norm,
            k_norm: vectors.k_norm,
            turns: work.chunk_turns + 8 * vectors.first_pair as u64,
            stride: stride as u64,
            turns_stride: self.layout.vectors.pairs as i32,
            pairs: config.rope.rotated_pairs as i32,
            first: first as i32,
            heads: heads as i32,
            epsilon: self.epsilon(),
            padding: 0,
        };
        let rows = heads + if owns { 2 * config.kv_heads } else { 0 };
        let (kv, head_dim) = (self.kv.name(), config.head_dim);
        let kernel = format!("rope_{kv}_{head_dim}");
        self.launch(&kernel, [rows.div_ceil(4), tokens], 128, 0, &arguments![rope])?;
        let attend = Attend {
            cache,
            q: work.chunk_qkv,
            out: work.chunk_attention,
            stride: stride as u64,
            first: first as i32,
            staged_first: first as i32,
            tokens: tokens as i32,
            heads: heads as i32,
        };
        let kernel = format!("attend_{kv}_{head_dim}");
        let grid = [tokens.div_ceil(16), heads];
        Ok(self.launch(&kernel, grid, 128, 0, &arguments![attend])?)
    }

    /// Staged rows of all sliding layers into their rings.
    pub fn commit(&self, caches: &[Option<KvLayer>], first: usize, tokens: usize) -> Result<()> {
        for cache in caches.iter().flatten().filter(|cache| cache.window > 0) {
            let commit = Commit { cache: *cache, first: first as i32, tokens: tokens as i32 };
            let kernel = format!("commit_{}", self.kv.name());
            self.launch(
                &kernel,
                [self.gpu.card().multiprocessors, 1],
                256,
                0,
                &arguments![commit],
            )?;
        }
        Ok(())
    }

    /// Logits of `rows` tokens of the chunk, from `first_row` on, into `chunk_wide`.
    pub fn chunk_head(&self, first_row: usize, rows: usize) -> Result<()> {
        let work = self.work();
        let head = self.layout.weights.head().matrix;
        let hidden = self.text.hidden_size;
        let out = self.format(&[head], rows, hidden);
        let norm = NormRows {
            stream: work.chunk_stream + (4 * first_row * hidden) as u64,
            delta: 0,
            delta_norm: 0,
            norm: self.layout.vectors.norm,
            out,
            scalar: 1.0,
            epsilon: self.epsilon(),
            columns: hidden as i32,
            padding: 0,
        };
        self.launch("norm_rows", [rows, 1], 256, 4 * hidden, &arguments![norm])?;
        self.gemm(&[head], out, rows, work.chunk_wide, head.rows as usize)?;
        let (count, cap) = ((rows * head.rows as usize) as u64, self.cap());
        if cap > 0.0 {
            let grid = [4 * self.gpu.card().multiprocessors, 1];
            let logits = work.chunk_wide;
            self.launch("softcap", grid, 256, 0, &arguments![logits, count, cap])?;
        }
        Ok(())
    }

    /// One product of the first layer's gate, as `--prefill auto` times it.
    pub fn sample_product(&self, tokens: usize) -> Result<()> {
        let parts = [self.layout.weights.layers[0].gate_proj.matrix];
        let x = self.format(&parts, tokens, self.text.hidden_size);
        self.gemm(&parts, x, tokens, self.work().chunk_wide, parts[0].rows as usize)
    }
}

pub(super) fn config_width(text: &TextConfig) -> usize {
    text.hidden_size_per_layer_input
}

/// q, and k and v where the layer owns them.
pub(super) fn qkv(weights: &LayerWeights<Placed>) -> Vec<Matrix> {
    let mut parts = vec![weights.q_proj.matrix];
    if let Some(own) = &weights.keys_and_values {
        // Where the values are the keys' projection, loading has refused.
        parts.push(own.k_proj.matrix);
        parts.extend(own.v_proj.as_ref().map(|v_proj| v_proj.matrix));
    }
    parts
}

pub(super) fn cache_of(caches: &[Option<KvLayer>], number: usize, config: &LayerConfig) -> KvLayer {
    caches[config.kv_source.unwrap_or(number)].expect("a layer's source owns keys and values")
}

/// Query heads of a block: those that share a key head, where there is a kernel for it.
fn rows_at_once(heads: usize, config: &LayerConfig, is_full: bool) -> usize {
    let shares = heads / config.kv_heads;
    if is_full && shares.is_multiple_of(8) && [64, 512].contains(&config.head_dim) { 8 } else { 1 }
}
