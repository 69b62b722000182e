//! A server behind a URL: what it is asked, and what becomes of its errors.

use crate::support::server::{Server, completion};
use crate::support::{Nobody, options, recall_questions, recalled, text};
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use w4pack_eval::{EvalError, ServerAnswerer, ServerOptions, run};
use w4pack_runtime::Sampling;

fn to(server: &Server) -> ServerOptions {
    ServerOptions {
        url: server.url.clone(),
        model: "gemma".into(),
        api_key: Some("secret".into()),
        concurrency: 1,
        retries: 2,
        first_wait: Duration::from_millis(1),
        // Longer than this machine stands still: a request given up would be one more.
        timeout: Duration::from_secs(120),
    }
}

fn right(request: &crate::support::server::Received) -> crate::support::server::Response {
    let prompt = request.body["messages"][0]["content"].as_str().unwrap();
    completion(json!({"role": "assistant", "content": recalled(prompt)}))
}

#[test]
fn a_plain_greedy_request_and_its_answer() {
    let server = Server::start(|_, request| right(request));
    let answerer = ServerAnswerer::new(to(&server)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.jsonl");
    let questions = recall_questions();
    let records = run(&questions, &answerer, &options("recall", Some(&out)), &mut |_| {}).unwrap();
    assert!(records.iter().all(|record| record.correct));
    assert_eq!((records[0].prompt_tokens, records[0].completion_tokens), (Some(11), Some(5)));
    let request = &server.received()[0];
    assert_eq!(request.path, "/v1/chat/completions");
    assert!(request.headers.contains(&("authorization".into(), "Bearer secret".into())));
    assert_eq!(
        request.body,
        json!({"model": "gemma", "messages": questions[0].messages, "max_tokens": 64,
               "temperature": 0.0, "stream": false})
    );
    assert!(!text(&out).contains("secret"), "a key is nobody's business");
}

#[test]
fn settings_beyond_greedy_are_sent() {
    let server = Server::start(|_, request| right(request));
    let answerer = ServerAnswerer::new(to(&server)).unwrap();
    let mut options = options("recall", None);
    options.sampling =
        Sampling { temperature: 0.5, top_k: 3, top_p: 0.75, min_p: 0.25, seed: Some(9) };
    options.thinking = Some(true);
    run(&recall_questions()[..1], &answerer, &options, &mut |_| {}).unwrap();
    let body = &server.received()[0].body;
    for (key, value) in [("temperature", json!(0.5)), ("top_k", json!(3)), ("top_p", json!(0.75))] {
        assert_eq!(body[key], value);
    }
    assert_eq!((&body["min_p"], &body["seed"]), (&json!(0.25), &json!(9)));
    assert_eq!(body["chat_template_kwargs"], json!({"enable_thinking": true}));
}

#[test]
fn many_at_once_give_the_file_of_one_after_another() {
    // Of several at once the first waits for another one to come.
    let (several, come) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let (are_several, count) = (several.clone(), come.clone());
    let server = Server::start(move |_, request| {
        let number = count.fetch_add(1, Ordering::SeqCst);
        let begun = Instant::now();
        while are_several.load(Ordering::SeqCst)
            && number == 0
            && count.load(Ordering::SeqCst) < 2
            && begun.elapsed() < Duration::from_secs(60)
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        right(request)
    });
    let folder = tempfile::tempdir().unwrap();
    let mut files = Vec::new();
    for concurrency in [1, 8] {
        several.store(concurrency > 1, Ordering::SeqCst);
        come.store(0, Ordering::SeqCst);
        let answerer = ServerAnswerer::new(ServerOptions { concurrency, ..to(&server) }).unwrap();
        let out = folder.path().join(format!("{concurrency}.jsonl"));
        run(&recall_questions(), &answerer, &options("recall", Some(&out)), &mut |_| {}).unwrap();
        files.push(text(&out));
    }
    assert_eq!(files[0], files[1]);
    let most = server.most_at_once.load(Ordering::SeqCst);
    assert!((2..=8).contains(&most), "{most} at once");
}

#[test]
fn passing_errors_are_tried_again_and_lasting_ones_named() {
    // Busy, then broken off, then right.
    let server = Server::start(|number, request| match number {
        0 => Some((429, vec![("retry-after", "0".into())], "busy".into())),
        1 => None,
        _ => right(request),
    });
    let answerer = ServerAnswerer::new(to(&server)).unwrap();
    let questions = &recall_questions()[..1];
    let records = run(questions, &answerer, &options("recall", None), &mut |_| {}).unwrap();
    assert!(records[0].correct);
    assert_eq!(server.received().len(), 3);

    let failing = Server::start(|_, _| Some((503, vec![], "{\"error\": \"loading\"}".into())));
    let answerer = ServerAnswerer::new(to(&failing)).unwrap();
    let error = run(questions, &answerer, &options("recall", None), &mut |_| {}).unwrap_err();
    let words = error.to_string();
    for part in ["recall-trained-200-0-0", &failing.url, "503", "asked 3 times", "loading"] {
        assert!(words.contains(part), "{part}: {words}");
    }

    // A refusal is not tried again.
    let refusing = Server::start(|_, _| Some((400, vec![], "no such model".into())));
    let answerer = ServerAnswerer::new(to(&refusing)).unwrap();
    let error = run(questions, &answerer, &options("recall", None), &mut |_| {}).unwrap_err();
    assert!(error.to_string().contains("asked once): no such model"), "{error}");
    assert!(error.hint().unwrap().contains("--failures-are-wrong"));
    assert_eq!(refusing.received().len(), 1);
}

#[test]
fn failures_may_count_as_wrong_but_not_a_lost_connection() {
    let server = Server::start(|number, request| match number {
        1 => Some((400, vec![], "too long".into())),
        2 => Some((200, vec![], "<html>".into())),
        _ => right(request),
    });
    let answerer = ServerAnswerer::new(to(&server)).unwrap();
    let mut forgiving = options("recall", None);
    forgiving.failures_are_wrong = true;
    let records = run(&recall_questions()[..4], &answerer, &forgiving, &mut |_| {}).unwrap();
    let verdicts: Vec<bool> = records.iter().map(|record| record.correct).collect();
    assert_eq!(verdicts, [true, false, false, true]);
    assert!(records[1].error.as_ref().unwrap().contains("too long"));
    assert!(records[2].error.as_ref().unwrap().contains("not JSON"));

    let nobody = Nobody::new();
    let url = format!("http://{}/v1", nobody.address());
    let answerer = ServerAnswerer::new(ServerOptions { url, ..to(&server) }).unwrap();
    let error = run(&recall_questions()[..1], &answerer, &forgiving, &mut |_| {}).unwrap_err();
    assert!(matches!(error, EvalError::NoAnswer { .. }), "{error}");
    assert!(error.to_string().contains("no reply from"), "{error}");
}

#[test]
fn settings_out_of_range_are_refused_before_a_connection_is_opened() {
    let server = Server::start(|_, _| None);
    for bad in [
        ServerOptions { url: "localhost:8080".into(), ..to(&server) },
        ServerOptions { concurrency: 0, ..to(&server) },
        ServerOptions { timeout: Duration::ZERO, ..to(&server) },
    ] {
        assert!(matches!(ServerAnswerer::new(bad), Err(EvalError::Setting { .. })));
    }
}
