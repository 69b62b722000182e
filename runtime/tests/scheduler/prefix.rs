//! Prompts that begin as earlier ones did are read from where they differ, with the same result.

use crate::hearing::*;
use crate::support::{conformance, load, random};
use proptest::prelude::*;
use std::path::Path;
use w4pack_runtime::scheduler::{Job, SchedulerOptions};
use w4pack_runtime::{Engine, EngineOptions, Sampling, Scheduler};

/// Ends a turn here.
const TURN_END: u32 = 7;

/// With all that shows a logit's bits.
fn telling(prompt: Vec<u32>, max_tokens: usize) -> Job {
    Job { logprobs: Some(20), ..job(prompt, max_tokens) }
}

fn with(engine: Engine, slots: usize, checkpoints: usize) -> Scheduler {
    let turn_ends = vec![TURN_END];
    let options = SchedulerOptions { slots, checkpoints, turn_ends, ..SchedulerOptions::default() };
    Scheduler::start(engine, options).expect("it starts")
}

/// What a scheduler that has seen nothing answers.
fn alone(prompt: &[u32], max_tokens: usize) -> Vec<w4pack_runtime::Chosen> {
    ask(&with(engine(64), 1, 0), telling(prompt.to_vec(), max_tokens)).tokens
}

/// No token of these ends a turn.
fn words(count: usize, seed: u64) -> Vec<u32> {
    random::tokens(count, seed).into_iter().map(|id| if id == TURN_END { 8 } else { id }).collect()
}

/// A conversation turn by turn, each prompt holding all that was said, then a last turn said
/// otherwise, then a new conversation under the same first turn.
#[test]
fn a_conversation_is_read_from_where_it_goes_on() {
    let scheduler = with(engine(16), 1, 4);
    let system = [words(20, 1), vec![TURN_END]].concat();
    let mut prompt = [&system[..], &words(12, 2)].concat();
    let mut before = Vec::new();
    let mut expected_cached = 0;
    for turn in 0..4 {
        let answer = ask(&scheduler, telling(prompt.clone(), 15));
        assert_eq!(answer.tokens, alone(&prompt, 15), "turn {turn}");
        assert_eq!(answer.summary.cached_tokens, expected_cached, "turn {turn}");
        // The last token of an answer was never computed with.
        expected_cached = prompt.len() + 14;
        before = prompt.clone();
        let said = words(9, 10 + turn);
        prompt = [&prompt[..], &answer.ids(), &[TURN_END], &said[..], &[TURN_END]].concat();
    }
    // The last turn said otherwise: back to the turn end before it.
    let end = before[..before.len() - 1].iter().rposition(|&id| id == TURN_END).expect("ends") + 1;
    let otherwise = [&before[..end], &words(11, 30)].concat();
    let answer = ask(&scheduler, telling(otherwise.clone(), 15));
    assert_eq!(answer.tokens, alone(&otherwise, 15));
    assert_eq!(answer.summary.cached_tokens, end);
    // Another conversation under the same first turn.
    let other = [&system[..], &words(17, 40)].concat();
    let answer = ask(&scheduler, telling(other.clone(), 15));
    assert_eq!(answer.tokens, alone(&other, 15));
    assert_eq!(answer.summary.cached_tokens, system.len());
    // The same prompt again: all but its last token.
    let again = ask(&scheduler, telling(other.clone(), 15));
    assert_eq!(again.tokens, answer.tokens);
    assert_eq!(again.summary.cached_tokens, other.len() - 1);
    let gauges = scheduler.gauges();
    assert_eq!(gauges.cache_hits, 6);
    assert!(gauges.checkpoint_bytes > 0 && gauges.slot_bytes > gauges.checkpoint_bytes);
    assert_eq!(gauges.cached_positions, other.len() + 14);
}

#[test]
fn without_copies_of_rings_only_what_they_still_hold_is_reused() {
    let scheduler = with(engine(16), 1, 0);
    let prompt = words(30, 1);
    let answer = ask(&scheduler, telling(prompt.clone(), 5));
    let longer = [&prompt[..], &answer.ids()[..4], &words(9, 2)].concat();
    let answer = ask(&scheduler, telling(longer.clone(), 5));
    assert_eq!(answer.summary.cached_tokens, 34);
    assert_eq!(answer.tokens, alone(&longer, 5));
    let otherwise = [&longer[..20], &words(9, 3)].concat();
    let answer = ask(&scheduler, telling(otherwise.clone(), 5));
    assert_eq!(answer.summary.cached_tokens, 0, "the rings have gone on");
    assert_eq!(answer.tokens, alone(&otherwise, 5));
    assert_eq!(scheduler.gauges().checkpoint_bytes, 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// Prompts cut anywhere and continued otherwise, on one slot and on two, with turn ends among
    /// their tokens, some broken off: every answer is the one a fresh scheduler gives.
    #[test]
    fn no_history_changes_an_answer(
        slots in 1usize..3,
        checkpoints in 0usize..6,
        chunk in 1usize..20,
        history in prop::collection::vec((0.0f64..=1.0, 1usize..40, 1usize..20, any::<u64>()), 2..7),
    ) {
        let scheduler = with(engine(chunk), slots, checkpoints);
        let mut last: Vec<u32> = Vec::new();
        for (share, more, max_tokens, seed) in history {
            let kept = (share * last.len() as f64) as usize;
            let prompt = [&last[..kept], &random::tokens(more, seed)].concat();
            let answer = ask(&scheduler, telling(prompt.clone(), max_tokens));
            prop_assert_eq!(&answer.tokens, &alone(&prompt, max_tokens));
            last = [prompt, answer.ids()].concat();
            last.truncate(200);
        }
    }
}

/// Under one long first turn: each conversation gets it from another one's slot, a running one's too,
/// and none loses its own.
#[test]
fn a_first_turn_is_copied_from_slot_to_slot() {
    let scheduler = with(engine(16), 3, 4);
    let system = [words(60, 1), vec![TURN_END]].concat();
    let prompt = |seed, more| [&system[..], &words(more, seed)].concat();
    // The first answer is made to wait while the second one begins.
    let (go_on, wait) = std::sync::mpsc::channel::<()>();
    let mut waited = false;
    let running = submit(&scheduler, telling(prompt(2, 40), 30), move |heard| {
        if let (Heard::Token(_), false) = (heard, waited) {
            waited = true;
            let _ = wait.recv_timeout(LIMIT);
        }
        std::ops::ControlFlow::Continue(())
    })
    .expect("it is taken");
    let next = || running.recv_timeout(LIMIT).expect("it goes on");
    while !matches!(next(), Heard::Reading { read: 101, .. }) {}
    let second =
        submit(&scheduler, telling(prompt(3, 25), 30), |_| std::ops::ControlFlow::Continue(()))
            .expect("it is taken");
    go_on.send(()).expect("it waits");
    let (first, second) = (hear(&running).expect("it ends"), hear(&second).expect("it ends"));
    assert_eq!(second.summary.cached_tokens, system.len(), "copied from the running one");
    assert_eq!(first.tokens, alone(&prompt(2, 40), 30));
    assert_eq!(second.tokens, alone(&prompt(3, 25), 30));
    let third = ask(&scheduler, telling(prompt(4, 5), 30));
    assert_eq!(third.summary.cached_tokens, system.len());
    assert_eq!(third.tokens, alone(&prompt(4, 5), 30));
    for (seed, more, answer) in [(2, 40, first), (3, 25, second), (4, 5, third)] {
        let longer = [&prompt(seed, more)[..], &answer.ids(), &words(6, 9)].concat();
        let next = ask(&scheduler, telling(longer.clone(), 5));
        assert_eq!(next.summary.cached_tokens, prompt(seed, more).len() + 29, "its own slot");
        assert_eq!(next.tokens, alone(&longer, 5));
    }
}

/// Several answers to one prompt, asked for at once: it is read once, but for the few tokens at its
/// end that are not worth waiting for, and who has nothing to wait for goes first.
#[test]
fn a_prompt_asked_for_several_times_is_read_once() {
    let scheduler = with(engine(16), 4, 4);
    let prompt = words(200, 1);
    let drawn = |seed| Sampling { temperature: 1.0, seed: Some(seed), ..Sampling::GREEDY };
    let goes_on = |_: &Heard| std::ops::ControlFlow::Continue(());
    let choices: Vec<_> = (0..3)
        .map(|seed| {
            let job = Job { sampling: drawn(seed), ..telling(prompt.clone(), 12) };
            submit(&scheduler, job, goes_on).expect("it is taken")
        })
        .collect();
    let other = submit(&scheduler, telling(words(9, 2), 3), goes_on).expect("it is taken");
    let other = hear(&other).expect("it ends");
    assert_eq!(other.tokens, alone(&words(9, 2), 3));
    for (seed, choice) in (0..3).zip(choices) {
        let fresh = with(engine(64), 1, 0);
        let job = Job { sampling: drawn(seed), ..telling(prompt.clone(), 12) };
        let (found, expected) = (hear(&choice).expect("it ends"), ask(&fresh, job));
        assert_eq!(found.tokens, expected.tokens, "choice {seed}");
        let cached = found.summary.cached_tokens;
        assert!(if seed == 0 { cached == 0 } else { cached > 199 - 32 }, "{cached} for {seed}");
    }
    let read = scheduler.gauges().prompt_tokens;
    assert!(read < 200 + 2 * 33 + 9, "{read} tokens read");
}

/// Conversations that come and go, long after every slot has been as full as it gets.
#[test]
fn many_answers_take_no_more_memory_than_some() {
    let scheduler = with(engine(64), 2, 3);
    let mut bytes = Vec::new();
    for seed in 0..600u64 {
        let length = 20 + (seed as usize * 7) % 200;
        let system = [words(10, seed % 2), vec![TURN_END]].concat();
        ask(&scheduler, job([&system[..], &random::tokens(length, seed)].concat(), 2));
        let gauges = scheduler.gauges();
        bytes.push(gauges.slot_bytes + gauges.checkpoint_bytes);
    }
    let (some, rest) = bytes.split_at(200);
    assert!(
        rest.iter().max() <= some.iter().max(),
        "{:?} {:?}",
        some.iter().max(),
        rest.iter().max()
    );
    assert!(scheduler.gauges().cached_tokens > 100 * 11, "first turns are shared");
}

/// The slot that holds most of a prompt is taken; if none does, the one used least recently.
#[test]
fn conversations_find_their_own_slots() {
    let scheduler = with(engine(16), 3, 4);
    let prompts: Vec<Vec<u32>> = (0..3).map(|seed| words(40, seed)).collect();
    let longer = |number: usize| [&prompts[number][..], &words(5, 9)].concat();
    let cached = |prompt: Vec<u32>| ask(&scheduler, telling(prompt, 3)).summary.cached_tokens;
    assert_eq!(prompts.iter().map(|prompt| cached(prompt.clone())).sum::<usize>(), 0);
    for number in [1, 0, 2] {
        assert_eq!(cached(longer(number)), 40, "conversation {number}");
    }
    // A fourth one takes the slot of the one that spoke first; the others keep theirs.
    assert_eq!(cached(words(40, 5)), 0);
    assert_eq!(cached(longer(0)), 44);
    assert_eq!(cached(longer(2)), 44);
    assert_eq!(cached(longer(1)), 0);
}

/// Prompts and rollbacks at the window and its double, and at others' tiles.
fn case_14(folder: &Path, window: usize) {
    let engine = |chunk| {
        let options =
            EngineOptions { context: None, chunk, threads: Some(1), ..EngineOptions::default() };
        Engine::new(load(folder), options).expect("the options are sound")
    };
    let tokens: Vec<u32> = (0..64).map(|i| 2 + (i * 37 % 150) as u32).collect();
    let fresh = with(engine(64), 1, 0);
    let scheduler = with(engine(8), 1, 4);
    for length in [7, 8, 9, 15, 16, 17, 40] {
        for kept in [1, window - 1, window, window + 1, 2 * window - 1, 2 * window, length - 1] {
            let kept = kept.min(length);
            ask(&scheduler, telling(tokens[..length].to_vec(), 2 * window));
            let prompt = [&tokens[..kept], &tokens[64 - length..]].concat();
            let answer = ask(&scheduler, telling(prompt.clone(), 40));
            let hidden = ask(&fresh, telling(vec![3, 3, 3], 1));
            assert_eq!(hidden.summary.cached_tokens, 0, "what was there is gone");
            let expected = ask(&fresh, telling(prompt, 40));
            assert_eq!(expected.summary.cached_tokens, 0);
            assert_eq!(answer.tokens, expected.tokens, "{length} cut to {kept}");
        }
    }
    assert!(scheduler.gauges().cached_tokens > 0);
}

#[test]
fn field_case_14_prompts_are_reused_across_the_sliding_window() {
    let folder = tempfile::tempdir().expect("a folder");
    random::packed(1).write(folder.path());
    case_14(folder.path(), random::WINDOW);
    let Some(conformance) = conformance() else { return };
    case_14(&conformance.join("tiny-a/text"), 8);
    case_14(&conformance.join("tiny-c/text"), 8);
}
