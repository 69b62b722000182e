//! What came next the last time: the sequence's end is looked up in the sequence itself.

use super::{Draft, Drafter};

/// Tokens that must agree: behind a single one almost anything has come.
const LEAST_MATCH: usize = 2;
/// Tokens that are compared at most; longer matches are as good.
const MOST_MATCH: usize = 16;
/// Earlier places that are compared at most, the latest first, so that no text makes a draft slow.
const MOST_PLACES: usize = 64;

/// Drafts by lookup: of the earlier places that end as the sequence does, the one that agrees longest, and
/// of these the latest; what followed there is the draft.
///
/// Places are chained by a hash of their last two tokens, which is a few times as fast as a map of pairs: a
/// prompt of 131,072 tokens is noted in 2.5 ms.
#[derive(Debug, Clone, Default)]
pub struct Ngram {
    tokens: Vec<u32>,
    /// By hash: behind which position it was last; 0: nowhere. A power of two of them.
    latest: Vec<u32>,
    /// By position, the one behind the first token first: behind which one the same hash was before.
    earlier: Vec<u32>,
}

impl Drafter for Ngram {
    fn append(&mut self, tokens: &[u32]) {
        self.tokens.extend_from_slice(tokens);
        if self.tokens.len() > self.latest.len() {
            self.latest = vec![0; (2 * self.tokens.len()).next_power_of_two()];
            self.earlier.clear();
        }
        for end in self.earlier.len() + 1..=self.tokens.len() {
            let before = match self.tokens[..end] {
                [.., one, other] => {
                    let place = hash(one, other) & (self.latest.len() - 1);
                    std::mem::replace(&mut self.latest[place], end as u32)
                }
                _ => 0,
            };
            self.earlier.push(before);
        }
    }

    fn draft(&mut self, most: usize) -> Draft {
        let (mut matched, mut best) = (LEAST_MATCH - 1, 0);
        let mut place = self.earlier.last().copied().unwrap_or(0) as usize;
        for _ in 0..MOST_PLACES {
            if place == 0 || matched == MOST_MATCH {
                break;
            }
            let here = self.matched(place);
            if here > matched {
                (matched, best) = (here, place);
            }
            place = self.earlier[place - 1] as usize;
        }
        if best == 0 {
            return Draft::default();
        }
        // What followed there may reach into the draft itself: then it goes round.
        let period = self.tokens.len() - best;
        let tokens = (0..most).map(|next| self.tokens[best + next % period]).collect();
        Draft { tokens, matched }
    }
}

impl Ngram {
    /// How many tokens before `end` are those at the sequence's end.
    fn matched(&self, end: usize) -> usize {
        let (before, all) = (&self.tokens[..end], &self.tokens);
        let same = before.iter().rev().zip(all.iter().rev()).take_while(|(a, b)| a == b);
        same.take(MOST_MATCH).count()
    }
}

/// Two ids, mixed; the middle bits of a product depend on all of both.
fn hash(one: u32, other: u32) -> usize {
    let both = u64::from(one) << 32 | u64::from(other);
    (both.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn drafted(tokens: &[u32], most: usize) -> Draft {
        let mut ngram = Ngram::default();
        ngram.append(tokens);
        ngram.draft(most)
    }

    /// Every earlier end, compared as far as it goes.
    fn slowly(tokens: &[u32], most: usize) -> Draft {
        let matched = |end: usize| {
            let longest = (0..=end.min(MOST_MATCH)).rev();
            let mut agreeing =
                longest.filter(|&n| tokens[end - n..end] == tokens[tokens.len() - n..]);
            agreeing.next().unwrap_or(0)
        };
        let ends = (1..tokens.len()).filter(|&end| matched(end) >= LEAST_MATCH);
        let Some(end) = ends.max_by_key(|&end| (matched(end), end)) else {
            return Draft::default();
        };
        let mut all = tokens.to_vec();
        (0..most).for_each(|next| all.push(all[end + next]));
        Draft { tokens: all.split_off(tokens.len()), matched: matched(end) }
    }

    proptest! {
        #[test]
        fn drafts_are_those_of_a_slow_search(
            tokens in prop::collection::vec(0u32..4, 0..60),
            most in 1usize..9,
        ) {
            prop_assert_eq!(drafted(&tokens, most), slowly(&tokens, most));
        }

        /// A sequence that comes in pieces is the same sequence.
        #[test]
        fn appending_in_pieces_changes_nothing(
            tokens in prop::collection::vec(0u32..3, 0..40),
            cut in 0usize..40,
        ) {
            let (front, back) = tokens.split_at(cut.min(tokens.len()));
            let mut ngram = Ngram::default();
            ngram.append(front);
            ngram.draft(3);
            ngram.append(back);
            prop_assert_eq!(ngram.draft(7), drafted(&tokens, 7));
        }
    }

    #[test]
    fn the_longest_match_goes_before_the_latest() {
        let tokens = [1, 2, 3, 10, 9, 2, 3, 11, 1, 2, 3];
        assert_eq!(drafted(&tokens, 2), Draft { tokens: vec![10, 9], matched: 3 });
    }

    #[test]
    fn what_repeats_is_drafted_beyond_its_end() {
        let tokens = [7, 1, 2, 1, 2, 1, 2];
        assert_eq!(drafted(&tokens, 5).tokens, [1, 2, 1, 2, 1]);
    }

    #[test]
    fn nothing_is_drafted_where_nothing_repeats() {
        for tokens in [&[][..], &[1], &[1, 1], &[1, 2, 3, 4], &[1, 2, 9, 2]] {
            assert_eq!(drafted(tokens, 7), Draft::default(), "{tokens:?}");
        }
    }
}
