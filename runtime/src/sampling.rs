//! How a token is chosen from logits.
//!
//! Greedy: the largest logit, ties to the lowest id. Else, in this order (transformers'):
//! temperature, top-k, top-p, min-p, and a draw from what is left.

use crate::error::{Result, RuntimeError};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::hash::{BuildHasher, RandomState};

/// How to choose.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0 is greedy and makes all other settings idle.
    pub temperature: f64,
    /// Keeps the so many most likely tokens; 0 keeps all.
    pub top_k: usize,
    /// Keeps the smallest set of most likely tokens whose probability reaches this; 1 keeps all.
    pub top_p: f64,
    /// Drops tokens below this share of the likeliest one's probability; 0 keeps all.
    pub min_p: f64,
    /// Makes the draws repeatable; `None` takes a new seed every time.
    pub seed: Option<u64>,
}

impl Sampling {
    /// The largest logit.
    pub const GREEDY: Sampling =
        Sampling { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: None };

    /// Whether nothing is drawn.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0
    }

    /// Checks every setting's range; an error names the setting.
    pub fn check(&self) -> Result<()> {
        let fail = |name, value: f64, expected: &str| {
            let (value, expected) = (value.to_string(), expected.into());
            Err(RuntimeError::Setting { name, value, expected })
        };
        if !(0.0..=100.0).contains(&self.temperature) {
            return fail("temperature", self.temperature, "a number from 0 (greedy) to 100");
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return fail("top_p", self.top_p, "a number above 0, at most 1 (all tokens)");
        }
        if !(0.0..=1.0).contains(&self.min_p) {
            return fail("min_p", self.min_p, "a number from 0 (all tokens) to 1");
        }
        Ok(())
    }
}

/// A token that may be drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// Its id.
    pub id: u32,
    /// Its probability among the candidates; they sum to 1.
    pub probability: f64,
}

/// Chooses the tokens of one sequence.
#[derive(Debug, Clone)]
pub struct Sampler {
    sampling: Sampling,
    seed: u64,
    random: ChaCha8Rng,
}

impl Sampler {
    /// A sampler with checked settings.
    pub fn new(sampling: &Sampling) -> Result<Self> {
        sampling.check()?;
        // The standard library keys its hash maps with numbers from the operating system.
        let seed = sampling.seed.unwrap_or_else(|| RandomState::new().hash_one("seed"));
        Ok(Self { sampling: *sampling, seed, random: ChaCha8Rng::seed_from_u64(seed) })
    }

    /// The seed in use, given or taken.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Chooses a token. Errors: a logit that is NaN or infinite.
    pub fn sample(&mut self, logits: &[f32]) -> Result<u32> {
        if self.sampling.is_greedy() {
            return greedy(logits);
        }
        let candidates = candidates(&self.sampling, logits)?;
        // 53 random bits: every f64 in [0, 1) that is a multiple of 2^-53.
        let mut draw = (self.random.next_u64() >> 11) as f64 * 2f64.powi(-53);
        for candidate in &candidates {
            if draw < candidate.probability {
                return Ok(candidate.id);
            }
            draw -= candidate.probability;
        }
        // Rounding in the sum of probabilities: the draw fell behind the last one.
        Ok(candidates[candidates.len() - 1].id)
    }
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
    let mut ranked: Vec<(u32, f32)> = (0..).zip(logits.iter().copied()).collect();
    let order = |a: &(u32, f32), b: &(u32, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
    if sampling.top_k > 0 && sampling.top_k < ranked.len() {
        ranked.select_nth_unstable_by(sampling.top_k - 1, order);
        ranked.truncate(sampling.top_k);
    }
    ranked.sort_unstable_by(order);

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
    Ok(kept)
}

fn normalize(candidates: &mut [Candidate]) {
    let sum: f64 = candidates.iter().map(|candidate| candidate.probability).sum();
    for candidate in candidates {
        candidate.probability /= sum;
    }
}

fn check_logits(logits: &[f32]) -> Result<()> {
    match logits.iter().position(|logit| !logit.is_finite()) {
        Some(id) => Err(RuntimeError::BrokenLogits { id, value: logits[id] }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sampling() -> impl Strategy<Value = Sampling> {
        (0.1f64..3.0, 0usize..12, 0.05f64..=1.0, 0.0f64..=1.0).prop_map(
            |(temperature, top_k, top_p, min_p)| Sampling {
                temperature,
                top_k,
                top_p,
                min_p,
                seed: Some(1),
            },
        )
    }

    /// Few different values, so that ties are common.
    fn logits() -> impl Strategy<Value = Vec<f32>> {
        prop::collection::vec((-12i8..12).prop_map(|level| f32::from(level) / 2.0), 1..40)
    }

    /// The definition, step by step, over the whole vocabulary.
    fn oracle(sampling: &Sampling, logits: &[f32]) -> Vec<(u32, f64)> {
        let share = |kept: Vec<(u32, f64)>| {
            let sum: f64 = kept.iter().map(|(_, weight)| weight).sum();
            kept.into_iter().map(|(id, weight)| (id, weight / sum)).collect::<Vec<_>>()
        };
        let largest = logits.iter().copied().fold(f32::MIN, f32::max);
        let weight = |logit: f32| (f64::from(logit - largest) / sampling.temperature).exp();
        let mut kept: Vec<(u32, f64)> = (0..).zip(logits.iter().map(|&l| weight(l))).collect();
        // A stable sort: equal weights stay in the order of their ids.
        kept.sort_by(|a, b| b.1.total_cmp(&a.1));
        if sampling.top_k > 0 {
            kept.truncate(sampling.top_k);
        }
        let mut kept = share(kept);
        if sampling.top_p < 1.0 {
            let reached = |count: usize| kept[..count].iter().map(|(_, p)| p).sum::<f64>();
            let count = (1..=kept.len()).find(|&count| reached(count) >= sampling.top_p);
            kept.truncate(count.unwrap_or(kept.len()));
        }
        let best = kept[0].1;
        kept.retain(|(_, p)| *p >= sampling.min_p * best);
        share(kept)
    }

    proptest! {
        #[test]
        fn candidates_are_those_of_the_definition(sampling in sampling(), logits in logits()) {
            let found = candidates(&sampling, &logits).expect("finite logits");
            let expected = oracle(&sampling, &logits);
            let ids = |list: &[(u32, f64)]| list.iter().map(|(id, _)| *id).collect::<Vec<_>>();
            let found: Vec<(u32, f64)> = found.iter().map(|c| (c.id, c.probability)).collect();
            prop_assert_eq!(ids(&found), ids(&expected));
            for (found, expected) in found.iter().zip(&expected) {
                prop_assert!((found.1 - expected.1).abs() < 1e-12);
            }
        }

        #[test]
        fn greedy_is_the_lowest_id_of_the_largest(logits in logits()) {
            let id = greedy(&logits).expect("finite logits") as usize;
            prop_assert!(logits.iter().all(|&logit| logit <= logits[id]));
            prop_assert!(logits[..id].iter().all(|&logit| logit < logits[id]));
            let mut sampler = Sampler::new(&Sampling::GREEDY).expect("sound settings");
            prop_assert_eq!(sampler.sample(&logits).expect("finite logits") as usize, id);
            // One candidate leaves nothing to draw.
            let one = Sampling { temperature: 1.0, top_k: 1, ..Sampling::GREEDY };
            let mut sampler = Sampler::new(&one).expect("sound settings");
            prop_assert_eq!(sampler.sample(&logits).expect("finite logits") as usize, id);
        }
    }

    #[test]
    fn draws_follow_the_probabilities() {
        let sampling = Sampling { temperature: 0.7, seed: Some(7), ..Sampling::GREEDY };
        let logits = [1.0, 0.0, -0.5, 1.25, 0.5];
        let mut sampler = Sampler::new(&sampling).expect("sound settings");
        let draws = 20_000;
        let mut counts = [0u32; 5];
        for _ in 0..draws {
            counts[sampler.sample(&logits).expect("finite logits") as usize] += 1;
        }
        for Candidate { id, probability } in candidates(&sampling, &logits).expect("finite") {
            let expected = probability * f64::from(draws);
            let spread = (expected * (1.0 - probability)).sqrt();
            let off = (f64::from(counts[id as usize]) - expected).abs();
            assert!(off < 5.0 * spread, "token {id}: {counts:?}");
        }
    }

    #[test]
    fn logits_that_are_no_numbers_are_refused() {
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let error = greedy(&[0.0, value]).expect_err("no order");
            assert!(error.to_string().contains("token 1"), "{error}");
            let sampling = Sampling { temperature: 1.0, ..Sampling::GREEDY };
            assert!(candidates(&sampling, &[0.0, value]).is_err());
        }
    }

    #[test]
    fn settings_out_of_range_are_named() {
        let sound = Sampling::GREEDY;
        for (faulty, name) in [
            (Sampling { temperature: -0.1, ..sound }, "temperature"),
            (Sampling { temperature: f64::NAN, ..sound }, "temperature"),
            (Sampling { top_p: 0.0, ..sound }, "top_p"),
            (Sampling { top_p: 1.1, ..sound }, "top_p"),
            (Sampling { min_p: 1.5, ..sound }, "min_p"),
            (Sampling { min_p: f64::NAN, ..sound }, "min_p"),
        ] {
            let error = Sampler::new(&faulty).expect_err("out of range").to_string();
            assert!(error.starts_with(name), "{error}");
        }
    }
}
