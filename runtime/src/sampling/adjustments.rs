//! Penalties and bias: what a request changes about the logits before a token is chosen.

use super::out_of_range;
use crate::error::Result;
use std::collections::{HashMap, HashSet};

/// What is added to, taken from or multiplied into logits. The default changes nothing.
#[derive(Debug, Clone, PartialEq)]
pub struct Adjustments {
    /// Taken once from the logit of every token that the answer holds already. OpenAI's.
    pub presence_penalty: f64,
    /// Taken from a token's logit for each time that the answer holds it. OpenAI's.
    pub frequency_penalty: f64,
    /// Divides the positive and multiplies the negative logits of tokens that the prompt or the
    /// answer holds; 1 changes nothing. transformers'.
    pub repetition_penalty: f64,
    /// Added to the logits of these tokens, each named once. OpenAI's.
    pub logit_bias: Vec<(u32, f32)>,
}

impl Default for Adjustments {
    fn default() -> Self {
        Self {
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_penalty: 1.0,
            logit_bias: Vec::new(),
        }
    }
}

impl Adjustments {
    /// Whether every logit stays as it is.
    pub fn is_none(&self) -> bool {
        let Self { presence_penalty, frequency_penalty, repetition_penalty, logit_bias } = self;
        *presence_penalty == 0.0
            && *frequency_penalty == 0.0
            && *repetition_penalty == 1.0
            && logit_bias.iter().all(|&(_, bias)| bias == 0.0)
    }

    /// Checks every setting's range; an error names the setting.
    pub fn check(&self, vocabulary: usize) -> Result<()> {
        for (name, penalty) in [
            ("presence_penalty", self.presence_penalty),
            ("frequency_penalty", self.frequency_penalty),
        ] {
            if !(-2.0..=2.0).contains(&penalty) {
                return out_of_range(name, penalty, "a number from -2 to 2 (0: none)");
            }
        }
        let repetition = self.repetition_penalty;
        if !(repetition > 0.0 && repetition <= 10.0) {
            let expected = "a number above 0, at most 10 (1: none)";
            return out_of_range("repetition_penalty", repetition, expected);
        }
        let mut named = HashSet::new();
        for &(id, bias) in &self.logit_bias {
            if !(-100.0..=100.0).contains(&bias) {
                let value = format!("{bias} for token {id}");
                return out_of_range("logit_bias", value, "numbers from -100 to 100");
            }
            if id as usize >= vocabulary {
                let expected = format!("tokens below {vocabulary}, the size of the vocabulary");
                return out_of_range("logit_bias", format!("given for token {id}"), &expected);
            }
            if !named.insert(id) {
                let value = format!("given twice for token {id}");
                return out_of_range("logit_bias", value, "one number for a token");
            }
        }
        Ok(())
    }
}

/// The tokens so far, as penalties count them.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    /// How often the answer holds a token; 0 for those of the prompt alone.
    counts: HashMap<u32, u32>,
}

impl Seen {
    /// Only a repetition penalty looks at the prompt.
    pub fn new(adjustments: &Adjustments, prompt: &[u32]) -> Self {
        let counted = if adjustments.repetition_penalty == 1.0 { &[] } else { prompt };
        Self { counts: counted.iter().map(|&id| (id, 0)).collect() }
    }

    /// Counts a generated token.
    pub fn count(&mut self, id: u32) {
        *self.counts.entry(id).or_default() += 1;
    }

    /// Changes the logits of tokens seen and of those with a bias. Ids beyond the logits have none.
    pub fn adjust(&self, adjustments: &Adjustments, logits: &mut [f32]) {
        for (&id, &count) in &self.counts {
            let Some(logit) = logits.get_mut(id as usize) else { continue };
            let value = f64::from(*logit);
            let repeated = match value > 0.0 {
                true => value / adjustments.repetition_penalty,
                false => value * adjustments.repetition_penalty,
            };
            let present = if count > 0 { adjustments.presence_penalty } else { 0.0 };
            *logit = finite(repeated - present - f64::from(count) * adjustments.frequency_penalty);
        }
        for &(id, bias) in &adjustments.logit_bias {
            let Some(logit) = logits.get_mut(id as usize) else { continue };
            *logit = finite(f64::from(*logit) + f64::from(bias));
        }
    }
}

/// The nearest f32 that can still be compared and subtracted.
fn finite(value: f64) -> f32 {
    value.clamp(f64::from(f32::MIN), f64::from(f32::MAX)) as f32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    prop_compose! {
        fn adjustments()(
            presence_penalty in -2.0f64..=2.0,
            frequency_penalty in -2.0f64..=2.0,
            repetition_penalty in prop_oneof![Just(1.0), 0.1f64..3.0],
            bias in prop::collection::btree_map(0u32..20, -100.0f32..100.0, 0..4),
        ) -> Adjustments {
            let logit_bias = bias.into_iter().collect();
            Adjustments { presence_penalty, frequency_penalty, repetition_penalty, logit_bias }
        }
    }

    proptest! {
        /// The three definitions, written down for every token of the vocabulary.
        #[test]
        fn adjusted_logits_are_those_of_the_definitions(
            adjustments in adjustments(),
            logits in prop::collection::vec(-30.0f32..30.0, 20),
            prompt in prop::collection::vec(0u32..20, 0..6),
            answer in prop::collection::vec(0u32..20, 0..9),
        ) {
            adjustments.check(20).expect("in range");
            let mut seen = Seen::new(&adjustments, &prompt);
            answer.iter().for_each(|&id| seen.count(id));
            let mut found = logits.clone();
            seen.adjust(&adjustments, &mut found);
            for (id, (&logit, &found)) in (0u32..).zip(logits.iter().zip(&found)) {
                let mut expected = f64::from(logit);
                // transformers: score < 0 ? score * penalty : score / penalty, where it occurs.
                if prompt.contains(&id) || answer.contains(&id) {
                    let penalty = adjustments.repetition_penalty;
                    expected = if expected < 0.0 { expected * penalty } else { expected / penalty };
                }
                // OpenAI: mu - c * frequency - (c > 0) * presence, c counted in the answer.
                let count = answer.iter().filter(|&&token| token == id).count() as f64;
                expected -= count * adjustments.frequency_penalty;
                expected -= f64::from(u8::from(count > 0.0)) * adjustments.presence_penalty;
                let bias = adjustments.logit_bias.iter().find(|(biased, _)| *biased == id);
                expected += bias.map_or(0.0, |&(_, bias)| f64::from(bias));
                prop_assert!((f64::from(found) - expected).abs() <= 1e-4, "token {id}");
            }
        }
    }

    #[test]
    fn nothing_asked_for_is_nothing_done() {
        let none = Adjustments::default();
        assert!(none.is_none());
        none.check(1).expect("in range");
        let mut seen = Seen::new(&none, &[0, 1]);
        seen.count(1);
        let mut logits = [0.1, -0.2];
        seen.adjust(&none, &mut logits);
        assert_eq!(logits, [0.1, -0.2]);
        let nothing = Adjustments { logit_bias: vec![(3, 0.0)], ..none };
        assert!(nothing.is_none(), "a bias of 0 changes nothing");
    }

    #[test]
    fn settings_out_of_range_are_named() {
        let sound = Adjustments::default;
        for (faulty, words) in [
            (Adjustments { presence_penalty: 2.1, ..sound() }, ["presence_penalty is 2.1", "-2"]),
            (Adjustments { presence_penalty: f64::NAN, ..sound() }, ["presence_penalty", "NaN"]),
            (Adjustments { frequency_penalty: -3.0, ..sound() }, ["frequency_penalty is -3", "2"]),
            (Adjustments { repetition_penalty: 0.0, ..sound() }, ["repetition_penalty is 0", "10"]),
            (Adjustments { repetition_penalty: 11.0, ..sound() }, ["repetition_penalty", "11"]),
            (Adjustments { logit_bias: vec![(1, 101.0)], ..sound() }, ["logit_bias", "token 1"]),
            (Adjustments { logit_bias: vec![(1, f32::NAN)], ..sound() }, ["logit_bias", "NaN"]),
            (Adjustments { logit_bias: vec![(9, 1.0)], ..sound() }, ["logit_bias", "below 9"]),
            (Adjustments { logit_bias: vec![(1, 1.0); 2], ..sound() }, ["logit_bias", "twice"]),
        ] {
            let error = faulty.check(9).expect_err("out of range").to_string();
            assert!(words.iter().all(|word| error.contains(word)), "{error}");
        }
    }

    #[test]
    fn the_largest_bias_bans_and_forces_without_leaving_the_numbers() {
        let adjustments = Adjustments {
            repetition_penalty: 10.0,
            logit_bias: vec![(0, 100.0), (1, -100.0)],
            ..Adjustments::default()
        };
        let seen = Seen::new(&adjustments, &[0, 1]);
        let mut logits = [f32::MAX, f32::MIN];
        seen.adjust(&adjustments, &mut logits);
        assert!(logits.iter().all(|logit| logit.is_finite()), "{logits:?}");
    }
}
