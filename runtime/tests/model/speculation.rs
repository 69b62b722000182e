//! Tokens guessed ahead leave every answer as it is, whoever guesses.

use crate::support::hostile::Hostile;
use crate::support::random;
use crate::support::*;
use std::ops::ControlFlow;
use w4pack_runtime::speculation::{Draft, Drafter};
use w4pack_runtime::{
    Engine, EngineOptions, FinishReason, Generation, Request, Sampling, Speculation,
};

fn engine() -> Engine {
    let folder = tempfile::tempdir().expect("a folder");
    random::packed(1).write(folder.path());
    let options =
        EngineOptions { context: Some(300), chunk: 7, threads: Some(1), ..Default::default() };
    Engine::new(load(folder.path()), options).expect("options are sound")
}

fn request(seed: u64) -> Request {
    let temperature = if seed.is_multiple_of(2) { 0.0 } else { 0.6 };
    Request {
        prompt: random::tokens(4 + 5 * seed as usize, seed),
        max_tokens: Some(120),
        stop_ids: Vec::new(),
        ignore_eos: false,
        sampling: Sampling { temperature, seed: Some(seed), ..Sampling::GREEDY },
        logits: seed % 3 == 2,
    }
}

fn generate(engine: &mut Engine, request: &Request) -> Generation {
    engine.generate(request, &mut |_| ControlFlow::Continue(())).expect("the request is sound")
}

/// The same but for times and guesses.
fn assert_same(found: &Generation, expected: &Generation, name: &str) {
    assert_eq!(found.tokens, expected.tokens, "{name}");
    assert_eq!(found.finish_reason, expected.finish_reason, "{name}");
    assert_eq!(found.seed, expected.seed, "{name}");
    assert!(found.logits == expected.logits, "{name}: logits");
}

/// Drafts what is no token of the model.
struct Beyond;

impl Drafter for Beyond {
    fn append(&mut self, _: &[u32]) {}

    fn draft(&mut self, most: usize) -> Draft {
        Draft { tokens: vec![u32::MAX; most], matched: 9 }
    }
}

#[test]
fn answers_are_the_same_whoever_guesses() {
    let mut plain = engine();
    let engines = [
        ("ngram", engine().speculating(Speculation::Ngram).expect("it can")),
        ("auto", engine().speculating(Speculation::Auto).expect("it can")),
        ("hostile", engine().drafting_with(Speculation::Ngram, || Box::new(Hostile::new(1, 160)))),
    ];
    let expected: Vec<Generation> =
        (0..9).map(|seed| generate(&mut plain, &request(seed))).collect();
    assert!(expected.iter().all(|answer| answer.drafted.drafted == 0));
    for (name, mut engine) in engines {
        let (mut drafted, mut accepted) = (0, 0);
        for (seed, expected) in expected.iter().enumerate() {
            let found = generate(&mut engine, &request(seed as u64));
            assert_same(&found, expected, &format!("{name}, {seed}"));
            assert!(found.drafted.accepted <= found.drafted.drafted, "{name}");
            assert!(found.drafted.accepted < found.tokens.len(), "{name}");
            drafted += found.drafted.drafted;
            accepted += found.drafted.accepted;
        }
        println!("{name}: {accepted} of {drafted}");
        match name {
            // Random weights say the same again and again.
            "ngram" => assert!(accepted > 100, "{accepted} of {drafted}"),
            "hostile" => {
                assert!(drafted > 4000 && accepted < drafted / 20, "{accepted} of {drafted}")
            }
            // Depends on the machine's speed.
            _ => {}
        }
    }
}

/// Ends of every kind in the middle of what was guessed.
#[test]
fn an_answer_ends_where_it_ends() {
    let (mut plain, mut guessing) =
        (engine(), engine().speculating(Speculation::Ngram).expect("it can"));
    let whole = generate(&mut plain, &Request { logits: false, ..request(0) }).tokens;
    for place in (3..whole.len()).step_by(7) {
        let stopped = Request { stop_ids: vec![whole[place]], logits: false, ..request(0) };
        let expected = generate(&mut plain, &stopped);
        assert_same(&generate(&mut guessing, &stopped), &expected, "a stop id");
        let ignored = Request { ignore_eos: true, ..stopped };
        assert_eq!(generate(&mut guessing, &ignored).tokens, whole);
        let short = Request { max_tokens: Some(place), logits: false, ..request(0) };
        let found = generate(&mut guessing, &short);
        assert_eq!(found.tokens, whole[..place]);
        assert_eq!(found.finish_reason, FinishReason::Length);
        // Broken off by whoever listens.
        let mut seen = Vec::new();
        let broken = guessing.generate(&request(0), &mut |id| {
            seen.push(id);
            if seen.len() == place { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        let broken = broken.expect("the request is sound");
        assert_eq!((&broken.tokens[..], &seen[..]), (&whole[..place], &whole[..place]));
        assert_eq!(broken.finish_reason, FinishReason::Cancelled);
    }
    // To the last position of the context.
    let prompt = random::tokens(290, 3);
    let full = Request { prompt, max_tokens: None, logits: false, ..request(0) };
    let expected = generate(&mut plain, &full);
    assert_eq!(expected.tokens.len(), 10);
    assert_same(&generate(&mut guessing, &full), &expected, "the context's end");
}

#[test]
fn a_guess_that_is_no_token_ends_the_answer_in_words() {
    let mut engine = engine().drafting_with(Speculation::Ngram, || Box::new(Beyond));
    let error = engine.generate(&request(0), &mut |_| ControlFlow::Continue(()));
    let error = error.expect_err("no such id").to_string();
    assert!(error.contains("4294967295"), "{error}");
}
