//! The token that a random number stands for.

use super::Sampling;
use super::candidates::{
    Candidate, candidates_of, count_of_top_p, keep_min_p, least_of_min_p, weight,
};
use super::ranking::{RUN, largest, likeliest, likeliest_of_all};

/// The token that `draw`, in 0..1, stands for: of those that top-k or top-p leave, likeliest first; where
/// neither is asked for, of all in the order of their ids, for which nothing has to be ranked.
pub(super) fn drawn(
    sampling: &Sampling,
    tokens: impl Iterator<Item = (u32, f32)>,
    draw: f64,
) -> u32 {
    if sampling.top_k > 0 {
        return drawn_of(sampling, likeliest(tokens, sampling.top_k), draw);
    }
    let tokens: Vec<(u32, f32)> = tokens.collect();
    let logits = || tokens.iter().map(|&(_, logit)| logit);
    if sampling.top_p < 1.0 {
        return drawn_by_top_p(sampling, logits(), &|n| likeliest(tokens.iter().copied(), n), draw);
    }
    let largest = logits().fold(f32::NEG_INFINITY, f32::max);
    let at = drawn_in_order(sampling, tokens.len(), largest, &|at| tokens[at].1, draw);
    tokens[at].0
}

/// The same of a whole vocabulary.
pub(super) fn drawn_of_all(sampling: &Sampling, logits: &[f32], draw: f64) -> u32 {
    if sampling.top_k > 0 {
        return drawn_of(sampling, likeliest_of_all(logits, sampling.top_k), draw);
    }
    if sampling.top_p < 1.0 {
        let all = logits.iter().copied();
        return drawn_by_top_p(sampling, all, &|count| likeliest_of_all(logits, count), draw);
    }
    let largest = logits[largest(logits)];
    drawn_in_order(sampling, logits.len(), largest, &|at| logits[at], draw) as u32
}

fn drawn_of(sampling: &Sampling, ranked: Vec<(u32, f32)>, draw: f64) -> u32 {
    let candidates = candidates_of(sampling, ranked);
    // Rounding in the sum of probabilities: the draw fell behind the last one.
    at(&candidates, draw).unwrap_or(candidates[candidates.len() - 1].id)
}

/// Tokens that are ranked at first.
const HEAD: usize = 1024;

/// The same with top-p: sorting a whole vocabulary takes longer than a GPU takes for a token, so the likeliest
/// are ranked until they are enough, eight times as many each time.
fn drawn_by_top_p(
    sampling: &Sampling,
    logits: impl ExactSizeIterator<Item = f32>,
    likeliest: &dyn Fn(usize) -> Vec<(u32, f32)>,
    draw: f64,
) -> u32 {
    let (all, mut count) = (logits.len(), HEAD);
    let weight = weight(sampling, likeliest(1)[0].1);
    let sum: f64 = if all > HEAD { logits.map(&weight).sum() } else { 0.0 };
    while count < all {
        let mut kept: Vec<Candidate> = likeliest(count)
            .into_iter()
            .map(|(id, logit)| Candidate { id, probability: weight(logit) / sum })
            .collect();
        let reached = count_of_top_p(sampling, &kept);
        if reached.is_some() || kept[count - 1].probability < least_of_min_p(sampling, &kept) {
            kept.truncate(reached.unwrap_or(count));
            keep_min_p(sampling, &mut kept);
            return at(&kept, draw).unwrap_or(kept[kept.len() - 1].id);
        }
        count *= 8;
    }
    drawn_of(sampling, likeliest(usize::MAX), draw)
}

/// The place, of `count`, that the draw falls to where every token has its share of 0..1 but those that min-p
/// drops.
fn drawn_in_order(
    sampling: &Sampling,
    count: usize,
    largest: f32,
    logit: &dyn Fn(usize) -> f32,
    draw: f64,
) -> usize {
    let weight = weight(sampling, largest);
    // The likeliest one's weight is 1.
    let share = |at: usize| Some(weight(logit(at))).filter(|&w| w >= sampling.min_p).unwrap_or(0.0);
    let runs = || (0..count).step_by(RUN).map(|first| first..count.min(first + RUN));
    let sums: Vec<f64> = runs().map(|run| run.map(share).sum()).collect();
    let (mut rest, mut last) = (draw * sums.iter().sum::<f64>(), 0);
    for (run, sum) in runs().zip(sums) {
        if rest >= sum {
            rest -= sum;
            continue;
        }
        for at in run {
            let share = share(at);
            if rest < share {
                return at;
            }
            if share > 0.0 {
                last = at;
            }
            rest -= share;
        }
    }
    // Rounding in the sums: the draw fell behind the last one.
    last
}

/// The candidate in whose share of 0..1 the draw lies.
fn at(candidates: &[Candidate], mut draw: f64) -> Option<u32> {
    for candidate in candidates {
        if draw < candidate.probability {
            return Some(candidate.id);
        }
        draw -= candidate.probability;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::candidates;
    use proptest::prelude::*;

    proptest! {
        /// How many are ranked first is a matter of speed: every draw is that of the whole ranking.
        #[test]
        fn a_draw_among_the_first_is_the_draw_among_all(
            levels in prop::collection::vec(-400i16..400, 1025..2500),
            temperature in 0.1f64..20.0,
            top_p in 0.3f64..1.0,
            min_p in prop_oneof![Just(0.0), 0.0f64..0.2],
            draws in prop::collection::vec(0.0f64..1.0, 20),
        ) {
            let sampling = Sampling { temperature, top_p, min_p, ..Sampling::GREEDY };
            let logits: Vec<f32> = levels.into_iter().map(|level| f32::from(level) / 16.0).collect();
            let tokens = || (0..).zip(logits.iter().copied());
            let all = candidates_of(&sampling, likeliest(tokens(), usize::MAX));
            for draw in draws {
                let expected = at(&all, draw).unwrap_or(all[all.len() - 1].id);
                prop_assert_eq!(drawn(&sampling, tokens(), draw), expected);
                prop_assert_eq!(drawn_of_all(&sampling, &logits, draw), expected);
            }
        }

        /// With nothing ranked: the candidates' probabilities, in the order of the ids.
        #[test]
        fn an_unranked_draw_has_the_candidates_shares_in_the_order_of_their_ids(
            levels in prop::collection::vec(-400i16..400, 1..300),
            temperature in 0.1f64..20.0,
            min_p in prop_oneof![Just(0.0), 0.0f64..0.9],
            draws in prop::collection::vec(0.0f64..1.0, 20),
        ) {
            let sampling = Sampling { temperature, min_p, ..Sampling::GREEDY };
            let logits: Vec<f32> = levels.into_iter().map(|level| f32::from(level) / 16.0).collect();
            let tokens = || (7..).zip(logits.iter().copied());
            let mut all = candidates(&sampling, &logits).expect("finite");
            all.sort_by_key(|candidate| candidate.id);
            for draw in draws {
                let expected = at(&all, draw).unwrap_or(all[all.len() - 1].id);
                prop_assert_eq!(drawn_of_all(&sampling, &logits, draw), expected);
                prop_assert_eq!(drawn(&sampling, tokens(), draw), expected + 7);
            }
        }
    }
}
