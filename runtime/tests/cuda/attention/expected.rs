//! The same attention in f64, and how far from it a kernel may be.

use super::{Case, Inputs};
use crate::bench::Bench;
use w4pack_runtime::device::cuda::KvType;

fn rms(head: &[f64]) -> Vec<f64> {
    let mean = head.iter().map(|x| x * x).sum::<f64>() / head.len() as f64;
    head.iter().map(|x| x / (mean + 1e-6).sqrt()).collect()
}

/// Norm and rotation in f64, of the pairs (j, j + head_dim / 2).
fn turned(head: &[f32], norm: &[f32], turns: &[f32]) -> Vec<f64> {
    let wide: Vec<f64> = head.iter().map(|&x| f64::from(x)).collect();
    let mut head: Vec<f64> = rms(&wide).iter().zip(norm).map(|(x, &w)| x * f64::from(w)).collect();
    let half = head.len() / 2;
    for (pair, turn) in turns.chunks(2).enumerate() {
        let (cosine, sine) = (f64::from(turn[0]), f64::from(turn[1]));
        let (low, high) = (head[pair], head[pair + half]);
        head[pair] = low * cosine - high * sine;
        head[pair + half] = high * cosine + low * sine;
    }
    head
}

/// The token's own key and value are stored, rounded once to what the cache keeps; where the layer
/// owns none, nothing changes.
pub fn check_stored(bench: &Bench, inputs: &Inputs, case: &Case, now: [&[f64]; 2]) {
    let stored = inputs.cache.stored;
    if !case.owns {
        for (address, before) in [stored.keys, stored.values].into_iter().zip(&inputs.before) {
            assert!(bench.bytes(address, before.len()) == *before, "stored, {case:?}");
        }
        return;
    }
    for kv_head in 0..case.kv_heads {
        let part = kv_head * case.head_dim..(kv_head + 1) * case.head_dim;
        let key = turned(&inputs.k[part.clone()], &inputs.k_norm, &inputs.turns);
        let wide: Vec<f64> = inputs.v[part].iter().map(|&x| f64::from(x)).collect();
        for (own, now) in [(key, now[0]), (rms(&wide), now[1])] {
            let at = case.slot(case.position) * case.row() + kv_head * case.head_dim;
            for (i, &exact) in own.iter().enumerate() {
                // Half a unit of f16 or bf16; of q8 half a step of the largest of 32 by 127, the
                // step itself an f16 number, so that the largest code may miss by 2^-11 more.
                let group = &own[i / 32 * 32..][..32];
                let largest = group.iter().fold(0.0f64, |most, x| most.max(x.abs()));
                let unit = match case.kv {
                    KvType::F16 => exact.abs() * 2f64.powi(-11),
                    KvType::Bf16 => exact.abs() * 2f64.powi(-8),
                    KvType::Q8 => largest * (0.5 / 127.0 + 2f64.powi(-11)),
                };
                // And what f32 leaves open beside a rounding boundary.
                let bound = unit + 1e-5 * (1.0 + exact.abs());
                assert!((now[at + i] - exact).abs() <= bound, "stored, {case:?}, {i}");
            }
        }
    }
}

/// How far the result may be from that of f64, by what rounds on the way:
///
/// - a score by `s`, the sum of |q·k| times what the norm and the rotation of q are in f32 (8 · 2^-23
///   of q), and times a sum in f32 of `head_dim / 16` steps (2^-24 each); on tensor cores q's two f16
///   numbers are inside of that (2^-22);
/// - a weight by the factor e^s, on tensor cores also by 2^-25 of the largest (its two f16 numbers);
/// - sums of weights and of weighted values in f32 by 2^-23 of themselves for each of the roundings
///   that do not cancel, the root of their count;
/// - so the quotient by twice that of the largest value;
/// - the digits that tensor cores hand on by 2^-21 of the largest of a group.
pub fn check_result(
    case: &Case,
    inputs: &Inputs,
    now: [&[f64]; 2],
    found: &[f64],
    on_tensor: bool,
) {
    let Case { head_dim, .. } = *case;
    for head in 0..case.heads {
        let q = turned(&inputs.q[head * head_dim..][..head_dim], &inputs.q_norm, &inputs.turns);
        let kv_head = head / (case.heads / case.kv_heads);
        let at = |position: usize| case.slot(position) * case.row() + kv_head * head_dim;
        let visible = case.first()..=case.position;
        let (mut scores, mut size) = (Vec::new(), 0.0f64);
        for position in visible.clone() {
            let key = &now[0][at(position)..][..head_dim];
            let products = q.iter().zip(key).map(|(q, k)| q * k);
            let (score, sizes) = products.fold((0.0, 0.0), |(s, a), x| (s + x, a + x.abs()));
            scores.push(score);
            size = size.max(sizes);
        }
        let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
        let total: f64 = weights.iter().sum();
        let (mut expected, mut largest) = (vec![0.0; head_dim], 0.0f64);
        for (position, weight) in visible.zip(&weights) {
            for (e, v) in expected.iter_mut().zip(&now[1][at(position)..][..head_dim]) {
                *e += weight / total * v;
                largest = largest.max(v.abs());
            }
        }
        let s = size * (8.0 * 2f64.powi(-23) + (head_dim / 16) as f64 * 2f64.powi(-24));
        let count = weights.len() as f64;
        let of_halves = if on_tensor { count * 2f64.powi(-25) / total } else { 0.0 };
        let of_weights = s.exp_m1() + of_halves + count.sqrt() * 2f64.powi(-23);
        let of_digits = if on_tensor { 2f64.powi(-21) } else { 0.0 };
        let bound = largest * (2.0 * of_weights + of_digits);
        for (i, expected) in expected.iter().enumerate() {
            let error = (found[head * head_dim + i] - expected).abs();
            assert!(error <= bound, "{case:?}, head {head}, {i}: {error:e} > {bound:e}");
        }
    }
}
