//! Prompts that begin as earlier ones did are read from where they differ, with the same result.

use crate::hearing::*;
use crate::support::{conformance, load, random};
use proptest::prelude::*;
use std::path::Path;
use w4pack_runtime::scheduler::{Job, SchedulerOptions};
use w4pack_runtime::{Engine, EngineOptions, Scheduler};

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
        let options = EngineOptions { context: None, chunk, threads: Some(1) };
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
