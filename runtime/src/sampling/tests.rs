//! Sampling against its definition.

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
