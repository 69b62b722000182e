//! The forward pass on the card, stage by stage; the stages carry the names of `forward.rs`.
//!
//! Two ways through a layer. One token, [`Passes::token_layers`], takes matrix-vector products, on
//! tensor cores (`tensor.rs`) or on ordinary ones (`token.rs`, `chain.rs`): every decode step (captured once as a
//! graph), and the last token of a prompt behind the layers that own keys and values; one token each of
//! several sequences, or several that one sequence tries, share these products (`batch.rs`, `batch_gemv.rs`). In
//! what order all of these go, and where the residual stream is meanwhile, `stream.rs` says. A chunk of a prompt,
//! [`Passes::chunk_layers`], takes matrix products (`chunk.rs`).

mod batch;
mod batch_gemv;
mod chain;
mod chunk;
mod matrices;
mod stream;
mod tensor;
mod token;

pub(super) use batch::Columns;
pub(super) use chain::fits as fits_chains;
pub(super) use tensor::{fits as fits_tensor_cores, has_room_for_clusters};
pub(super) use token::Token;

use super::layout::Layout;
use super::plan::KvType;
use super::ways::Ways;
use super::work_space::Work;
use crate::error::Result;
use std::ffi::c_void;
use w4pack_format::config::{LayerConfig, TextConfig};
use w4pack_kernels::cuda::parameters::{EMBED_THREADS, Embed, Epilogue, Input, KvLayer, Matrix};
use w4pack_kernels::cuda::{Address, CudaError, Gpu};

/// What launches need: the card, the model's shape and every address.
pub(super) struct Passes<'a> {
    pub gpu: &'a Gpu,
    pub text: &'a TextConfig,
    pub layout: &'a Layout,
    /// The layout's, with the `Step` of the step's turn.
    pub work: Work,
    /// Where a step that goes on by itself tells the host what the one before has chosen.
    pub told: Address,
    pub kv: KvType,
    pub ways: Ways,
    /// The per-layer table as the kernel sees it, and whether its rows are the tokens'.
    pub table: Option<(Matrix, bool)>,
}

/// Pointers to local variables: names only, so that nothing temporary is pointed to.
macro_rules! arguments {
    ($($value:ident),* $(,)?) => { [$(std::ptr::from_ref(&$value).cast::<std::ffi::c_void>()),*] };
}
use arguments;

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
        &self.work
    }

    pub(super) fn epsilon(&self) -> f32 {
        self.text.rms_norm_eps as f32
    }

    pub(super) fn cap(&self) -> f32 {
        self.text.final_logit_softcapping.map_or(0.0, |cap| cap as f32)
    }

    /// A whole decode step: the token in `Step` to logits and the best id.
    pub fn step(&self, caches: &[Option<KvLayer>]) -> Result<()> {
        let work = self.work();
        let [x, _] = work.streams;
        self.launch_embed(
            1,
            Embed {
                step: work.step,
                other: work.other_step,
                told: self.told,
                ids_out: work.id,
                x,
                digits_out: if self.projects_from_digits() { work.embedding_digits } else { 0 },
                turns: work.turns,
                ..self.no_embeddings()
            },
        )?;
        self.per_layer_inputs_of_token(x)?;
        let (per_layer, turns) = (work.per_layer, work.turns);
        let layers = 0..self.text.layers.len();
        self.token_layers(&Token { caches, layers, x, per_layer, turns })
    }

    /// Embeddings and rotations of a chunk.
    fn embed(
        &self,
        ids: Address,
        tokens: usize,
        first: usize,
        x: Address,
        turns: Address,
    ) -> Result<()> {
        let first = first as i32;
        self.launch_embed(tokens, Embed { ids, first, x, turns, ..self.no_embeddings() })
    }

    /// Those of the tokens in `steps`, one behind another; their ids go to `ids`.
    fn embed_steps(
        &self,
        step: Address,
        ids_out: Address,
        tokens: usize,
        x: Address,
        turns: Address,
    ) -> Result<()> {
        self.launch_embed(tokens, Embed { step, ids_out, x, turns, ..self.no_embeddings() })
    }

    /// What all embeddings have in common.
    fn no_embeddings(&self) -> Embed {
        Embed {
            table: self.layout.weights.embed_tokens.matrix,
            ids: 0,
            step: 0,
            other: 0,
            told: 0,
            ids_out: 0,
            frequencies: self.layout.vectors.frequencies,
            x: 0,
            digits_out: 0,
            turns: 0,
            factor: (self.text.hidden_size as f64).sqrt() as f32,
            first: 0,
            pairs: self.layout.vectors.pairs as i32,
            padding: 0,
        }
    }

    fn launch_embed(&self, tokens: usize, embed: Embed) -> Result<()> {
        Ok(self.launch("embed", [tokens, 1], EMBED_THREADS, 0, &arguments![embed])?)
    }

    fn per_layer_inputs_of_token(&self, x: Address) -> Result<()> {
        let Some(inputs) = &self.layout.weights.per_layer_inputs else { return Ok(()) };
        let projection = inputs.model_projection.matrix;
        let out = self.work().per_layer;
        match self.projects_from_digits() {
            true => self.token_projection(projection, out)?,
            false => self.gemv(&[projection], Input::plain(x), out, Epilogue::Store)?,
        }
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
        Ok(self.launch("per_layer_inputs", grid, EMBED_THREADS, 0, &arguments)?)
    }
}

pub(super) fn config_width(text: &TextConfig) -> usize {
    text.hidden_size_per_layer_input
}

pub(super) fn cache_of(caches: &[Option<KvLayer>], number: usize, config: &LayerConfig) -> KvLayer {
    caches[config.kv_source.unwrap_or(number)].expect("a layer's source owns keys and values")
}
