//! Temperature, top-k, top-p and min-p: the tokens that may be drawn.

use super::Sampling;
use super::ranking::{check_logits, likeliest_of_all};
use crate::error::Result;

/// A token that may be drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// Its id.
    pub id: u32,
    /// Its probability among the candidates; they sum to 1.
    pub probability: f64,
}

/// The tokens that may be drawn, likeliest first (ties: lowest id first), at least one.
pub fn candidates(sampling: &Sampling, logits: &[f32]) -> Result<Vec<Candidate>> {
    check_logits(logits)?;
    Ok(candidates_of(sampling, likeliest_of_all(logits, count_of_top_k(sampling))))
}

fn count_of_top_k(sampling: &Sampling) -> usize {
    if sampling.top_k > 0 { sampling.top_k } else { usize::MAX }
}

/// The same of the tokens that top-k leaves, at least one, likeliest first, with finite logits.
pub(super) fn candidates_of(sampling: &Sampling, ranked: Vec<(u32, f32)>) -> Vec<Candidate> {
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

/// Weights of logits, 1 for the largest.
pub(super) fn weight(sampling: &Sampling, largest: f32) -> impl Fn(f32) -> f64 + use<> {
    let (temperature, largest) = (sampling.temperature, f64::from(largest));
    move |logit| ((f64::from(logit) - largest) / temperature).exp()
}

/// How many of the likeliest come to top-p together; `None`: it is off, or all of these do not.
pub(super) fn count_of_top_p(sampling: &Sampling, ranked: &[Candidate]) -> Option<usize> {
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

pub(super) fn least_of_min_p(sampling: &Sampling, ranked: &[Candidate]) -> f64 {
    sampling.min_p * ranked[0].probability
}

/// Keeps what min-p leaves, its probabilities summing to 1.
pub(super) fn keep_min_p(sampling: &Sampling, kept: &mut Vec<Candidate>) {
    let least = least_of_min_p(sampling, kept);
    kept.retain(|candidate| candidate.probability >= least);
    normalize(kept);
}

fn normalize(candidates: &mut [Candidate]) {
    let sum: f64 = candidates.iter().map(|candidate| candidate.probability).sum();
    for candidate in candidates {
        candidate.probability /= sum;
    }
}
