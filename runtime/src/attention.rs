//! Attention of one layer.

use crate::arithmetic::{Arithmetic, Heads};
use crate::forward::{Piece, Span, rms_norm};
use crate::model::{KeysAndValues, LayerWeights, Model};
use crate::number::Number;
use w4pack_format::config::{Rope, TextConfig};

/// Stages the keys and values of layer `number`, which owns them, for the normed stream `h`
/// (`[tokens, hidden]`), whose rows belong to `pieces` as `spans` say.
#[allow(clippy::too_many_arguments)]
pub(crate) fn keep<A: Arithmetic>(
    model: &Model,
    arithmetic: &A,
    pieces: &mut [Piece<'_, A::Kept>],
    spans: &[Span],
    turns: &Turns<A::Number>,
    number: usize,
    own: &KeysAndValues,
    h: &[A::Number],
) {
    let config = &model.config.text.layers[number];
    let (head_dim, width) = (config.head_dim, own.k_proj.rows());
    let mut k = arithmetic.linear(&own.k_proj, h);
    let mut v = match &own.v_proj {
        Some(v_proj) => arithmetic.linear(v_proj, h),
        None => k.clone(),
    };
    rms_norm(model, arithmetic, &mut k, head_dim, Some(&own.k_norm));
    turns.rotate(&mut k, width, &config.rope, head_dim);
    rms_norm(model, arithmetic, &mut v, head_dim, None);
    let (mut k_rest, mut v_rest) = (&k[..], &v[..]);
    for (piece, span) in pieces.iter_mut().zip(spans) {
        let (keys, values);
        (keys, k_rest) = k_rest.split_at(span.rows * width);
        (values, v_rest) = v_rest.split_at(span.rows * width);
        piece.cache.layer_mut(number).stage(keys, values);
    }
    arithmetic.take_back(k);
    arithmetic.take_back(v);
}

/// Attention of layer `number` over the normed stream `h` (`[tokens, hidden]`), whose rows belong to
/// `pieces` as `spans` say; ends with `o_proj`.
///
/// A layer that owns no keys and values reads another layer's, window included. A row sees its own
/// sequence only.
#[allow(clippy::too_many_arguments)]
pub(crate) fn attention<A: Arithmetic>(
    model: &Model,
    arithmetic: &A,
    pieces: &[Piece<'_, A::Kept>],
    spans: &[Span],
    turns: &Turns<A::Number>,
    number: usize,
    layer: &LayerWeights,
    h: &[A::Number],
) -> Vec<A::Number> {
    let config = &model.config.text.layers[number];
    let head_dim = config.head_dim;
    let mut q = arithmetic.linear(&layer.q_proj, h);
    rms_norm(model, arithmetic, &mut q, head_dim, Some(&layer.q_norm));
    turns.rotate(&mut q, layer.q_proj.rows(), &config.rope, head_dim);

    let queries = model.config.text.num_attention_heads;
    let heads = Heads { queries, queries_per_key: queries / config.kv_heads, head_dim };
    let mut out = vec![A::Number::default(); q.len()];
    let (mut q_rest, mut rest) = (&q[..], &mut out[..]);
    for (piece, span) in pieces.iter().zip(spans) {
        let (queries, out);
        (queries, q_rest) = q_rest.split_at(span.rows * heads.queries * head_dim);
        (out, rest) = rest.split_at_mut(queries.len());
        let kept = piece.cache.layer(config.kv_source.unwrap_or(number));
        arithmetic.attend(kept, span.first, heads, queries, out);
    }
    arithmetic.take_back(q);
    let projected = arithmetic.linear(&layer.o_proj, &out);
    arithmetic.take_back(out);
    projected
}

/// Rotary position embedding of the rows of a pass, for every kind of layer that there is.
pub(crate) struct Turns<N> {
    kinds: Vec<Turn<N>>,
}

/// Of one kind of layer: sines and cosines, `[rows, rotated pairs]`.
struct Turn<N> {
    rope: Rope,
    head_dim: usize,
    sines: Vec<N>,
    cosines: Vec<N>,
}

impl<N: Number> Turns<N> {
    /// For rows at the positions of `spans`.
    pub(crate) fn new(text: &TextConfig, spans: &[Span]) -> Self {
        let mut kinds: Vec<Turn<N>> = Vec::new();
        for layer in &text.layers {
            let (rope, head_dim) = (layer.rope, layer.head_dim);
            if kinds.iter().any(|turn| turn.is_of(&rope, head_dim)) {
                continue;
            }
            let frequencies = frequencies(&rope, head_dim);
            let (mut sines, mut cosines) = (Vec::new(), Vec::new());
            for position in spans.iter().flat_map(|span| span.first..span.first + span.rows) {
                // An angle is an f32 number in every arithmetic: so the model was trained, and so it
                // is run elsewhere.
                let position = position as f32;
                for frequency in &frequencies {
                    let (sine, cosine) = N::from_f32(position * frequency).sin_cos();
                    sines.push(sine);
                    cosines.push(cosine);
                }
            }
            kinds.push(Turn { rope, head_dim, sines, cosines });
        }
        Self { kinds }
    }

    /// Turns the heads of `rows` (`[tokens, width]`). Element `j` of a head turns with element
    /// `j + head_dim/2`; in full layers only the first pairs turn.
    fn rotate(&self, rows: &mut [N], width: usize, rope: &Rope, head_dim: usize) {
        let pairs = rope.rotated_pairs;
        let Some(turn) = self.kinds.iter().find(|turn| turn.is_of(rope, head_dim)) else { return };
        if pairs == 0 {
            return;
        }
        let turns = turn.sines.chunks_exact(pairs).zip(turn.cosines.chunks_exact(pairs));
        for (row, (sines, cosines)) in rows.chunks_exact_mut(width).zip(turns) {
            for head in row.chunks_exact_mut(head_dim) {
                let (low, high) = head.split_at_mut(head_dim / 2);
                let pairs = low.iter_mut().zip(high).zip(sines.iter().zip(cosines));
                for ((low, high), (&sine, &cosine)) in pairs {
                    (*low, *high) = (*low * cosine - *high * sine, *high * cosine + *low * sine);
                }
            }
        }
    }
}

impl<N> Turn<N> {
    fn is_of(&self, rope: &Rope, head_dim: usize) -> bool {
        self.rope == *rope && self.head_dim == head_dim
    }
}

/// Radians a position, by pair.
pub(crate) fn frequencies(rope: &Rope, head_dim: usize) -> Vec<f32> {
    (0..rope.rotated_pairs)
        .map(|pair| rope.theta.powf(-2.0 * pair as f64 / head_dim as f64) / rope.factor)
        .map(|frequency| frequency as f32)
        .collect()
}
