//! The forward pass of Gemma 4's text model, once for every arithmetic.
//!
//! ```text
//! embed → per_layer_inputs → for each layer { keep, attention, mlp (and experts), per_layer_block } → head
//! ```
//! The residual stream is `[tokens, hidden]`. Every norm, product and sum is in the number of the
//! [`Arithmetic`]; nothing is rounded to bf16 in between. Source: transformers 5.24
//! `modeling_gemma4.py`, in float32.

use crate::arithmetic::Arithmetic;
use crate::attention::{Turns, attention, keep};
use crate::cache::Cache;
use crate::device::Wanted;
use crate::error::{Result, RuntimeError};
use crate::experts::experts;
use crate::model::{LayerWeights, Model};
use crate::number::Number;
use crate::weights::Matrix;
use w4pack_format::config::TextConfig;

/// A point of the pass that an [`Observer`] can look at. Names as in transformers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Embeddings after their scale, `[tokens, hidden]`.
    InputsEmbeds,
    /// Per-layer inputs, `[tokens, layers, per-layer width]`.
    PerLayerInputs,
    /// Attention of a layer, after `o_proj` and before the norm behind it.
    AttentionOut(usize),
    /// MLP of a layer, after `down_proj` and before the norm behind it.
    MlpOut(usize),
    /// The residual stream behind a layer.
    LayerOut(usize),
    /// After the last norm, before the head.
    FinalNorm,
}

/// Looks at the stages of a pass as they are computed.
pub trait Observer<N> {
    /// Called at every stage with its numbers; the stage says their shape.
    fn stage(&mut self, _stage: Stage, _numbers: &[N]) {}
}

/// Looks at nothing.
pub struct NoObserver;

impl<N> Observer<N> for NoObserver {}

/// The next tokens of one sequence.
pub struct Piece<'a, S> {
    /// What the sequence has so far; the tokens are added.
    pub cache: &'a mut Cache<S>,
    /// At least one.
    pub tokens: &'a [u32],
    /// Which logits to return.
    pub wanted: Wanted,
}

/// The rows of the stream that belong to one sequence.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    /// Position of the first.
    pub first: usize,
    /// How many there are.
    pub rows: usize,
}

/// The positions that a pass is working on and their residual stream.
struct Stream<N> {
    /// By piece, in the order of the rows.
    spans: Vec<Span>,
    /// `[tokens, hidden]`.
    x: Vec<N>,
    /// `[tokens, layers, per-layer width]`.
    per_layer: Vec<N>,
    /// Of their positions.
    turns: Turns<N>,
}

/// Runs `tokens` through the model as the next positions of `cache`.
///
/// Returns logits `[rows, vocabulary]`: a row for every token, for the last one, or none, as
/// `wanted` says. Errors: an id that is no row of the tables; a full context; no memory. The cache
/// is unchanged then.
pub fn forward<A: Arithmetic>(
    model: &Model,
    arithmetic: &A,
    cache: &mut Cache<A::Kept>,
    tokens: &[u32],
    wanted: Wanted,
    observer: &mut dyn Observer<A::Number>,
) -> Result<Vec<A::Number>> {
    let mut piece = [Piece { cache, tokens, wanted }];
    Ok(forward_together(model, arithmetic, &mut piece, observer)?.swap_remove(0))
}

/// The same for several sequences in one pass, so that every weight is read once for all of them.
///
/// Returns the logits of each. A row's products and sums are its own, so they do not depend on
/// what else is in the pass. Errors leave all caches unchanged.
pub fn forward_together<A: Arithmetic>(
    model: &Model,
    arithmetic: &A,
    pieces: &mut [Piece<'_, A::Kept>],
    observer: &mut dyn Observer<A::Number>,
) -> Result<Vec<Vec<A::Number>>> {
    let logits = forward_tried(model, arithmetic, pieces, observer)?;
    for Piece { cache, tokens, .. } in pieces.iter_mut() {
        cache.commit(tokens.len());
    }
    Ok(logits)
}

/// The same, but the tokens are only tried: [`Cache::commit`] stores as many of them as are wanted, from the
/// first on; the next pass drops the others.
pub fn forward_tried<A: Arithmetic>(
    model: &Model,
    arithmetic: &A,
    pieces: &mut [Piece<'_, A::Kept>],
    observer: &mut dyn Observer<A::Number>,
) -> Result<Vec<Vec<A::Number>>> {
    let mut spans = Vec::new();
    for Piece { cache, tokens, .. } in pieces.iter_mut() {
        if tokens.is_empty() {
            return Err(RuntimeError::EmptyPrompt);
        }
        check_ids(&model.config.text, tokens, cache.length())?;
        cache.begin(tokens.len())?;
        spans.push(Span { first: cache.length(), rows: tokens.len() });
    }
    let tokens: Vec<u32> = pieces.iter().flat_map(|piece| piece.tokens).copied().collect();

    let x = embed(model, arithmetic, &tokens);
    observer.stage(Stage::InputsEmbeds, &x);
    let per_layer = per_layer_inputs(model, arithmetic, &tokens, &x)?;
    observer.stage(Stage::PerLayerInputs, &per_layer);
    let turns = Turns::new(&model.config.text, &spans);
    let mut stream = Stream { spans, x, per_layer, turns };

    for (number, layer) in model.weights.layers.iter().enumerate() {
        let mut h = input_norm(model, arithmetic, layer, &stream);
        if let Some(own) = &layer.keys_and_values {
            keep(model, arithmetic, pieces, &stream.spans, &stream.turns, number, own, &h);
        }
        // Behind the last keys and values that are stored, no position reads anything of another:
        // only those whose logits are wanted go on.
        if number + 1 == model.config.text.owning_layers() {
            narrow(model, &mut stream, pieces);
            if stream.x.is_empty() {
                break;
            }
            h = input_norm(model, arithmetic, layer, &stream);
        }
        layer_pass(model, arithmetic, pieces, number, layer, &h, &mut stream, observer);
        observer.stage(Stage::LayerOut(number), &stream.x);
    }
    let mut logits = head(model, arithmetic, stream.x, observer);
    // Taken off from behind, so that the first piece's rows, often all there are, are not copied.
    let vocabulary = model.weights.head().rows();
    let mut by_piece: Vec<Vec<A::Number>> = Vec::new();
    for span in stream.spans.iter().rev() {
        by_piece.push(match by_piece.len() + 1 == stream.spans.len() {
            true => std::mem::take(&mut logits),
            false => logits.split_off(logits.len() - span.rows * vocabulary),
        });
    }
    by_piece.reverse();
    Ok(by_piece)
}

/// Every id must be a row of the tables; `first` is the position of the first.
pub(crate) fn check_ids(text: &TextConfig, tokens: &[u32], first: usize) -> Result<()> {
    let mut tables = vec![("embed_tokens", text.vocab_size)];
    if text.hidden_size_per_layer_input > 0 {
        tables.push(("embed_tokens_per_layer", text.vocab_size_per_layer_input));
    }
    for (index, &id) in tokens.iter().enumerate() {
        for &(table, rows) in &tables {
            if id as usize >= rows {
                return Err(RuntimeError::TokenId { id, position: first + index, table, rows });
            }
        }
    }
    Ok(())
}

/// Rows of `embed_tokens` times √hidden.
fn embed<A: Arithmetic>(model: &Model, arithmetic: &A, tokens: &[u32]) -> Vec<A::Number> {
    let hidden = model.config.text.hidden_size;
    // A factor of f32 precision in every arithmetic, as in transformers' float32 run.
    let factor = A::Number::from_f32((hidden as f64).sqrt() as f32);
    let mut x = vec![A::Number::default(); tokens.len() * hidden];
    for (&id, row) in tokens.iter().zip(x.chunks_exact_mut(hidden)) {
        arithmetic.table_row(&model.weights.embed_tokens, id as usize, row);
        scale(row, factor);
    }
    x
}

/// What every layer gets besides the stream: rows of the per-layer table and a projection of the
/// embeddings, for all layers at once. Empty when the model has no per-layer input.
fn per_layer_inputs<A: Arithmetic>(
    model: &Model,
    arithmetic: &A,
    tokens: &[u32],
    x: &[A::Number],
) -> Result<Vec<A::Number>> {
    let text = &model.config.text;
    let Some(weights) = &model.weights.per_layer_inputs else { return Ok(Vec::new()) };
    let width = text.hidden_size_per_layer_input;
    let all_layers = text.layers.len() * width;

    let mut inputs = arithmetic.linear(&weights.model_projection, x);
    scale(&mut inputs, A::Number::from_f64((text.hidden_size as f64).powf(-0.5)));
    rms_norm(model, arithmetic, &mut inputs, width, Some(&weights.projection_norm));

    let table_factor = A::Number::from_f64((width as f64).sqrt());
    let half = A::Number::from_f64(0.5f64.sqrt());
    // Of a table in a file only these tokens' rows are read.
    let gathered = match &weights.embed_tokens {
        Matrix::InFile(table) => Some(table.gather(tokens)?),
        _ => None,
    };
    let mut table_row = vec![A::Number::default(); all_layers];
    for (number, row) in inputs.chunks_exact_mut(all_layers).enumerate() {
        match &gathered {
            Some(rows) => arithmetic.table_row(rows, number, &mut table_row),
            None => {
                let id = tokens[number] as usize;
                arithmetic.table_row(&weights.embed_tokens, id, &mut table_row);
            }
        }
        for (input, &entry) in row.iter_mut().zip(&table_row) {
            *input = (*input + entry * table_factor) * half;
        }
    }
    Ok(inputs)
}

/// Drops the positions whose logits are not wanted.
fn narrow<N: Number, S>(model: &Model, stream: &mut Stream<N>, pieces: &[Piece<'_, S>]) {
    let text = &model.config.text;
    let rows: usize = stream.spans.iter().map(|span| span.rows).sum();
    let per_layer = stream.per_layer.len() / rows.max(1);
    let mut begin = 0;
    for (span, piece) in stream.spans.iter_mut().zip(pieces) {
        let kept = match piece.wanted {
            Wanted::All => span.rows,
            Wanted::Last => span.rows.min(1),
            Wanted::Nothing => 0,
        };
        let dropped = span.rows - kept;
        stream.x.drain(begin * text.hidden_size..(begin + dropped) * text.hidden_size);
        stream.per_layer.drain(begin * per_layer..(begin + dropped) * per_layer);
        *span = Span { first: span.first + dropped, rows: kept };
        begin += kept;
    }
    if begin < rows {
        stream.turns = Turns::new(text, &stream.spans);
    }
}

/// The stream as a layer's attention sees it.
fn input_norm<A: Arithmetic>(
    model: &Model,
    arithmetic: &A,
    layer: &LayerWeights,
    stream: &Stream<A::Number>,
) -> Vec<A::Number> {
    let mut h = stream.x.clone();
    rms_norm(model, arithmetic, &mut h, model.config.text.hidden_size, Some(&layer.input_norm));
    h
}

/// One decoder layer over `h`, the normed stream, whose keys and values are kept already; changes
/// the stream in place.
#[allow(clippy::too_many_arguments)]
fn layer_pass<A: Arithmetic>(
    model: &Model,
    arithmetic: &A,
    pieces: &[Piece<'_, A::Kept>],
    number: usize,
    layer: &LayerWeights,
    h: &[A::Number],
    stream: &mut Stream<A::Number>,
    observer: &mut dyn Observer<A::Number>,
) {
    let hidden = model.config.text.hidden_size;
    let x = &mut stream.x;

    let mut a =
        attention(model, arithmetic, pieces, &stream.spans, &stream.turns, number, layer, h);
    observer.stage(Stage::AttentionOut(number), &a);
    rms_norm(model, arithmetic, &mut a, hidden, Some(&layer.post_attention_norm));
    add(x, &a);
    arithmetic.take_back(a);

    let mut h = x.clone();
    rms_norm(model, arithmetic, &mut h, hidden, Some(&layer.pre_mlp_norm));
    let mut m = mlp(arithmetic, &layer.gate_proj, &layer.up_proj, &layer.down_proj, &h);
    observer.stage(Stage::MlpOut(number), &m);
    if let Some(block) = &layer.experts {
        rms_norm(model, arithmetic, &mut m, hidden, Some(&block.post_mlp_norm));
        // The experts and their router see the stream itself, each under a norm of its own.
        add(&mut m, &experts(model, arithmetic, block, x));
    }
    rms_norm(model, arithmetic, &mut m, hidden, Some(&layer.post_mlp_norm));
    add(x, &m);
    arithmetic.take_back(m);

    per_layer_block(model, arithmetic, number, layer, x, &stream.per_layer);
    scale(x, A::Number::from_f32(layer.scalar));
}

/// `down(gelu(gate(h)) · up(h))`.
pub(crate) fn mlp<A: Arithmetic>(
    arithmetic: &A,
    gate_proj: &Matrix,
    up_proj: &Matrix,
    down_proj: &Matrix,
    h: &[A::Number],
) -> Vec<A::Number> {
    let mut gate = arithmetic.linear(gate_proj, h);
    let up = arithmetic.linear(up_proj, h);
    arithmetic.gelu_times(&mut gate, &up);
    arithmetic.take_back(up);
    let out = arithmetic.linear(down_proj, &gate);
    arithmetic.take_back(gate);
    out
}

/// Adds the layer's own input, gated by the stream itself (not by a norm of it).
fn per_layer_block<A: Arithmetic>(
    model: &Model,
    arithmetic: &A,
    number: usize,
    layer: &LayerWeights,
    x: &mut [A::Number],
    per_layer: &[A::Number],
) {
    let Some(block) = &layer.per_layer_block else { return };
    let width = block.input_gate.rows();
    let all_layers = model.config.text.layers.len() * width;
    let mut g = arithmetic.linear(&block.input_gate, x);
    for (g, inputs) in g.chunks_exact_mut(width).zip(per_layer.chunks_exact(all_layers)) {
        arithmetic.gelu_times(g, &inputs[number * width..][..width]);
    }
    let mut out = arithmetic.linear(&block.projection, &g);
    rms_norm(model, arithmetic, &mut out, model.config.text.hidden_size, Some(&block.post_norm));
    add(x, &out);
    arithmetic.take_back(g);
    arithmetic.take_back(out);
}

/// The last norm, the head (usually the unscaled embedding table) and the softcap.
fn head<A: Arithmetic>(
    model: &Model,
    arithmetic: &A,
    mut x: Vec<A::Number>,
    observer: &mut dyn Observer<A::Number>,
) -> Vec<A::Number> {
    if x.is_empty() {
        return Vec::new();
    }
    rms_norm(model, arithmetic, &mut x, model.config.text.hidden_size, Some(&model.weights.norm));
    observer.stage(Stage::FinalNorm, &x);
    let mut logits = arithmetic.linear(model.weights.head(), &x);
    if let Some(cap) = model.config.text.final_logit_softcapping {
        arithmetic.soft_cap(&mut logits, cap);
    }
    logits
}

/// [`Arithmetic::rms_norm`] with the model's epsilon.
pub(crate) fn rms_norm<A: Arithmetic>(
    model: &Model,
    arithmetic: &A,
    rows: &mut [A::Number],
    width: usize,
    weight: Option<&[f32]>,
) {
    arithmetic.rms_norm(rows, width, weight, model.config.text.rms_norm_eps);
}

pub(crate) fn scale<N: Number>(values: &mut [N], factor: N) {
    for value in values {
        *value = *value * factor;
    }
}

fn add<N: Number>(x: &mut [N], y: &[N]) {
    for (x, &y) in x.iter_mut().zip(y) {
        *x += y;
    }
}
