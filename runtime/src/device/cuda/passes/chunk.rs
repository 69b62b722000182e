//! A chunk of a prompt through the layers, with matrix products.

use super::matrices::{gate_and_up, qkv};
use super::{Passes, arguments, cache_of, config_width};
use crate::device::cuda::plan::KvType;
use crate::device::cuda::ways::Products;
use crate::device::cuda::work_space::qkv_addresses;
use crate::error::Result;
use std::ffi::c_void;
use w4pack_kernels::cuda::parameters::{
    Activations, Attend, ChunkLaunch, Commit, Gemm, KvLayer, MapRows, Matrix, NormRows, RopeRows,
};
use w4pack_kernels::cuda::{Address, CudaError};

impl Passes<'_> {
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

        let parts = gate_and_up(weights);
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
        let is_mma = self.ways.products == Products::Mma
            && !parts.is_empty()
            && Gemm::on_tensor_cores(parts);
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

    /// Products of the same activations with up to three matrices, their rows side by side in `out`.
    fn gemm(
        &self,
        parts: &[Matrix],
        x: Activations,
        tokens: usize,
        out: Address,
        stride: usize,
    ) -> Result<()> {
        let mut part = [Matrix::NONE; 3];
        part[..parts.len()].copy_from_slice(parts);
        let gemm = Gemm {
            part,
            x,
            out,
            out_stride: stride as u64,
            parts: parts.len() as i32,
            tokens: tokens as i32,
        };
        let launch = gemm.launch(self.gpu.target(), self.gpu.card().multiprocessors);
        Ok(self.launch_chunk(&launch, &arguments![gemm])?)
    }

    fn launch_chunk(
        &self,
        launch: &ChunkLaunch,
        arguments: &[*const c_void],
    ) -> Result<(), CudaError> {
        let ChunkLaunch { kernel, grid, threads, shared } = launch;
        self.launch(kernel, *grid, *threads, *shared, arguments)
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
        let [q, k, v] = qkv_addresses(work.chunk_qkv, self.text, config);
        let cache = cache_of(caches, number, config);
        let heads = self.text.num_attention_heads;
        let rope = RopeRows {
            cache,
            q,
            k,
            v,
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
        let own_rows = if config.kv_source.is_none() { 2 * config.kv_heads } else { 0 };
        let rows = heads + own_rows;
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
        // Tensor cores read keys and values as they lie, which must then be f16.
        let is_mma = self.ways.products == Products::Mma && self.kv == KvType::F16;
        let on_tensor_cores = is_mma.then(|| attend.launch_mma(self.gpu.target())).flatten();
        let launch = on_tensor_cores.unwrap_or_else(|| ChunkLaunch {
            kernel: format!("attend_{kv}_{head_dim}"),
            grid: [tokens.div_ceil(16), heads],
            threads: 128,
            shared: 0,
        });
        Ok(self.launch_chunk(&launch, &arguments![attend])?)
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
