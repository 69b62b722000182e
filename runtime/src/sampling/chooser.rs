//! All of sampling for one answer: mask, adjustments, choice, log-probabilities.

use super::adjustments::Seen;
use super::ranking::check_logits;
use super::{Adjustments, MOST_LOGPROBS, Sampler, Sampling, log_probabilities, out_of_range};
use crate::constraint::Allowed;
use crate::error::{Result, RuntimeError};

/// A token of an answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Chosen {
    /// Its id.
    pub id: u32,
    /// Its log-probability, if the request asked for it.
    pub logprob: Option<f32>,
    /// The likeliest tokens and their log-probabilities, likeliest first; as many as asked for.
    /// The chosen one need not be among them.
    pub top: Vec<(u32, f32)>,
}

/// Chooses the tokens of one answer.
#[derive(Debug, Clone)]
pub struct Chooser {
    sampler: Sampler,
    adjustments: Adjustments,
    /// Whether logits are adjusted at all.
    adjusting: bool,
    logprobs: Option<usize>,
    seen: Seen,
    /// Adjusted logits; kept for its memory.
    adjusted: Vec<f32>,
}

impl Chooser {
    /// A chooser with checked settings. `logprobs`: with log-probabilities of each chosen token and
    /// of so many likeliest ones.
    pub fn new(
        sampling: &Sampling,
        adjustments: Adjustments,
        logprobs: Option<usize>,
        prompt: &[u32],
        vocabulary: usize,
    ) -> Result<Self> {
        adjustments.check(vocabulary)?;
        if let Some(count) = logprobs.filter(|&count| count > MOST_LOGPROBS) {
            return out_of_range("logprobs", count, &format!("0 to {MOST_LOGPROBS}"));
        }
        Ok(Self {
            sampler: Sampler::new(sampling)?,
            adjusting: !adjustments.is_none(),
            seen: Seen::new(&adjustments, prompt),
            adjustments,
            logprobs,
            adjusted: Vec::new(),
        })
    }

    /// The seed that repeats this answer; `None` for a greedy one.
    pub fn seed(&self) -> Option<u64> {
        (!self.sampler.sampling().is_greedy()).then(|| self.sampler.seed())
    }

    /// Whether the id of the largest logit is all that this answer needs where everything is
    /// allowed.
    pub fn takes_likeliest(&self) -> bool {
        self.sampler.sampling().is_greedy() && !self.adjusting && self.logprobs.is_none()
    }

    /// Takes the id of the largest logit, found elsewhere.
    ///
    /// # Panics
    /// Unless [`Chooser::takes_likeliest`], in builds with debug assertions.
    pub fn take(&mut self, id: u32) -> Chosen {
        debug_assert!(self.takes_likeliest());
        Chosen { id, logprob: None, top: Vec::new() }
    }

    /// Chooses a token. Errors: a logit that is NaN or infinite; nothing is allowed.
    pub fn choose(&mut self, logits: &[f32], allowed: Allowed<'_>) -> Result<Chosen> {
        let id = if !self.adjusting && allowed == Allowed::Anything {
            self.sampler.sample(logits)?
        } else {
            check_logits(logits)?;
            let logits = if self.adjusting {
                self.adjusted.clear();
                self.adjusted.extend_from_slice(logits);
                self.seen.adjust(&self.adjustments, &mut self.adjusted);
                &self.adjusted
            } else {
                logits
            };
            let id = match allowed {
                Allowed::Anything => Some(self.sampler.sample(logits)?),
                Allowed::Only(words) => self.sampler.sample_among(allowed_tokens(words, logits)),
            };
            id.ok_or(RuntimeError::NothingAllowed)?
        };
        if self.adjusting {
            self.seen.count(id);
        }
        let (logprob, top) = match self.logprobs {
            Some(count) => {
                let (logprob, top) = log_probabilities(logits, id, count);
                (Some(logprob), top)
            }
            None => (None, Vec::new()),
        };
        Ok(Chosen { id, logprob, top })
    }
}

/// The allowed ids and their logits, in the order of the ids.
fn allowed_tokens(words: &[u32], logits: &[f32]) -> impl Iterator<Item = (u32, f32)> {
    words.iter().zip(logits.chunks(32)).enumerate().flat_map(|(number, (&word, logits))| {
        // The last word may have bits beyond the vocabulary.
        let bits = (0..logits.len()).filter(move |bit| word >> bit & 1 == 1);
        bits.map(move |bit| ((32 * number + bit) as u32, logits[bit]))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::{candidates, greedy};
    use proptest::prelude::*;

    const VOCABULARY: usize = 70;

    fn chooser(sampling: Sampling, adjustments: Adjustments, logprobs: Option<usize>) -> Chooser {
        Chooser::new(&sampling, adjustments, logprobs, &[], VOCABULARY).expect("sound settings")
    }

    fn logits() -> impl Strategy<Value = Vec<f32>> {
        prop::collection::vec((-12i8..12).prop_map(|level| f32::from(level) / 2.0), VOCABULARY)
    }

    fn is_allowed(words: &[u32], id: usize) -> bool {
        words.get(id / 32).is_some_and(|word| word >> (id % 32) & 1 == 1)
    }

    proptest! {
        /// A mask is the same as a vocabulary without the other tokens.
        #[test]
        fn masked_choices_are_those_among_the_allowed_tokens(
            logits in logits(),
            words in prop::collection::vec(any::<u32>(), 0..4),
            seed in any::<u64>(),
            temperature in prop_oneof![Just(0.0), 0.2f64..2.0],
            top_k in 0usize..9,
        ) {
            let sampling =
                Sampling { temperature, top_k, seed: Some(seed), top_p: 0.9, ..Sampling::GREEDY };
            let mut masked = chooser(sampling, Adjustments::default(), None);
            let ids: Vec<usize> = (0..VOCABULARY).filter(|&id| is_allowed(&words, id)).collect();
            let kept: Vec<f32> = ids.iter().map(|&id| logits[id]).collect();
            match masked.choose(&logits, Allowed::Only(&words)) {
                Ok(chosen) => {
                    let mut alone = chooser(sampling, Adjustments::default(), None);
                    let place = alone.choose(&kept, Allowed::Anything).expect("finite logits").id;
                    prop_assert_eq!(chosen.id as usize, ids[place as usize]);
                }
                Err(error) => {
                    prop_assert!(ids.is_empty());
                    prop_assert!(matches!(error, RuntimeError::NothingAllowed));
                }
            }
        }

        /// With everything allowed one by one, every answer is the one without a mask.
        #[test]
        fn a_mask_of_everything_changes_nothing(logits in logits(), seed in any::<u64>()) {
            let drawn = Sampling { temperature: 1.0, seed: Some(seed), ..Sampling::GREEDY };
            for sampling in [Sampling::GREEDY, drawn] {
                let mut with = chooser(sampling, Adjustments::default(), Some(3));
                let mut without = with.clone();
                for _ in 0..5 {
                    let expected = without.choose(&logits, Allowed::Anything).expect("finite");
                    let found = with.choose(&logits, Allowed::Only(&[u32::MAX; 3]));
                    prop_assert_eq!(found.expect("finite"), expected);
                }
            }
        }

        /// Log-probabilities are of the model's own logits: no other setting changes them.
        #[test]
        fn logprobs_do_not_depend_on_how_tokens_are_chosen(logits in logits(), seed in any::<u64>()) {
            let adjustments = Adjustments {
                presence_penalty: 1.0,
                logit_bias: vec![(3, 50.0), (7, -100.0)],
                ..Adjustments::default()
            };
            let sampling = Sampling { temperature: 0.5, seed: Some(seed), ..Sampling::GREEDY };
            let mut chooser = chooser(sampling, adjustments, Some(5));
            for _ in 0..4 {
                let chosen = chooser.choose(&logits, Allowed::Only(&[!0, !0])).expect("finite");
                let (logprob, top) = log_probabilities(&logits, chosen.id, 5);
                prop_assert_eq!((chosen.logprob, chosen.top), (Some(logprob), top));
            }
        }
    }

    #[test]
    fn a_bias_bans_and_forces_tokens() {
        let logits: Vec<f32> = (0..VOCABULARY).map(|id| 30.0 - id as f32 / 2.0).collect();
        let biased = |logit_bias| Adjustments { logit_bias, ..Adjustments::default() };
        let mut banned = chooser(Sampling::GREEDY, biased(vec![(0, -100.0)]), None);
        assert_eq!(banned.choose(&logits, Allowed::Anything).expect("finite").id, 1);
        let drawn = Sampling { temperature: 1.0, seed: Some(1), ..Sampling::GREEDY };
        let mut forced = chooser(drawn, biased(vec![(69, 100.0)]), None);
        for _ in 0..100 {
            assert_eq!(forced.choose(&logits, Allowed::Anything).expect("finite").id, 69);
        }
    }

    #[test]
    fn a_frequency_penalty_makes_a_greedy_answer_move_on() {
        let mut logits = vec![0.0; VOCABULARY];
        (logits[5], logits[9]) = (1.2, 1.0);
        let adjustments = Adjustments { frequency_penalty: 0.5, ..Adjustments::default() };
        let mut chooser = chooser(Sampling::GREEDY, adjustments, None);
        let mut ids = Vec::new();
        for _ in 0..5 {
            ids.push(chooser.choose(&logits, Allowed::Anything).expect("finite").id);
        }
        assert_eq!(ids, [5, 9, 5, 9, 5], "1.2, 1.0 | 0.7, 1.0 | 0.7, 0.5 | 0.2, 0.5 | 0.2, 0.0");
    }

    #[test]
    fn plain_requests_take_the_short_way_and_no_others() {
        assert!(chooser(Sampling::GREEDY, Adjustments::default(), None).takes_likeliest());
        assert!(!chooser(Sampling::GREEDY, Adjustments::default(), Some(0)).takes_likeliest());
        let adjusted = Adjustments { presence_penalty: 0.1, ..Adjustments::default() };
        assert!(!chooser(Sampling::GREEDY, adjusted, None).takes_likeliest());
        let drawn = Sampling { temperature: 0.1, ..Sampling::GREEDY };
        assert!(!chooser(drawn, Adjustments::default(), None).takes_likeliest());
    }

    #[test]
    fn broken_logits_are_refused_also_where_they_are_masked() {
        let mut logits = vec![0.0; VOCABULARY];
        logits[40] = f32::NAN;
        let mut chooser = chooser(Sampling::GREEDY, Adjustments::default(), None);
        for allowed in [Allowed::Anything, Allowed::Only(&[1])] {
            let error = chooser.choose(&logits, allowed).expect_err("a NaN").to_string();
            assert!(error.contains("token 40"), "{error}");
        }
        assert!(greedy(&logits).is_err() && candidates(&Sampling::GREEDY, &logits).is_err());
    }

    #[test]
    fn more_logprobs_than_allowed_are_refused_by_name() {
        let none = Adjustments::default();
        let error = Chooser::new(&Sampling::GREEDY, none, Some(21), &[], VOCABULARY)
            .expect_err("21 of 20")
            .to_string();
        assert!(error.contains("logprobs is 21") && error.contains("0 to 20"), "{error}");
    }
}
