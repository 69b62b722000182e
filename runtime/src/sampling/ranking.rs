//! The largest of many logits: the first, and the first few in order.

use crate::error::{Result, RuntimeError};

/// The id of the largest logit, the lowest one of equals.
pub fn greedy(logits: &[f32]) -> Result<u32> {
    check_logits(logits)?;
    Ok(largest(logits) as u32)
}

/// The place of the largest logit, the first one of equals.
pub(super) fn largest(logits: &[f32]) -> usize {
    let (mut best, mut largest) = (0, f32::NEG_INFINITY);
    for (number, run) in logits.chunks(RUN).enumerate() {
        // A run that only equals it has nothing better.
        if !reaches(run, largest) {
            continue;
        }
        for (id, &logit) in (number * RUN..).zip(run) {
            if logit > largest {
                (best, largest) = (id, logit);
            }
        }
    }
    best
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

/// The `count` tokens of the largest logits, largest first (ties: lowest id first).
pub(super) fn likeliest(tokens: impl Iterator<Item = (u32, f32)>, count: usize) -> Vec<(u32, f32)> {
    let mut ranking = Ranking::new(count);
    tokens.for_each(|token| ranking.add(token));
    ranking.finish()
}

/// Logits that are passed by together.
pub(super) const RUN: usize = 64;

/// Whether one of them is not below `least`. Without an early exit, so that many are looked at at once.
fn reaches(run: &[f32], least: f32) -> bool {
    run.iter().fold(false, |reached, &logit| reached | (logit >= least))
}

/// The same of a whole vocabulary: runs that hold none of the largest so far, nearly all of them, are passed by
/// at once.
pub(super) fn likeliest_of_all(logits: &[f32], count: usize) -> Vec<(u32, f32)> {
    let mut ranking = Ranking::new(count);
    for (number, run) in logits.chunks(RUN).enumerate() {
        let largest =
            run.iter().fold(
                f32::NEG_INFINITY,
                |largest, &logit| {
                    if logit > largest { logit } else { largest }
                },
            );
        if largest < ranking.least {
            continue;
        }
        let first = (number * RUN) as u32;
        (first..).zip(run).for_each(|(id, &logit)| ranking.add((id, logit)));
    }
    ranking.finish()
}

/// The likeliest of the tokens added so far, and few others: what is below the `count` largest is passed by with
/// one comparison.
struct Ranking {
    kept: Vec<(u32, f32)>,
    /// Logits below are of none of the `count` likeliest.
    least: f32,
    count: usize,
}

impl Ranking {
    fn new(count: usize) -> Self {
        Self { kept: Vec::new(), least: f32::NEG_INFINITY, count }
    }

    fn add(&mut self, token: (u32, f32)) {
        if token.1 < self.least || self.count == 0 {
            return;
        }
        self.kept.push(token);
        if self.kept.len() >= self.count.saturating_mul(4) {
            self.cut();
            self.least = self.kept[self.count - 1].1;
        }
    }

    fn cut(&mut self) {
        if self.count < self.kept.len() {
            self.kept.select_nth_unstable_by(self.count - 1, Self::order);
            self.kept.truncate(self.count);
        }
    }

    fn finish(mut self) -> Vec<(u32, f32)> {
        self.cut();
        self.kept.sort_unstable_by(Self::order);
        self.kept
    }

    fn order(a: &(u32, f32), b: &(u32, f32)) -> std::cmp::Ordering {
        b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
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
            let logits: Vec<f32> = tokens.iter().map(|&(_, logit)| logit).collect();
            for found in [likeliest(tokens.into_iter(), count), likeliest_of_all(&logits, count)] {
                prop_assert_eq!(found.len(), sorted.len());
                for (found, expected) in found.iter().zip(&sorted) {
                    let bits = |token: &(u32, f32)| (token.0, token.1.to_bits());
                    prop_assert_eq!(bits(found), bits(expected));
                }
            }
        }

        #[test]
        fn the_largest_is_the_first_of_the_largest(
            levels in prop::collection::vec(-9i8..9, 1..300),
        ) {
            let logits: Vec<f32> = levels.iter().map(|&level| f32::from(level)).collect();
            let most = levels.iter().max().expect("there are some");
            let expected = levels.iter().position(|level| level == most).expect("it is one of them");
            prop_assert_eq!(greedy(&logits).expect("finite"), expected as u32);
        }
    }
}
