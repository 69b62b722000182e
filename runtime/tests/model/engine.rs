//! The engine: requests in, tokens out.

use crate::support::random::{self, VOCABULARY};
use crate::support::*;
use std::ops::ControlFlow;
use w4pack_runtime::logits_file::write_logits;
use w4pack_runtime::{
    Engine, EngineOptions, FinishReason, Generation, Model, Request, Result, Sampling,
};

fn model() -> Model {
    let folder = tempfile::tempdir().expect("a folder");
    random::packed(1).write(folder.path());
    load(folder.path())
}

fn engine(options: EngineOptions) -> Result<Engine> {
    Engine::new(model(), options)
}

fn default_engine() -> Engine {
    engine(EngineOptions { context: None, chunk: 5, threads: Some(2), ..Default::default() })
        .expect("options are sound")
}

fn request(prompt: Vec<u32>, max_tokens: usize) -> Request {
    Request {
        prompt,
        max_tokens: Some(max_tokens),
        stop_ids: Vec::new(),
        ignore_eos: false,
        sampling: Sampling::GREEDY,
        logits: false,
    }
}

fn generate(engine: &mut Engine, request: &Request) -> Result<Generation> {
    engine.generate(request, &mut |_| ControlFlow::Continue(()))
}

#[test]
fn greedy_answers_are_those_of_the_bare_pass() {
    let mut engine = default_engine();
    let prompt = random::tokens(23, 1);
    let (expected, _) = greedy(&model(), &as_the_device(), &prompt, prompt.len(), 12);
    let mut seen = Vec::new();
    let generation = engine
        .generate(&request(prompt, 12), &mut |id| {
            seen.push(id);
            ControlFlow::Continue(())
        })
        .expect("the request is sound");
    assert_eq!(generation.tokens, expected);
    assert_eq!(seen, expected);
    assert_eq!(generation.finish_reason, FinishReason::Length);
    assert_eq!(generation.finish_reason.name(), "length");
    assert_eq!((generation.prompt_tokens, generation.seed, generation.logits), (23, None, None));
}

#[test]
fn a_stop_id_ends_the_answer_unless_it_is_ignored() {
    let mut engine = default_engine();
    let prompt = random::tokens(9, 2);
    let whole = generate(&mut engine, &request(prompt.clone(), 12)).expect("it runs").tokens;
    let stop = whole[4];
    let end = whole.iter().position(|&id| id == stop).expect("it is there") + 1;
    let mut stopped = Request { stop_ids: vec![stop], ..request(prompt, 12) };
    let generation = generate(&mut engine, &stopped).expect("it runs");
    assert_eq!(generation.tokens, &whole[..end]);
    assert_eq!(generation.finish_reason.name(), "stop");
    stopped.ignore_eos = true;
    let generation = generate(&mut engine, &stopped).expect("it runs");
    assert_eq!(generation.tokens, whole);
    assert_eq!(generation.finish_reason.name(), "length");
}

#[test]
fn the_caller_may_break_off() {
    let mut engine = default_engine();
    let mut seen = 0;
    let generation = engine
        .generate(&request(random::tokens(9, 2), 12), &mut |_| {
            seen += 1;
            if seen == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .expect("it runs");
    assert_eq!(generation.tokens.len(), 3);
    assert_eq!(generation.finish_reason, FinishReason::Cancelled);
}

#[test]
fn logits_of_every_position_are_kept_on_request_and_change_no_answer() {
    let mut engine = default_engine();
    let prompt = random::tokens(17, 3);
    let plain = generate(&mut engine, &request(prompt.clone(), 6)).expect("it runs");
    let kept = Request { logits: true, ..request(prompt.clone(), 6) };
    let kept = generate(&mut engine, &kept).expect("it runs");
    assert_eq!(kept.tokens, plain.tokens);
    let rows = kept.logits.expect("they were asked for");
    let sequence = [&prompt[..], &kept.tokens[..5]].concat();
    assert_eq!(rows, logits(&model(), &as_the_device(), &sequence));
    for (k, &id) in kept.tokens.iter().enumerate() {
        let row = prompt.len() - 1 + k;
        assert_eq!(argmax(&rows[row * VOCABULARY..][..VOCABULARY]), id, "row {row}");
    }

    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("logits.safetensors");
    write_logits(&path, &rows, VOCABULARY).expect("the file can be written");
    let file = Tensors::read(&path);
    assert_eq!(file.shape("logits"), [17 + 6 - 1, VOCABULARY]);
    assert_eq!(file.f32("logits"), rows);
    assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 1, "nothing else");
    let nowhere = folder.path().join("no/such/folder");
    let error = write_logits(&nowhere, &rows, VOCABULARY).expect_err("no such folder");
    assert!(error.to_string().contains("no/such/folder"), "{error}");
    assert!(write_logits(&path, &rows, VOCABULARY + 1).is_err());
}

#[test]
fn a_seed_repeats_an_answer() {
    let sampling = Sampling { temperature: 1.0, seed: None, ..Sampling::GREEDY };
    let mut drawn = Request { sampling, ..request(random::tokens(9, 4), 30) };
    let first = generate(&mut default_engine(), &drawn).expect("it runs");
    drawn.sampling.seed = first.seed;
    let again = engine(EngineOptions {
        context: Some(64),
        chunk: 100,
        threads: Some(1),
        ..Default::default()
    });
    let again = generate(&mut again.expect("options are sound"), &drawn).expect("it runs");
    assert_eq!(again.tokens, first.tokens);
    drawn.sampling.seed = first.seed.map(|seed| seed ^ 1);
    let other = generate(&mut default_engine(), &drawn).expect("it runs");
    assert_ne!(other.tokens, first.tokens, "30 draws from 160 tokens");
}

#[test]
fn requests_that_cannot_be_served_are_refused_before_anything_runs() {
    let options =
        EngineOptions { context: Some(20), chunk: 4, threads: Some(1), ..Default::default() };
    let mut engine = engine(options).expect("options are sound");
    let mut refused = |request: &Request, words: &[&str]| {
        let mut called = false;
        let error = engine
            .generate(request, &mut |_| {
                called = true;
                ControlFlow::Continue(())
            })
            .expect_err("it cannot be served");
        assert!(!called);
        for word in words {
            assert!(error.to_string().contains(word), "`{word}` is not in: {error}");
        }
        error
    };
    let error = refused(&request(random::tokens(15, 1), 6), &["15 prompt tokens", "21", "20"]);
    assert!(error.hint().expect("a hint").contains("--max-tokens 5"));
    refused(&request(random::tokens(20, 1), 1), &["20 prompt tokens", "context has 20"]);
    refused(&request(Vec::new(), 1), &["no tokens"]);
    refused(&request(vec![2], 0), &["max_tokens is 0"]);
    refused(&request(vec![2, 160], 1), &["id 160", "embed_tokens has 160 rows"]);
    let sampling = Sampling { top_p: 0.0, ..Sampling::GREEDY };
    refused(&Request { sampling, ..request(vec![2], 1) }, &["top_p is 0"]);

    let whole = Request { max_tokens: None, ..request(random::tokens(15, 1), 1) };
    assert_eq!(generate(&mut engine, &whole).expect("it runs").tokens.len(), 5);
}

#[test]
fn options_out_of_range_are_refused() {
    let options = EngineOptions::default();
    for (faulty, name) in [
        (EngineOptions { context: Some(0), ..options }, "context"),
        (EngineOptions { context: Some(1025), ..options }, "1 to 1024"),
        (EngineOptions { chunk: 0, ..options }, "chunk"),
        (EngineOptions { threads: Some(0), ..options }, "threads"),
    ] {
        let error = engine(faulty).err().expect("it is out of range");
        assert!(error.to_string().contains(name), "{error}");
    }
    assert_eq!(engine(options).expect("the defaults are sound").context(), 1024);
}
