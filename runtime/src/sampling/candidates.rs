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
fn candidates_among(
    sampling: &Sampling,
    tokens: impl Iterator<Item = (u32, f32)>,
) -> Vec<Candidate> {
    let count = if sampling.top_k > 0 { sampling.top_k } else { usize::MAX };
    let ranked = likeliest(tokens, count);
    let weight = weight(sampling, ranked[0].1);
    let mut kept: Vec<Candidate> = ranked
        .into_iter()
        .map(|(id, logit)| Candidate { id, probability: weight(logit) })
        .collect();
    normalize(&mut kept);
    let reached = count_of_top_p(sampling, &kept);
    kept.truncate(reached.unwrap_or(kept.len()));
    keep_min_p(sampling, &mut kept);
    kept
}

/// The token that `draw`, in 0..1, stands for.
pub(super) fn drawn(
    sampling: &Sampling,
    tokens: impl Iterator<Item = (u32, f32)>,
    draw: f64,
) -> u32 {
    let candidates = if sampling.top_k > 0 {
        candidates_among(sampling, tokens)
    } else {
        let tokens: Vec<(u32, f32)> = tokens.collect();
        if let Some(id) = drawn_from_head(sampling, &tokens, draw) {
            return id;
        }
        candidates_among(sampling, tokens.into_iter())
    };
    // Rounding in the sum of probabilities: the draw fell behind the last one.
    at(&candidates, draw).unwrap_or(candidates[candidates.len() - 1].id)
}

/// Tokens that are ranked before all others are.
const HEAD: usize = 1024;

/// The same of tokens without top-k, without ranking them all: sorting a whole vocabulary takes
/// longer than a GPU takes for a token, and nearly every draw is one of the likeliest. `None`: it is
/// not, or what may be drawn reaches beyond them.
fn drawn_from_head(sampling: &Sampling, tokens: &[(u32, f32)], draw: f64) -> Option<u32> {
    if tokens.len() <= HEAD {
        return None;
    }
    let head = likeliest(tokens.iter().copied(), HEAD);
    let weight = weight(sampling, head[0].1);
    let sum: f64 = tokens.iter().map(|&(_, logit)| weight(logit)).sum();
    let mut kept: Vec<Candidate> = head
        .into_iter()
        .map(|(id, logit)| Candidate { id, probability: weight(logit) / sum })
        .collect();
    let reached = count_of_top_p(sampling, &kept);
    if reached.is_some() || kept[HEAD - 1].probability < least_of_min_p(sampling, &kept) {
        kept.truncate(reached.unwrap_or(HEAD));
        keep_min_p(sampling, &mut kept);
        return Some(at(&kept, draw).unwrap_or(kept[kept.len() - 1].id));
    }
    if sampling.top_p < 1.0 || sampling.min_p > 0.0 {
        return None;
    }
    at(&kept, draw)
}

/// Weights of logits, 1 for the largest.
fn weight(sampling: &Sampling, largest: f32) -> impl Fn(f32) -> f64 + use<> {
    let (temperature, largest) = (sampling.temperature, f64::from(largest));
    move |logit| ((f64::from(logit) - largest) / temperature).exp()
}

/// How many of the likeliest come to top-p together; `None`: it is off, or all of these do not.
fn count_of_top_p(sampling: &Sampling, ranked: &[Candidate]) -> Option<usize> {
    let mut reached = 0.0;
    let mut sums = ranked.iter().map(|candidate| {
        reached += candidate.probability;
        reached
    });
    if sampling.top_p < 1.0 {
        sums.position(|sum| sum >= sampling.top_p).map(|last| last + 1)
    } else {
        None
    }
}

fn least_of_min_p(sampling: &Sampling, ranked: &[Candidate]) -> f64 {
    sampling.min_p * ranked[0].probability
}

/// Keeps what min-p leaves, its probabilities summing to 1.
fn keep_min_p(sampling: &Sampling, kept: &mut Vec<Candidate>) {
    let least = least_of_min_p(sampling, kept);
    kept.retain(|candidate| candidate.probability >= least);
    normalize(kept);
}

/// The candidate in whose share of 0..1 the draw lies.
fn at(candidates: &[Candidate], mut draw: f64) -> Option<u32> {
    for candidate in candidates {
        if draw < candidate.probability {
            return Some(candidate.id);
        }
        draw -= candidate.probability;
    }
    None
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
        /// What is ranked first is a matter of speed: every draw is that of the whole ranking.
        #[test]
        fn a_draw_among_the_first_is_the_draw_among_all(
            levels in prop::collection::vec(-400i16..400, 1025..2500),
            temperature in 0.1f64..20.0,
            top_p in prop_oneof![Just(1.0), 0.3f64..1.0],
            min_p in prop_oneof![Just(0.0), 0.0f64..0.2],
            draws in prop::collection::vec(0.0f64..1.0, 20),
        ) {
            let sampling = Sampling { temperature, top_p, min_p, ..Sampling::GREEDY };
            let logits: Vec<f32> = levels.into_iter().map(|level| f32::from(level) / 16.0).collect();
            let tokens = || (0..).zip(logits.iter().copied());
            let all = candidates_among(&sampling, tokens());
            for draw in draws {
                let expected = at(&all, draw).unwrap_or(all[all.len() - 1].id);
                prop_assert_eq!(drawn(&sampling, tokens(), draw), expected);
            }
        }

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
