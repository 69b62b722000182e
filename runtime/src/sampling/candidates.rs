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
    Ok(candidates_among(sampling, (0..).zip(logits.iter().copied()).collect()))
}

/// The same of some tokens, at least one, with finite logits.
pub(super) fn candidates_among(sampling: &Sampling, mut ranked: Vec<(u32, f32)>) -> Vec<Candidate> {
    rank(&mut ranked, if sampling.top_k > 0 { sampling.top_k } else { usize::MAX });
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

/// Sorts by logit, largest first (ties: lowest id first), and keeps the first `count`.
pub(super) fn rank(tokens: &mut Vec<(u32, f32)>, count: usize) {
    let order = |a: &(u32, f32), b: &(u32, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
    if (1..tokens.len()).contains(&count) {
        tokens.select_nth_unstable_by(count - 1, order);
    }
    tokens.truncate(count);
    tokens.sort_unstable_by(order);
}

fn normalize(candidates: &mut [Candidate]) {
    let sum: f64 = candidates.iter().map(|candidate| candidate.probability).sum();
    for candidate in candidates {
        candidate.probability /= sum;
    }
}

pub(super) fn check_logits(logits: &[f32]) -> Result<()> {
    match logits.iter().position(|logit| !logit.is_finite()) {
        Some(id) => Err(RuntimeError::BrokenLogits { id, value: logits[id] }),
        None => Ok(()),
    }
}
