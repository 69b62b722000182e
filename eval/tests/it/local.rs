//! A small checkpoint with random weights: its answers are noise, but every step is the real one.

use crate::support::{options, text};
use serde_json::json;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use w4pack_eval::recall::{RecallOptions, Wording, questions};
use w4pack_eval::{LocalAnswerer, Question, run};
use w4pack_fixtures::{FixtureOptions, Shape};
use w4pack_format::checkpoint::Checkpoint;
use w4pack_format::config::Config;
use w4pack_format::source::FolderSource;
use w4pack_runtime::chat::ChatText;
use w4pack_runtime::{Engine, EngineOptions, LoadOptions, Model, WeightValues};

fn answerer(folder: &Path, context: Option<usize>) -> LocalAnswerer {
    let source = FolderSource::open(folder).unwrap();
    let config = Config::load(&source).unwrap();
    let chat = ChatText::load(&source, &config).unwrap().unwrap();
    let checkpoint = Checkpoint::open(Arc::new(source)).unwrap();
    let load = LoadOptions { weights: WeightValues::Codes };
    let model = Model::load(&checkpoint, &load, &mut |_| {}).unwrap();
    let engine = Engine::new(model, EngineOptions { context, ..Default::default() }).unwrap();
    LocalAnswerer::new(engine, chat, json!({"model": "tiny"}))
}

fn short_questions() -> Vec<Question> {
    questions(&RecallOptions {
        wording: Wording::Plain,
        lengths: vec![100],
        depths: vec![0, 100],
        seeds: vec![0, 1],
    })
    .unwrap()
}

#[test]
fn a_local_run_is_resumed_and_repeated_byte_for_byte() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    w4pack_fixtures::write(&Shape::tiny(), &model, &FixtureOptions::default(), &|_, _| {
        ControlFlow::Continue(())
    })
    .unwrap();
    let local = answerer(&model, None);
    let (once, parts) = (folder.path().join("once.jsonl"), folder.path().join("parts.jsonl"));
    let with = |out: &Path| {
        let mut options = options("recall", Some(out));
        options.max_tokens = 5;
        options
    };
    let questions = short_questions();
    let records = run(&questions, &local, &with(&once), &mut |_| {}).unwrap();
    for record in &records {
        let prompt_tokens = record.prompt_tokens.unwrap();
        assert!((60..250).contains(&prompt_tokens), "{prompt_tokens}");
        assert!((1..=5).contains(&record.completion_tokens.unwrap()));
        assert!(record.answer.is_some() && record.error.is_none());
    }
    run(&questions[..3], &local, &with(&parts), &mut |_| {}).unwrap();
    run(&questions, &local, &with(&parts), &mut |_| {}).unwrap();
    assert_eq!(text(&once), text(&parts));

    // A context that holds no such prompt: named, and counted as wrong only if asked to.
    let small = answerer(&model, Some(40));
    let mut options = options("recall", None);
    let error = run(&questions, &small, &options, &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("recall-plain-100-0-0") && error.contains("40"), "{error}");
    options.failures_are_wrong = true;
    let records = run(&questions, &small, &options, &mut |_| {}).unwrap();
    assert!(records.iter().all(|record| !record.correct && record.error.is_some()));
}

/// The small trained model answers: what it was taught, at every depth, from the prompt's text to
/// the verdict.
#[test]
fn the_trained_model_recalls() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/trained");
    let local = answerer(&model, None);
    let questions = questions(&RecallOptions {
        wording: Wording::Trained,
        lengths: vec![250],
        depths: vec![0, 50, 100],
        seeds: vec![0, 1],
    });
    let records = run(&questions.unwrap(), &local, &options("recall", None), &mut |_| {}).unwrap();
    for record in records {
        assert!(record.correct, "{record:?}");
        assert_eq!(record.answer.unwrap().finish_reason.as_deref(), Some("stop"));
    }
}
