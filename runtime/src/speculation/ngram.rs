//! What came next the last time: the sequence's end is looked up in the sequence itself.

use super::{Draft, Drafter};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Tokens that must agree: behind a single one almost anything has come.
const LEAST_MATCH: usize = 2;
/// Tokens that are compared at most; longer matches are as good.
const MOST_MATCH: usize = 16;
/// Earlier places that are compared at most, the latest first, so that no text makes a draft slow.
const MOST_PLACES: usize = 64;

/// Drafts by lookup: of the earlier places that end as the sequence does, the one that agrees longest, and
/// of these the latest; what followed there is the draft.
#[derive(Debug, Clone, Default)]
pub struct Ngram {
    tokens: Vec<u32>,
    /// By two neighbouring tokens: behind which position they were last.
    latest: HashMap<u64, usize, BuildHasherDefault<Mixed>>,
    /// By position behind two tokens: behind which one the same two were before that.
    earlier: Vec<Option<usize>>,
}

/// Hashes of two ids in one number: a prompt of 131,072 tokens is looked up in 2 ms, and not in 10.
#[derive(Debug, Clone, Copy, Default)]
struct Mixed(u64);

impl Hasher for Mixed {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(u64::from(byte)));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }
}

impl Drafter for Ngram {
    fn append(&mut self, tokens: &[u32]) {
        self.latest.reserve(tokens.len());
        self.earlier.reserve(tokens.len());
        for &token in tokens {
            self.tokens.push(token);
            let end = self.tokens.len();
            let before = self.last_pair().and_then(|pair| self.latest.insert(pair, end));
            self.earlier.push(before);
        }
    }

    fn draft(&mut self, most: usize) -> Draft {
        let mut best = None;
        let mut place = self.earlier.last().copied().flatten();
        for _ in 0..MOST_PLACES {
            let Some(end) = place else { break };
            let matched = self.matched(end);
            if best.is_none_or(|(longest, _)| matched > longest) {
                best = Some((matched, end));
            }
            if matched == MOST_MATCH {
                break;
            }
            place = self.earlier[end - 1];
        }
        let Some((matched, end)) = best else { return Draft::default() };
        // What followed there may reach into the draft itself: then it goes round.
        let period = self.tokens.len() - end;
        let tokens = (0..most).map(|next| self.tokens[end + next % period]).collect();
        Draft { tokens, matched }
    }
}

impl Ngram {
    fn last_pair(&self) -> Option<u64> {
        let [one, other]: [u32; LEAST_MATCH] = *self.tokens.last_chunk()?;
        Some(u64::from(one) << 32 | u64::from(other))
    }

    /// How many tokens before `end` are those at the sequence's end.
    fn matched(&self, end: usize) -> usize {
        let (before, all) = (&self.tokens[..end], &self.tokens);
        let same = before.iter().rev().zip(all.iter().rev()).take_while(|(a, b)| a == b);
        same.take(MOST_MATCH).count()
    }
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

    /// `cargo test --release … -- --ignored --nocapture`: what a long prompt costs.
    #[test]
    #[ignore = "measures"]
    fn time_of_a_long_prompt() {
        let tokens: Vec<u32> =
            (0..131_072u32).map(|i| i.wrapping_mul(2_654_435_761) >> 14).collect();
        let begin = std::time::Instant::now();
        let mut ngram = Ngram::default();
        ngram.append(&tokens);
        println!("{:?}", begin.elapsed());
    }

    #[test]
    fn nothing_is_drafted_where_nothing_repeats() {
        for tokens in [&[][..], &[1], &[1, 1], &[1, 2, 3, 4], &[1, 2, 9, 2]] {
            assert_eq!(drafted(tokens, 7), Draft::default(), "{tokens:?}");
        }
    }
}
