//! Experts: small MLPs beside a layer's own, of which every token uses a few.
//!
//! ```text
//! stream ─┬─ norm → router → a few experts and their shares
//!         └─ norm → those experts → sum by shares → norm
//! ```
//! Source: transformers 5.24 `Gemma4TextRouter`, `Gemma4TextExperts`.

use crate::arithmetic::{Arithmetic, softmax};
use crate::forward::{mlp, rms_norm, scale};
use crate::model::{Experts, Model};
use crate::number::Number;

/// What the experts add to the layer's own MLP, from the stream `x` (`[tokens, hidden]`) before any
/// norm.
pub(crate) fn experts<A: Arithmetic>(
    model: &Model,
    arithmetic: &A,
    block: &Experts,
    x: &[A::Number],
) -> Vec<A::Number> {
    let hidden = model.config.text.hidden_size;
    let shares = route(model, arithmetic, block, x);
    let mut h = x.to_vec();
    rms_norm(model, arithmetic, &mut h, hidden, Some(&block.pre_norm));

    let mut sum = vec![A::Number::default(); x.len()];
    // Expert by expert, so that each is read once for all its tokens; a token's sum is in the order
    // of experts whatever other tokens there are.
    for (number, expert) in block.experts.iter().enumerate() {
        let users: Vec<(usize, A::Number)> = shares
            .iter()
            .filter(|share| share.expert == number)
            .map(|share| (share.token, share.share))
            .collect();
        if users.is_empty() {
            continue;
        }
        let inputs: Vec<A::Number> =
            users.iter().flat_map(|(token, _)| &h[token * hidden..][..hidden]).copied().collect();
        let outputs =
            mlp(arithmetic, &expert.gate_proj, &expert.up_proj, &expert.down_proj, &inputs);
        for (&(token, share), output) in users.iter().zip(outputs.chunks_exact(hidden)) {
            for (sum, &output) in sum[token * hidden..].iter_mut().zip(output) {
                *sum += share * output;
            }
        }
    }
    rms_norm(model, arithmetic, &mut sum, hidden, Some(&block.post_norm));
    sum
}

/// A token's use of an expert.
struct Share<N> {
    token: usize,
    expert: usize,
    share: N,
}

/// Chooses the experts of every token: the likeliest ones, each with its probability over theirs
/// together, times a factor of its own.
fn route<A: Arithmetic>(
    model: &Model,
    arithmetic: &A,
    block: &Experts,
    x: &[A::Number],
) -> Vec<Share<A::Number>> {
    let hidden = model.config.text.hidden_size;
    let used = model.config.text.experts.map_or(0, |experts| experts.used);
    let mut u = x.to_vec();
    rms_norm(model, arithmetic, &mut u, hidden, Some(&block.router_scale));
    scale(&mut u, A::Number::from_f64((hidden as f64).powf(-0.5)));
    let mut chances = arithmetic.linear(&block.router, &u);

    let mut shares = Vec::new();
    for (token, chances) in chances.chunks_exact_mut(block.router.rows()).enumerate() {
        softmax(chances);
        let chosen = likeliest(chances, used);
        let mut together = A::Number::default();
        for &expert in &chosen {
            together += chances[expert];
        }
        shares.extend(chosen.into_iter().map(|expert| {
            let factor = A::Number::from_f32(block.per_expert_scale[expert]);
            Share { token, expert, share: chances[expert] / together * factor }
        }));
    }
    shares
}

/// The `count` experts with the largest chances, in falling order; of equal ones the first.
fn likeliest<N: Number>(chances: &[N], count: usize) -> Vec<usize> {
    let mut chosen: Vec<usize> = Vec::with_capacity(count);
    while chosen.len() < count.min(chances.len()) {
        let left = (0..chances.len()).filter(|expert| !chosen.contains(expert));
        let best = left.reduce(|best, other| match chances[other] > chances[best] {
            true => other,
            false => best,
        });
        chosen.extend(best);
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::likeliest;

    #[test]
    fn the_likeliest_experts_are_taken_and_of_equal_ones_the_first() {
        assert_eq!(likeliest(&[0.1, 0.3, 0.3, 0.2f32], 3), [1, 2, 3]);
        assert_eq!(likeliest(&[0.25f32; 4], 2), [0, 1]);
        assert_eq!(likeliest(&[0.9, 0.1f32], 2), [0, 1]);
    }
}
