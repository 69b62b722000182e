//! The forward pass of Gemma 4's text model, once for every arithmetic.
//!
//! ```text
//! embed → per_layer_inputs → for each layer { attention, mlp (and experts), per_layer_block } → head
//! ```
//! The residual stream is `[tokens, hidden]`. Every norm, product and sum is in the number of the
//! [`Arithmetic`]; nothing is rounded to bf16 in between. Source: transformers 5.24
//! `modeling_gemma4.py`, in float32.

use crate::arithmetic::Arithmetic;
use crate::attention::attention;
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

/// The positions that a pass is working on and their residual stream.
struct Stream<N> {
    /// Position of the first.
    first: usize,
    /// `[tokens, hidden]`.
    x: Vec<N>,
    /// `[tokens, layers, per-layer width]`.
    per_layer: Vec<N>,
}

/// Runs `tokens` through the model as the next positions of `cache`.
///
/// Returns logits `[rows, vocabulary]`: a row for every token, for the last one, or none, as
/// `wanted` says. Errors: an id that is no row of the tables; a full context; no memory. The cache
/// is unchanged then.
pub fn forward<A: Arithmetic>(
    model: &Model,
    arithmetic: &A,
    cache: &mut Cache<A::Number>,
    tokens: &[u32],
    wanted: Wanted,
    observer: &mut dyn Observer<A::Number>,
) -> Result<Vec<A::Number>> {
    if tokens.is_empty() {
        return Err(RuntimeError::EmptyPrompt);
    }
    check_ids(&model.config.text, tokens, cache.length())?;
    cache.begin(tokens.len())?;

    let x = embed(model, arithmetic, tokens);
    observer.stage(Stage::InputsEmbeds, &x);
    let per_layer = per_layer_inputs(model, arithmetic, tokens, &x);
    observer.stage(Stage::PerLayerInputs, &per_layer);
    let mut stream = Stream { first: cache.length(), x, per_layer };

    for (number, layer) in model.weights.layers.iter().enumerate() {
        // From the first KV-shared layer on, nothing is stored for other positions to read: only
        // those whose logits are wanted go on.
        if number == model.config.text.owning_layers() {
            narrow(model, &mut stream, wanted);
        }
        if stream.x.is_empty() {
            break;
        }
        layer_pass(model, arithmetic, cache, number, layer, &mut stream, observer);
        observer.stage(Stage::LayerOut(number), &stream.x);
    }
    narrow(model, &mut stream, wanted);
    cache.commit(tokens.len());
    Ok(head(model, arithmetic, stream.x, observer))
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
) -> Vec<A::Number> {
    let text = &model.config.text;
    let Some(weights) = &model.weights.per_layer_inputs else { return Vec::new() };
    let width = text.hidden_size_per_layer_input;
    let all_layers = text.layers.len() * width;

    let mut inputs = arithmetic.linear(&weights.model_projection, x);
    scale(&mut inputs, A::Number::from_f64((text.hidden_size as f64).powf(-0.5)));
    rms_norm(model, &mut inputs, width, Some(&weights.projection_norm));

    let table_factor = A::Number::from_f64((width as f64).sqrt());
    let half = A::Number::from_f64(0.5f64.sqrt());
    let mut table_row = vec![A::Number::default(); all_layers];
    for (&id, row) in tokens.iter().zip(inputs.chunks_exact_mut(all_layers)) {
        arithmetic.table_row(&weights.embed_tokens, id as usize, &mut table_row);
        for (input, &entry) in row.iter_mut().zip(&table_row) {
            *input = (*input + entry * table_factor) * half;
        }
    }
    inputs
}

/// Drops the positions whose logits are not wanted.
fn narrow<N: Number>(model: &Model, stream: &mut Stream<N>, wanted: Wanted) {
    let text = &model.config.text;
    let tokens = stream.x.len() / text.hidden_size;
    let kept = match wanted {
        Wanted::All => tokens,
        Wanted::Last => tokens.min(1),
        Wanted::Nothing => 0,
    };
    let per_layer = stream.per_layer.len() / tokens.max(1);
    stream.first += tokens - kept;
    stream.x.drain(..(tokens - kept) * text.hidden_size);
    stream.per_layer.drain(..(tokens - kept) * per_layer);
}

/// One decoder layer; changes the stream in place.
fn layer_pass<A: Arithmetic>(
    model: &Model,
    arithmetic: &A,
    cache: &mut Cache<A::Number>,
    number: usize,
    layer: &LayerWeights,
    stream: &mut Stream<A::Number>,
    observer: &mut dyn Observer<A::Number>,
) {
    let hidden = model.config.text.hidden_size;
    let x = &mut stream.x;

    let mut h = x.clone();
    rms_norm(model, &mut h, hidden, Some(&layer.input_norm));
    let mut a = attention(model, arithmetic, cache, number, layer, stream.first, &h);
    observer.stage(Stage::AttentionOut(number), &a);
    rms_norm(model, &mut a, hidden, Some(&layer.post_attention_norm));
    add(x, &a);

    let mut h = x.clone();
    rms_norm(model, &mut h, hidden, Some(&layer.pre_mlp_norm));
    let mut m = mlp(arithmetic, &layer.gate_proj, &layer.up_proj, &layer.down_proj, &h);
    observer.stage(Stage::MlpOut(number), &m);
    if let Some(block) = &layer.experts {
        rms_norm(model, &mut m, hidden, Some(&block.post_mlp_norm));
        // The experts and their router see the stream itself, each under a norm of its own.
        add(&mut m, &experts(model, arithmetic, block, x));
    }
    rms_norm(model, &mut m, hidden, Some(&layer.post_mlp_norm));
    add(x, &m);

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
    let width = gate_proj.rows();
    let mut gate = arithmetic.linear(gate_proj, h);
    let up = arithmetic.linear(up_proj, h);
    arithmetic.for_each_row(&mut gate, width, |token, gate| {
        for (gate, &up) in gate.iter_mut().zip(&up[token * width..]) {
            *gate = gelu(*gate) * up;
        }
    });
    arithmetic.linear(down_proj, &gate)
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
        for (g, &input) in g.iter_mut().zip(&inputs[number * width..]) {
            *g = gelu(*g) * input;
        }
    }
    let mut g = arithmetic.linear(&block.projection, &g);
    rms_norm(model, &mut g, model.config.text.hidden_size, Some(&block.post_norm));
    add(x, &g);
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
    rms_norm(model, &mut x, model.config.text.hidden_size, Some(&model.weights.norm));
    observer.stage(Stage::FinalNorm, &x);
    let mut logits = arithmetic.linear(model.weights.head(), &x);
    if let Some(cap) = model.config.text.final_logit_softcapping {
        let cap = A::Number::from_f64(cap);
        let vocabulary = model.weights.head().rows();
        arithmetic.for_each_row(&mut logits, vocabulary, |_, logits| {
            for logit in logits {
                *logit = (*logit / cap).tanh() * cap;
            }
        });
    }
    logits
}

/// Divides every row of `width` numbers by its root mean square, then multiplies by the weight
/// (by `w`, not by `1 + w` as earlier Gemmas did).
pub(crate) fn rms_norm<N: Number>(
    model: &Model,
    rows: &mut [N],
    width: usize,
    weight: Option<&[f32]>,
) {
    let epsilon = N::from_f64(model.config.text.rms_norm_eps);
    let count = N::from_f64(width as f64);
    let one = N::from_f64(1.0);
    for row in rows.chunks_exact_mut(width) {
        let mut squares = N::default();
        for &value in row.iter() {
            squares += value * value;
        }
        scale(row, one / (squares / count + epsilon).sqrt());
        for (value, &weight) in row.iter_mut().zip(weight.unwrap_or_default()) {
            *value = *value * N::from_f32(weight);
        }
    }
}

/// The tanh form of GELU.
fn gelu<N: Number>(x: N) -> N {
    let inner =
        N::from_f64((2.0 / std::f64::consts::PI).sqrt()) * (x + N::from_f64(0.044715) * x * x * x);
    N::from_f64(0.5) * x * (N::from_f64(1.0) + inner.tanh())
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
