//! Attention of one layer.

use crate::arithmetic::Arithmetic;
use crate::cache::LayerCache;
use crate::forward::{Piece, Span, rms_norm};
use crate::model::{LayerWeights, Model};
use crate::number::Number;
use w4pack_format::config::{LayerConfig, Rope};

/// Attention of layer `number` over the normed stream `h` (`[tokens, hidden]`), whose rows belong to
/// `pieces` as `spans` say; ends with `o_proj`.
///
/// A layer that owns keys and values stages those of the tokens; one that does not reads another
/// layer's, window included. A row sees its own sequence only.
pub(crate) fn attention<A: Arithmetic>(
    model: &Model,
    arithmetic: &A,
    pieces: &mut [Piece<'_, A::Number>],
    spans: &[Span],
    number: usize,
    layer: &LayerWeights,
    h: &[A::Number],
) -> Vec<A::Number> {
    let config = &model.config.text.layers[number];
    let head_dim = config.head_dim;
    let mut q = arithmetic.linear(&layer.q_proj, h);
    rms_norm(model, &mut q, head_dim, Some(&layer.q_norm));
    rotate(&mut q, layer.q_proj.rows(), config, spans);

    if let Some(own) = &layer.keys_and_values {
        let mut k = arithmetic.linear(&own.k_proj, h);
        let mut v = match &own.v_proj {
            Some(v_proj) => arithmetic.linear(v_proj, h),
            None => k.clone(),
        };
        rms_norm(model, &mut k, head_dim, Some(&own.k_norm));
        rotate(&mut k, own.k_proj.rows(), config, spans);
        rms_norm(model, &mut v, head_dim, None);
        let (mut k, mut v) = (&k[..], &v[..]);
        for (piece, span) in pieces.iter_mut().zip(spans) {
            let (keys, values);
            (keys, k) = k.split_at(span.rows * own.k_proj.rows());
            (values, v) = v.split_at(span.rows * own.k_proj.rows());
            piece.cache.layer_mut(number).stage(keys, values);
        }
    }

    let heads = model.config.text.num_attention_heads;
    let queries_per_key = heads / config.kv_heads;
    let mut out = vec![A::Number::default(); q.len()];
    let (mut q, mut rest) = (&q[..], &mut out[..]);
    for (piece, span) in pieces.iter().zip(spans) {
        let (queries, out);
        (queries, q) = q.split_at(span.rows * heads * head_dim);
        (out, rest) = rest.split_at_mut(queries.len());
        let kept = piece.cache.layer(config.kv_source.unwrap_or(number));
        arithmetic.for_each_row(out, head_dim, |row, out| {
            let (token, head) = (row / heads, row % heads);
            let q = &queries[row * head_dim..][..head_dim];
            attend(arithmetic, kept, span.first + token, head / queries_per_key, q, out);
        });
    }
    arithmetic.linear(&layer.o_proj, &out)
}

/// What one query head sees: a softmax over its products with all visible keys (not scaled by
/// anything), then the sum of the values under it, in the order of positions.
fn attend<A: Arithmetic>(
    arithmetic: &A,
    kept: &LayerCache<A::Number>,
    position: usize,
    kv_head: usize,
    q: &[A::Number],
    out: &mut [A::Number],
) {
    let columns = kv_head * q.len()..(kv_head + 1) * q.len();
    let visible = kept.visible(position);
    let mut weights: Vec<A::Number> = visible
        .clone()
        .map(|position| arithmetic.dot(q, &kept.key(position)[columns.clone()]))
        .collect();
    softmax(&mut weights);
    for (position, weight) in visible.zip(weights) {
        arithmetic.add_scaled(weight, &kept.value(position)[columns.clone()], out);
    }
}

/// Exponentials of the scores, divided by their sum.
pub(crate) fn softmax<N: Number>(scores: &mut [N]) {
    let mut largest = scores[0];
    for &score in scores.iter() {
        if score > largest {
            largest = score;
        }
    }
    let mut sum = N::default();
    for score in scores.iter_mut() {
        *score = (*score - largest).exp();
        sum += *score;
    }
    for score in scores.iter_mut() {
        *score = *score / sum;
    }
}

/// Rotary position embedding on the heads of `rows` (`[tokens, width]`). Element `j` of a head
/// turns with element `j + head_dim/2`; in full layers only the first pairs turn.
fn rotate<N: Number>(rows: &mut [N], width: usize, config: &LayerConfig, spans: &[Span]) {
    let half = config.head_dim / 2;
    let frequencies = frequencies(&config.rope, config.head_dim);
    let positions = spans.iter().flat_map(|span| span.first..span.first + span.rows);
    for (position, row) in positions.zip(rows.chunks_exact_mut(width)) {
        // An angle is an f32 number in every arithmetic: so the model was trained, and so it is
        // run elsewhere.
        let position = position as f32;
        let turns: Vec<(N, N)> = frequencies
            .iter()
            .map(|frequency| N::from_f32(position * frequency).sin_cos())
            .collect();
        for head in row.chunks_exact_mut(config.head_dim) {
            let (low, high) = head.split_at_mut(half);
            for ((low, high), &(sin, cos)) in low.iter_mut().zip(high).zip(&turns) {
                (*low, *high) = (*low * cos - *high * sin, *high * cos + *low * sin);
            }
        }
    }
}

/// Radians a position, by pair.
pub(crate) fn frequencies(rope: &Rope, head_dim: usize) -> Vec<f32> {
    (0..rope.rotated_pairs)
        .map(|pair| rope.theta.powf(-2.0 * pair as f64 / head_dim as f64) / rope.factor)
        .map(|frequency| frequency as f32)
        .collect()
}
