//! What is computed between products, by every instruction set: against plain f64, and against the
//! others bit for bit.

use half::{bf16, f16};
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng};
use w4pack_kernels::cpu::{CacheNumber, Heads, Kernels, POSITIONS, Partial, Segment};

/// Numbers of mean 0, some of them large.
fn numbers(rng: &mut TestRng, count: usize, size: f32) -> Vec<f32> {
    let number = |_| {
        let unit = rng.random::<f32>() * 2.0 - 1.0;
        unit * size * if rng.random::<u8>() < 3 { 8.0 } else { 1.0 }
    };
    (0..count).map(number).collect()
}

fn rng() -> TestRng {
    TestRng::deterministic_rng(RngAlgorithm::ChaCha)
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|number| number.to_bits()).collect()
}

/// The results of all instruction sets, which must be the same bits.
fn agreed(name: &str, mut result: impl FnMut(&Kernels) -> Vec<f32>) -> Vec<f32> {
    let mut all = Kernels::available().into_iter().map(|kernels| (kernels.name(), result(kernels)));
    let (_, first) = all.next().expect("the portable one");
    for (other, found) in all {
        assert_eq!(bits(&found), bits(&first), "{name}: {other} differs from portable");
    }
    first
}

#[test]
fn gelu_and_softcap_are_those_of_f64() {
    let mut rng = rng();
    for length in [1, 15, 16, 17, 32, 100, 6144] {
        let (gate, other) = (numbers(&mut rng, length, 4.0), numbers(&mut rng, length, 1.0));
        let found = agreed("gelu", |kernels| {
            let mut gate = gate.clone();
            kernels.gelu_times(&mut gate, &other);
            gate
        });
        for ((&x, &other), &found) in gate.iter().zip(&other).zip(&found) {
            let x = f64::from(x);
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
            let expected = 0.5 * x * (1.0 + inner.tanh()) * f64::from(other);
            // Relative where it is not tiny: far below zero GELU is nothing in f32 either.
            let tolerance = 4e-6 * expected.abs() + 1e-8;
            assert!((f64::from(found) - expected).abs() <= tolerance, "{x}: {found}, {expected}");
        }
        let found = agreed("softcap", |kernels| {
            let mut capped: Vec<f32> = gate.iter().map(|x| x * 10.0).collect();
            kernels.soft_cap(&mut capped, 30.0);
            capped
        });
        for (&x, &found) in gate.iter().zip(&found) {
            let expected = (f64::from(x * 10.0) / 30.0).tanh() * 30.0;
            assert!((f64::from(found) - expected).abs() <= 1e-5, "{x}: {found}, {expected}");
        }
    }
}

#[test]
fn what_is_no_number_stays_none_and_the_largest_do_not_overflow() {
    for x in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 3e38, -3e38, 90.0, -90.0, 0.0, -0.0] {
        let found = agreed("extremes", |kernels| {
            let mut gate = vec![x; 20];
            kernels.gelu_times(&mut gate, &[1.0; 20]);
            let mut capped = vec![x; 20];
            kernels.soft_cap(&mut capped, 30.0);
            [gate[0], gate[19], capped[0], capped[19]].into()
        });
        let expected = match x {
            _ if x.is_nan() => [f32::NAN, f32::NAN],
            _ if x.abs() > 1e3 => [x.max(0.0), 30.0 * x.signum()],
            _ if x.abs() > 80.0 => [x.max(0.0), 30.0 * (x / 30.0).tanh()],
            _ => [0.0, 0.0],
        };
        for (&found, &expected) in
            found.iter().zip([expected[0]; 2].iter().chain(&[expected[1]; 2]))
        {
            let same = found == expected || (found.is_nan() && expected.is_nan());
            let near = expected.is_finite() && (found - expected).abs() <= 1e-5;
            assert!(same || near, "{x}: {found}");
        }
    }
}

#[test]
fn norms_are_those_of_f64() {
    let mut rng = rng();
    for length in [1, 5, 16, 31, 64, 100, 256, 1536] {
        let (row, weight) = (numbers(&mut rng, length, 3.0), numbers(&mut rng, length, 1.0));
        for weight in [None, Some(&weight[..])] {
            let found = agreed("norm", |kernels| {
                let mut row = row.clone();
                kernels.rms_norm(&mut row, weight, 1e-6);
                row
            });
            let squares: f64 = row.iter().map(|&x| f64::from(x).powi(2)).sum();
            let root = (squares / length as f64 + 1e-6).sqrt();
            for (index, (&x, &found)) in row.iter().zip(&found).enumerate() {
                let weight = weight.map_or(1.0, |weight| f64::from(weight[index]));
                let expected = f64::from(x) / root * weight;
                assert!((f64::from(found) - expected).abs() <= 1e-6 * expected.abs());
            }
        }
    }
}

/// Keys and values as they are kept, in f32 and as segments.
struct Positions<S> {
    keys: Vec<S>,
    values: Vec<S>,
    width: usize,
    offset: usize,
}

impl<S: CacheNumber> Positions<S> {
    fn segment(&self, positions: std::ops::Range<usize>, head: usize) -> Segment<'_, S> {
        let heads = |numbers: &'_ [S]| -> std::ops::Range<usize> {
            let begin = positions.start * self.width + self.offset;
            begin..((positions.end - 1) * self.width + self.offset + head).min(numbers.len())
        };
        Segment {
            positions: positions.len(),
            keys: Heads { numbers: &self.keys[heads(&self.keys)], width: self.width },
            values: Heads { numbers: &self.values[heads(&self.values)], width: self.width },
        }
    }
}

/// Attention over `count` positions in runs of `POSITIONS`, each cut into segments at `cut`.
fn attend<S: CacheNumber>(
    kernels: &Kernels,
    queries: &[f32],
    head: usize,
    positions: &Positions<S>,
    count: usize,
    cut: usize,
) -> Vec<f32> {
    let mut whole: Option<Partial> = None;
    for begin in (0..count).step_by(POSITIONS) {
        let end = count.min(begin + POSITIONS);
        let middle = cut.clamp(begin, end);
        let segments: Vec<Segment<'_, S>> = [begin..middle, middle..end]
            .into_iter()
            .filter(|range| !range.is_empty())
            .map(|range| positions.segment(range, head))
            .collect();
        let mut partial = Partial::default();
        kernels.attend(queries, head, &segments, &mut partial);
        match &mut whole {
            None => whole = Some(partial),
            Some(whole) => whole.merge(&partial),
        }
    }
    let mut out = vec![0.0; queries.len()];
    whole.expect("there are positions").finish(&mut out);
    out
}

fn check<S: CacheNumber>(keep: impl Fn(f32) -> S, value: impl Fn(S) -> f32) {
    let mut rng = rng();
    for (rows, head, count) in [
        (1, 16, 1),
        (8, 256, 300),
        (3, 20, 5),
        (8, 512, 257),
        (15, 32, 600),
        (2, 5, 64),
        (4, 64, 2),
    ] {
        let (width, offset) = (2 * head + 3, head);
        let queries = numbers(&mut rng, rows * head, 2.0 / (head as f32).sqrt());
        let mut kept = || numbers(&mut rng, count * width, 2.0).into_iter().map(&keep).collect();
        let positions: Positions<S> = Positions { keys: kept(), values: kept(), width, offset };
        let found =
            agreed(S::NAME, |kernels| attend(kernels, &queries, head, &positions, count, 0));
        for cut in [1, count / 2, count] {
            let other = attend(Kernels::best(), &queries, head, &positions, count, cut);
            assert_eq!(bits(&other), bits(&found), "segments change bits");
        }
        // A row does not depend on what other rows there are.
        for row in 0..rows {
            let query = &queries[row * head..][..head];
            let alone = attend(Kernels::best(), query, head, &positions, count, 0);
            assert_eq!(bits(&alone), bits(&found[row * head..][..head]), "company changes bits");
        }
        for row in 0..rows {
            let number = |numbers: &[S], position: usize, i: usize| {
                f64::from(value(numbers[position * width + offset + i]))
            };
            let score = |position: usize| -> f64 {
                let query = &queries[row * head..][..head];
                let product = |i: usize| f64::from(query[i]) * number(&positions.keys, position, i);
                (0..head).map(product).sum()
            };
            let scores: Vec<f64> = (0..count).map(score).collect();
            let largest = scores.iter().copied().fold(f64::MIN, f64::max);
            let powers: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
            let sum: f64 = powers.iter().sum();
            for i in 0..head {
                let term =
                    |position: usize| powers[position] * number(&positions.values, position, i);
                let expected = (0..count).map(term).sum::<f64>() / sum;
                let found = f64::from(found[row * head + i]);
                // Scores of some tens, off by some 1e-6 of that, move weights by as much.
                assert!(
                    (found - expected).abs() <= 1e-4,
                    "{rows}, {head}, {count}: {found}, {expected}"
                );
            }
        }
    }
}

#[test]
fn attention_is_that_of_f64_for_all_that_keys_are_kept_in() {
    check(|x| x, |x: f32| x);
    check(f16::from_f32, f16::to_f32);
    check(bf16::from_f32, bf16::to_f32);
}

/// Runs beyond one another's reach: the merged softmax must not overflow nor lose the larger one.
#[test]
fn far_apart_runs_merge() {
    for [first, second] in [[-200.0f32, 200.0], [200.0, -200.0], [50.0, 50.0]] {
        let found = agreed("runs", |kernels| {
            let partial = |key: f32, value: f32| {
                let (keys, values) = (vec![key; 16 * 4], vec![value; 16 * 4]);
                let heads = |numbers| Heads { numbers, width: 16 };
                let segment =
                    Segment { positions: 4, keys: heads(&keys[..]), values: heads(&values[..]) };
                let mut partial = Partial::default();
                kernels.attend(&[1.0 / 16.0; 16], 16, &[segment], &mut partial);
                partial
            };
            let mut whole = partial(first, 1.0);
            whole.merge(&partial(second, 3.0));
            let mut out = vec![0.0; 16];
            whole.finish(&mut out);
            out
        });
        let expected = if first > second {
            1.0
        } else if first < second {
            3.0
        } else {
            2.0
        };
        assert!(found.iter().all(|&found| (found - expected).abs() < 1e-6), "{found:?}");
    }
}

/// A key that is no number must not vanish in a maximum.
#[test]
fn a_broken_key_breaks_the_result() {
    let mut keys = vec![0.5; 16 * 40];
    keys[16 * 33 + 4] = f32::NAN;
    let values = vec![1.0; 16 * 40];
    let found = agreed("broken", |kernels| {
        let heads = |numbers| Heads { numbers, width: 16 };
        let segment = Segment { positions: 40, keys: heads(&keys[..]), values: heads(&values[..]) };
        let mut partial = Partial::default();
        kernels.attend(&[1.0; 32], 16, &[segment], &mut partial);
        let mut out = vec![0.0; 32];
        partial.finish(&mut out);
        out.iter().map(|x| if x.is_nan() { 1.0 } else { 0.0 }).collect()
    });
    assert_eq!(found, vec![1.0; 32]);
}

/// A yardstick that read less than it says would make everything beside it slow.
#[test]
fn a_plain_read_reads_every_word() {
    for length in [0, 7, 8, 255, 256, 264, 1000, 4096] {
        let bytes: Vec<u8> = (0..length).map(|place| (place * 37 % 251) as u8).collect();
        let words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word));
        let expected = words.fold(0, u64::wrapping_add);
        for kernels in Kernels::available() {
            assert_eq!(kernels.sum_words(&bytes), expected, "{}, {length} bytes", kernels.name());
        }
    }
}
