//! Temperature, top-k, top-p and min-p: the tokens that may be drawn.

use super::Sampling;
use crate::error::{Result, RuntimeError};

/// A token that may be drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// Its id.
    pub id: u32,
    /// Its probability among the candidates; they sum to 1.
    pub probability: f64,
}

/// The id of the largest logit, the lowest one of equals.
pub fn greedy(logits: &[f32]) -> Result<u32> {
    check_logits(logits)?;
    let mut best = 0;
    for (id, &logit) in logits.iter().enumerate() {
        if logit > logits[best] {
            best = id;
        }
    }
    Ok(best as u32)
}

/// The tokens that may be drawn, likeliest first (ties: lowest id first), at least one.
pub fn candidates(sampling: &Sampling, logits: &[f32]) -> Result<Vec<Candidate>> {
    check_logits(logits)?;
    Ok(candidates_among(sampling, (0..).zip(logits.iter().copied())))
}

/// The same of some tokens, at least one, with finite logits, in the order of their ids.
pub(super) fn candidates_among(
    sampling: &Sampling,
    tokens: impl Iterator<Item = (u32, f32)>,
) -> Vec<Candidate> {
    let count = if sampling.top_k > 0 { sampling.top_k } else { usize::MAX };
    let ranked = likeliest(tokens, count);
    let largest = f64::from(ranked[0].1);
    let weight = |logit: f32| ((f64::from(logit) - largest) / sampling.temperature).exp();
    let mut kept: Vec<Candidate> = ranked
        .into_iter()
        .map(|(id, logit)| Candidate { id, probability: weight(logit) })
        .collect();
    normalize(&mut kept);
    if sampling.top_p < 1.0 {
        let mut reached = 0.0;
        let mut count = 0;
        while reached < sampling.top_p && count < kept.len() {
            reached += kept[count].probability;
            count += 1;
        }
        kept.truncate(count);
    }
    let least = sampling.min_p * kept[0].probability;
    kept.retain(|candidate| candidate.probability >= least);
    normalize(&mut kept);
    kept
}

/// The `count` tokens of the largest logits, largest first (ties: lowest id first).
///
/// Keeps few of a whole vocabulary at a time: what is below the `count` largest so far is passed by
/// with one comparison, which is nearly everything.
pub(super) fn likeliest(tokens: impl Iterator<Item = (u32, f32)>, count: usize) -> Vec<(u32, f32)> {
    let order = |a: &(u32, f32), b: &(u32, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
    if count == 0 {
        return Vec::new();
    }
    let full = count.saturating_mul(4);
    let (mut kept, mut least): (Vec<(u32, f32)>, f32) = (Vec::new(), f32::NEG_INFINITY);
    for token in tokens {
        if token.1 < least {
            continue;
        }
        kept.push(token);
        if kept.len() >= full {
            kept.select_nth_unstable_by(count - 1, order);
            kept.truncate(count);
            least = kept[count - 1].1;
        }
    }
    if count < kept.len() {
        kept.select_nth_unstable_by(count - 1, order);
        kept.truncate(count);
    }
    kept.sort_unstable_by(order);
    kept
}

fn normalize(candidates: &mut [Candidate]) {
    let sum: f64 = candidates.iter().map(|candidate| candidate.probability).sum();
    for candidate in candidates {
        candidate.probability /= sum;
    }
}

pub(super) fn check_logits(logits: &[f32]) -> Result<()> {
    // Without an early exit inside, so that many are looked at at once.
    let is_sound = |part: &[f32]| part.iter().fold(true, |sound, logit| sound & logit.is_finite());
    if logits.chunks(1024).all(is_sound) {
        return Ok(());
    }
    match logits.iter().position(|logit| !logit.is_finite()) {
        Some(id) => Err(RuntimeError::BrokenLogits { id, value: logits[id] }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Many more tokens than are kept at a time, many ties, zeros of both signs.
        #[test]
        fn the_likeliest_are_the_first_of_a_sorted_vocabulary(
            levels in prop::collection::vec(-9i8..9, 1..600),
            count in 0usize..40,
        ) {
            let logit = |level: i8| if level == -9 { -0.0 } else { f32::from(level) };
            let tokens: Vec<(u32, f32)> = (0..).zip(levels.into_iter().map(logit)).collect();
            let mut sorted = tokens.clone();
            sorted.sort_by(|a, b| b.1.total_cmp(&a.1));
            sorted.truncate(count);
            let found = likeliest(tokens.into_iter(), count);
            prop_assert_eq!(found.len(), sorted.len());
            for (found, expected) in found.iter().zip(&sorted) {
                prop_assert_eq!((found.0, found.1.to_bits()), (expected.0, expected.1.to_bits()));
            }
        }
    }
}
