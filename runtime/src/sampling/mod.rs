//! How a token is chosen from logits.
//!
//! The order, of which a request pays only for the parts it asks for:
//!
//! 1. Log-probabilities are read off the logits as the model made them, before everything below:
//!    they say what the model thinks and not how it is sampled (as vLLM's default does).
//! 2. The constraint's mask: what is not allowed takes no further part.
//! 3. [`Adjustments`]: repetition penalty, then frequency and presence penalty, then logit bias.
//! 4. Greedy: the largest logit, ties to the lowest id. Else, in transformers' order: temperature,
//!    top-k, top-p, min-p, and a draw from what is left.
//!
//! | file | what it holds |
//! |---|---|
//! | `ranking.rs` | the largest logits of many |
//! | `candidates.rs` | temperature, top-k, top-p, min-p: the tokens that may be drawn |
//! | `draw.rs` | the token that a random number stands for |
//! | `sampler.rs` | the seed and its random numbers |
//! | `adjustments.rs` | penalties and bias |
//! | `logprobs.rs` | log-probabilities |
//! | `chooser.rs` | the whole order above, for one answer |

mod adjustments;
mod candidates;
mod chooser;
mod draw;
mod logprobs;
mod ranking;
mod sampler;
#[cfg(test)]
mod tests;

pub use adjustments::Adjustments;
pub use candidates::{Candidate, candidates};
pub use chooser::{Chooser, Chosen};
pub use logprobs::{MOST_LOGPROBS, log_probabilities};
pub use ranking::greedy;
pub use sampler::Sampler;

use crate::error::{Result, RuntimeError};

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
        if !(0.0..=100.0).contains(&self.temperature) {
            return out_of_range(
                "temperature",
                self.temperature,
                "a number from 0 (greedy) to 100",
            );
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return out_of_range("top_p", self.top_p, "a number above 0, at most 1 (all tokens)");
        }
        if !(0.0..=1.0).contains(&self.min_p) {
            return out_of_range("min_p", self.min_p, "a number from 0 (all tokens) to 1");
        }
        Ok(())
    }
}

fn out_of_range<T>(name: &'static str, value: impl ToString, expected: &str) -> Result<T> {
    Err(RuntimeError::Setting { name, value: value.to_string(), expected: expected.into() })
}
