//! The seed of an answer and its draws.

use super::draw::{drawn, drawn_of_all};
use super::ranking::check_logits;
use super::{Sampling, greedy};
use crate::error::Result;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::hash::{BuildHasher, RandomState};

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

    /// How it chooses.
    pub fn sampling(&self) -> &Sampling {
        &self.sampling
    }

    /// Chooses a token. Errors: a logit that is NaN or infinite.
    pub fn sample(&mut self, logits: &[f32]) -> Result<u32> {
        if self.sampling.is_greedy() {
            return greedy(logits);
        }
        check_logits(logits)?;
        let draw = self.draw();
        Ok(drawn_of_all(&self.sampling, logits, draw))
    }

    /// Chooses one of some tokens with finite logits, in the order of their ids; `None` if there is
    /// none.
    pub(super) fn sample_among(
        &mut self,
        mut tokens: impl Iterator<Item = (u32, f32)>,
    ) -> Option<u32> {
        let first = tokens.next()?;
        if !self.sampling.is_greedy() {
            let tokens = std::iter::once(first).chain(tokens);
            let draw = self.draw();
            return Some(drawn(&self.sampling, tokens, draw));
        }
        let larger =
            |best: (u32, f32), token: (u32, f32)| if token.1 > best.1 { token } else { best };
        Some(tokens.fold(first, larger).0)
    }

    /// 53 random bits: every f64 in [0, 1) that is a multiple of 2^-53.
    fn draw(&mut self) -> f64 {
        (self.random.next_u64() >> 11) as f64 * 2f64.powi(-53)
    }
}
