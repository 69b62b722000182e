//! Guessing tokens ahead, so that one pass gives several.
//!
//! A decode step reads every weight for a single token, and hardly takes longer for a few. So tokens that
//! may follow are drafted ([`Drafter`]), run behind the certain one in one pass
//! ([`Device::try_tokens`](crate::Device::try_tokens)), and looked at in order: the answer's own chooser
//! takes each row of logits as if it had come alone, and where it chooses another token than the draft
//! has, the rest is dropped. A row has the bits that it has alone, and the chooser the state that it has
//! alone (penalties, constraint, random numbers), so answers do not change, greedy or drawn.
//!
//! | file | what it holds |
//! |---|---|
//! | `ngram.rs` | drafts from what the prompt and the answer have said before |
//! | `account.rs` | what passes cost and bring, and whether a draft is worth one |

mod account;
mod ngram;

pub use ngram::Ngram;

use account::Account;
use std::time::Duration;

/// Whether tokens are guessed ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Speculation {
    /// Never.
    #[default]
    Off,
    /// Whenever prompt or answer have gone on from the same words before.
    Ngram,
    /// So, where measured times and the drafts that were right say that it pays.
    Auto,
}

/// Tokens that may come next.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Draft {
    /// In order; none: nobody knows.
    pub tokens: Vec<u32>,
    /// How many of the last tokens spoke for it; by that it is trusted.
    pub matched: usize,
}

/// Guesses the tokens of one sequence.
pub trait Drafter: Send {
    /// Notes tokens that the sequence has got.
    fn append(&mut self, tokens: &[u32]);

    /// What may come next, `most` tokens at most.
    fn draft(&mut self, most: usize) -> Draft;
}

/// Makes a drafter for a new sequence.
pub type MakeDrafter = fn() -> Box<dyn Drafter>;

/// What was drafted for an answer and what of it was right.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Drafted {
    /// Tokens tried.
    pub drafted: usize,
    /// Those of them that the answer has.
    pub accepted: usize,
}

/// Tokens to run in one pass: the certain one and the drafted.
pub(crate) struct Attempt {
    pub tokens: Vec<u32>,
    matched: usize,
}

/// How an engine guesses, and what it has learnt about that.
pub struct Speculator {
    speculation: Speculation,
    make: MakeDrafter,
    /// Tokens that the device takes in one pass.
    most: usize,
    /// Of answers of likeliest tokens.
    likeliest: Account,
    /// Of all others: a pass hands over its logits, which takes longer, and what is drawn is rarely what was
    /// said before. So what likeliest tokens gain is not lost here again.
    drawn: Account,
}

/// The guesses for one answer.
pub(crate) struct Guesses {
    /// If the answer takes the likeliest token wherever it may.
    is_likeliest: bool,
    /// Made when first asked: an answer that never decodes alone needs none.
    drafter: Option<Box<dyn Drafter>>,
    /// Tokens of the sequence that the drafter knows.
    known: usize,
    pub drafted: Drafted,
}

impl Guesses {
    /// For an answer that takes the likeliest token wherever it may, or one that is drawn.
    pub fn new(is_likeliest: bool) -> Self {
        Self { is_likeliest, drafter: None, known: 0, drafted: Drafted::default() }
    }
}

impl Speculator {
    pub(crate) fn new(speculation: Speculation, make: Option<MakeDrafter>, most: usize) -> Self {
        let make = make.unwrap_or(|| Box::new(Ngram::default()));
        Self { speculation, make, most, likeliest: Account::default(), drawn: Account::cautious() }
    }

    /// What to try behind a sequence of the tokens `before` and `last`, of which the answer may get
    /// `room` more; `None`: a plain step.
    pub(crate) fn attempt(
        &mut self,
        guesses: &mut Guesses,
        before: &[u32],
        last: u32,
        room: usize,
    ) -> Option<Attempt> {
        let most = self.most.min(room).saturating_sub(1);
        if self.speculation == Speculation::Off || most == 0 {
            return None;
        }
        let drafter = guesses.drafter.get_or_insert_with(self.make);
        drafter.append(&before[guesses.known..]);
        drafter.append(&[last]);
        guesses.known = before.len() + 1;
        let Draft { tokens: mut drafted, matched } = drafter.draft(most);
        drafted.truncate(match self.speculation {
            Speculation::Auto => {
                let (account, other) = self.accounts(guesses);
                account.worth(matched, drafted.len(), other)
            }
            _ => most,
        });
        let tokens = [&[last], &drafted[..]].concat();
        (!drafted.is_empty()).then_some(Attempt { tokens, matched })
    }

    /// A plain step has taken so long.
    pub(crate) fn stepped(&mut self, guesses: &Guesses, took: Duration) {
        self.accounts(guesses).0.stepped(took);
    }

    /// A pass has taken so long, and the answer has got `kept` tokens by it, at least one.
    pub(crate) fn tried(
        &mut self,
        guesses: &mut Guesses,
        attempt: &Attempt,
        kept: usize,
        took: Duration,
    ) {
        guesses.drafted.drafted += attempt.tokens.len() - 1;
        guesses.drafted.accepted += kept - 1;
        self.accounts(guesses).0.tried(attempt.matched, attempt.tokens.len(), kept, took);
    }

    /// The account of answers like this one, and the other.
    fn accounts(&mut self, guesses: &Guesses) -> (&mut Account, &mut Account) {
        let Self { likeliest, drawn, .. } = self;
        if guesses.is_likeliest { (likeliest, drawn) } else { (drawn, likeliest) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Is always sure of the same.
    struct Sure;

    impl Drafter for Sure {
        fn append(&mut self, _: &[u32]) {}

        fn draft(&mut self, most: usize) -> Draft {
            Draft { tokens: vec![7; most], matched: 9 }
        }
    }

    /// An answer of `tokens` tokens, for which all guesses are right or all are wrong, on a device that takes
    /// `pass` plain steps for a pass and 0.15 for each token of it. Returns the time beyond that of plain
    /// steps, in those.
    fn lost(
        speculator: &mut Speculator,
        pass: f64,
        is_likeliest: bool,
        tokens: usize,
        right: bool,
    ) -> f64 {
        let time = |tokens: usize| if tokens == 1 { 1.0 } else { pass + 0.15 * tokens as f64 };
        let took = |tokens: usize| Duration::from_secs_f64(1e-3 * time(tokens));
        let mut guesses = Guesses::new(is_likeliest);
        let (mut sequence, mut spent) = (vec![7; 10], 0.0);
        while sequence.len() < 10 + tokens {
            let room = 10 + tokens - sequence.len();
            let (&last, before) = sequence.split_last().expect("a prompt");
            let (run, kept) = match speculator.attempt(&mut guesses, before, last, room) {
                None => {
                    speculator.stepped(&guesses, took(1));
                    (1, 1)
                }
                Some(attempt) => {
                    let run = attempt.tokens.len();
                    let kept = if right { run } else { 1 };
                    speculator.tried(&mut guesses, &attempt, kept, took(run));
                    (run, kept)
                }
            };
            spent += time(run);
            sequence.resize(sequence.len() + kept, 7);
        }
        spent - tokens as f64
    }

    /// Three greedy answers that can be guessed in front of each drawn one that cannot.
    #[test]
    fn what_greedy_answers_gain_drawn_ones_do_not_lose() {
        let mut speculator = Speculator::new(Speculation::Auto, Some(|| Box::new(Sure)), 8);
        let mut drawn = 0.0;
        for answer in 1..=10 {
            for _ in 0..3 {
                assert!(lost(&mut speculator, 1.35, true, 64, true) < -32.0, "guesses pay");
            }
            drawn += lost(&mut speculator, 1.35, false, 20, false);
            let share = drawn / (20 * answer) as f64;
            assert!(share <= 0.02, "{share} of {answer} answers");
        }
    }

    /// Where a step is shorter than a launch, a pass takes three; greedy answers have found that out.
    #[test]
    fn what_greedy_answers_lost_drawn_ones_do_not_lose_again() {
        let mut speculator = Speculator::new(Speculation::Auto, Some(|| Box::new(Sure)), 8);
        assert!(lost(&mut speculator, 3.0, true, 64, false) > 0.0, "a pass is tried");
        for _ in 0..20 {
            assert_eq!(lost(&mut speculator, 3.0, false, 20, false), 0.0);
        }
    }

    #[test]
    fn the_first_drawn_answers_lose_little_whatever_a_pass_takes() {
        for pass in [0.9, 1.35, 3.0] {
            let mut speculator = Speculator::new(Speculation::Auto, Some(|| Box::new(Sure)), 8);
            let lost = lost(&mut speculator, pass, false, 150, false);
            assert!(lost <= 0.03 * 150.0, "{pass}: {lost}");
        }
    }
}
