//! Log-probabilities of the model's own distribution.

use super::ranking::likeliest_of_all;

/// The likeliest tokens whose log-probabilities may be asked for at each token of an answer.
pub const MOST_LOGPROBS: usize = 20;

/// The log-probability of token `id`, and the `top` likeliest tokens with theirs (likeliest first,
/// ties: lowest id first). Natural logarithms of softmax over all finite `logits`, summed in f64.
pub fn log_probabilities(logits: &[f32], id: u32, top: usize) -> (f32, Vec<(u32, f32)>) {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&logit| (f64::from(logit) - f64::from(largest)).exp()).sum();
    let normalizer = f64::from(largest) + sum.ln();
    let log_probability = |logit: f32| (f64::from(logit) - normalizer) as f32;
    let likeliest =
        likeliest_of_all(logits, top).into_iter().map(|(id, logit)| (id, log_probability(logit)));
    (log_probability(logits[id as usize]), likeliest.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn they_are_those_of_the_definition(
            logits in prop::collection::vec((-40i8..40).prop_map(f32::from), 1..60),
            id in any::<prop::sample::Index>(),
            top in 0usize..=MOST_LOGPROBS,
        ) {
            let sum: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
            let expected = |logit: f32| (f64::from(logit).exp() / sum).ln();
            let id = id.index(logits.len());
            let (found, likeliest) = log_probabilities(&logits, id as u32, top);
            prop_assert!((f64::from(found) - expected(logits[id])).abs() < 1e-4);
            prop_assert_eq!(likeliest.len(), top.min(logits.len()));
            let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
            ids.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]));
            for (&id, &(found, value)) in ids.iter().zip(&likeliest) {
                prop_assert_eq!(id, found);
                prop_assert!((f64::from(value) - expected(logits[id as usize])).abs() < 1e-4);
            }
        }

        /// What all tokens together have is 1.
        #[test]
        fn they_sum_to_one(logits in prop::collection::vec(-30.0f32..30.0, 1..20)) {
            let (_, all) = log_probabilities(&logits, 0, logits.len());
            let sum: f64 = all.iter().map(|&(_, value)| f64::from(value).exp()).sum();
            prop_assert!((sum - 1.0).abs() < 1e-5);
        }
    }
}
