//! Tokens guessed ahead of an answer that runs alone: answers, and what slots hold for the next ones, are
//! what they are without.

use crate::company::mixed;
use crate::hearing::*;
use crate::support::hostile::Hostile;
use crate::support::random;
use std::ops::ControlFlow;
use w4pack_runtime::Speculation;
use w4pack_runtime::scheduler::{Job, PromptCache, SchedulerOptions};
use w4pack_runtime::{Chosen, Scheduler};

/// Ends a turn here.
const TURN_END: u32 = 7;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Guessing {
    Off,
    Ngram,
    Hostile,
}

fn start(guessing: Guessing, options: SchedulerOptions) -> Scheduler {
    let engine = engine(16);
    let engine = match guessing {
        Guessing::Off => engine,
        Guessing::Ngram => engine.speculating(Speculation::Ngram).expect("it can"),
        Guessing::Hostile => {
            engine.drafting_with(Speculation::Ngram, || Box::new(Hostile::new(1, 160)))
        }
    };
    Scheduler::start(engine, options).expect("it starts")
}

/// Penalties, bias, constraints, log-probabilities, seeds, stop ids: one after another, and at once.
#[test]
fn answers_of_every_kind_are_those_without_guesses() {
    let slots = |slots| SchedulerOptions { slots, queue: 8, ..SchedulerOptions::default() };
    let plain = start(Guessing::Off, slots(1));
    let expected: Vec<Answered> = mixed().into_iter().map(|job| ask(&plain, job)).collect();
    assert_eq!(plain.gauges().drafted_tokens, 0);
    for guessing in [Guessing::Ngram, Guessing::Hostile] {
        let alone = start(guessing, slots(1));
        let (mut drafted, mut accepted) = (0, 0);
        for (number, (job, expected)) in mixed().into_iter().zip(&expected).enumerate() {
            let found = ask(&alone, job);
            assert_eq!(found.tokens, expected.tokens, "{guessing:?}, job {number}");
            assert_eq!(found.summary.finish, expected.summary.finish);
            drafted += found.summary.drafted.drafted as u64;
            accepted += found.summary.drafted.accepted as u64;
        }
        let gauges = alone.gauges();
        assert_eq!((gauges.drafted_tokens, gauges.accepted_tokens), (drafted, accepted));
        assert_eq!(gauges.generated_tokens, plain.gauges().generated_tokens);
        assert_eq!(gauges.decoded_tokens, plain.gauges().decoded_tokens);
        assert!(drafted > 30, "{guessing:?}: {drafted}");

        let company = start(guessing, slots(3));
        let events: Vec<_> = mixed()
            .into_iter()
            .map(|job| submit(&company, job, |_| ControlFlow::Continue(())).expect("it is taken"))
            .collect();
        for (number, (events, expected)) in events.iter().zip(&expected).enumerate() {
            let found = hear(events).expect("it ends well");
            assert_eq!(found.tokens, expected.tokens, "{guessing:?}, job {number} in company");
        }
    }
}

/// With all that shows a logit's bits.
fn telling(prompt: Vec<u32>, max_tokens: usize) -> Job {
    Job { logprobs: Some(20), ..job(prompt, max_tokens) }
}

fn words(count: usize, seed: u64) -> Vec<u32> {
    random::tokens(count, seed).into_iter().map(|id| if id == TURN_END { 8 } else { id }).collect()
}

/// Conversations that go on, begin again and are said otherwise, several windows long: the same answers
/// from as many tokens that the slots held.
fn conversation(scheduler: &Scheduler) -> Vec<(Vec<Chosen>, usize)> {
    let mut said = Vec::new();
    let mut ask = |prompt: &[u32], max_tokens| {
        let answer = ask(scheduler, telling(prompt.to_vec(), max_tokens));
        said.push((answer.tokens.clone(), answer.summary.cached_tokens));
        answer.ids()
    };
    for seed in 0..4 {
        let system = [words(15, 1), vec![TURN_END]].concat();
        let mut prompt = [&system[..], &words(12, 10 + seed)].concat();
        for turn in 0..3 {
            let answer = ask(&prompt, 25 + 4 * turn);
            // The same again: all but its last token is there.
            assert_eq!(ask(&prompt, 25 + 4 * turn), answer);
            let more = words(5, 20 + seed + turn as u64);
            prompt = [&prompt[..], &answer, &[TURN_END], &more, &[TURN_END]].concat();
        }
    }
    said
}

#[test]
fn what_slots_hold_serves_as_it_does_without_guesses() {
    for (slots, checkpoints) in [(1, 4), (2, 4), (1, 0)] {
        let turn_ends = vec![TURN_END];
        let options =
            SchedulerOptions { slots, checkpoints, turn_ends, ..SchedulerOptions::default() };
        let expected = conversation(&start(Guessing::Off, options.clone()));
        assert!(expected.iter().any(|(_, cached)| *cached > 50));
        for guessing in [Guessing::Ngram, Guessing::Hostile] {
            let found = conversation(&start(guessing, options.clone()));
            assert_eq!(found, expected, "{guessing:?}, {slots} slots, {checkpoints} copies");
        }
    }
}

/// Prompts kept on disk by one that guesses serve one that does not, and the other way round.
#[test]
fn prompts_on_disk_serve_with_and_without_guesses() {
    let folder = tempfile::tempdir().expect("a folder");
    let options = |folder: &std::path::Path| SchedulerOptions {
        prompt_cache: Some(PromptCache {
            folder: folder.to_path_buf(),
            limit: 1 << 30,
            weights: Default::default(),
        }),
        ..SchedulerOptions::default()
    };
    let first = words(60, 1);
    let expected =
        ask(&start(Guessing::Off, SchedulerOptions::default()), telling(first.clone(), 40));
    let longer = [&first[..], &expected.ids(), &words(9, 2)].concat();
    let behind =
        ask(&start(Guessing::Off, SchedulerOptions::default()), telling(longer.clone(), 40));
    for (number, (writes, reads)) in
        [(Guessing::Hostile, Guessing::Off), (Guessing::Off, Guessing::Ngram)]
            .into_iter()
            .enumerate()
    {
        let folder = folder.path().join(number.to_string());
        let writer = start(writes, options(&folder));
        assert_eq!(ask(&writer, telling(first.clone(), 40)).tokens, expected.tokens);
        writer.stop(LIMIT);
        let reader = start(reads, options(&folder));
        let found = ask(&reader, telling(longer.clone(), 40));
        assert_eq!(found.tokens, behind.tokens, "{writes:?} to {reads:?}");
        assert_eq!(found.summary.cached_tokens, first.len() + 39, "{writes:?} to {reads:?}");
    }
}
