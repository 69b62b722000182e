//! A run that is broken off goes on, and ends as if it had not been.

use crate::support::{Scripted, options, recall_questions, recalled, text};
use std::io::Write;
use w4pack_eval::{EvalError, Progress, run};

#[test]
fn a_resumed_run_equals_an_uninterrupted_one_byte_for_byte() {
    let folder = tempfile::tempdir().unwrap();
    let (whole, broken) = (folder.path().join("whole.jsonl"), folder.path().join("broken.jsonl"));
    let questions = recall_questions();
    let answerer = Scripted::new(recalled);
    let expected =
        run(&questions, &answerer, &options("recall", Some(&whole)), &mut |_| {}).unwrap();

    // Three at once, in whatever order; the connection goes after ten answers.
    let first = Scripted { concurrency: 3, breaks_after: 10, ..Scripted::new(recalled) };
    let broken_off = run(&questions, &first, &options("recall", Some(&broken)), &mut |_| {});
    let error = broken_off.unwrap_err();
    assert!(matches!(error, EvalError::NoAnswer { .. }), "{error}");
    assert!(error.hint().unwrap().contains("goes on"), "{error}");
    assert_eq!(text(&broken).lines().count(), 10, "what was answered is kept");
    // And killed in the middle of a line.
    let half = &text(&whole)[..100];
    std::fs::OpenOptions::new()
        .append(true)
        .open(&broken)
        .unwrap()
        .write_all(half.as_bytes())
        .unwrap();

    let second = Scripted { concurrency: 3, ..Scripted::new(recalled) };
    let mut begun = None;
    let records = run(&questions, &second, &options("recall", Some(&broken)), &mut |progress| {
        if matches!(progress, Progress::Begun { .. }) {
            begun = Some(progress);
        }
    });
    assert_eq!(begun, Some(Progress::Begun { questions: 14, kept: 10, others: 0, dropped: 100 }));
    assert_eq!(records.unwrap(), expected);
    assert_eq!(text(&broken), text(&whole));

    // Once more: nothing is asked, nothing changes.
    let third = Scripted { breaks_after: 0, ..Scripted::new(recalled) };
    let again = run(&questions, &third, &options("recall", Some(&broken)), &mut |_| {}).unwrap();
    assert_eq!((again, text(&broken)), (expected, text(&whole)));
}

#[test]
fn a_line_says_all_about_its_question() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.jsonl");
    let questions = &recall_questions()[..1];
    let answerer = Scripted::new(|_: &str| "111111".into());
    run(questions, &answerer, &options("recall", Some(&out)), &mut |_| {}).unwrap();
    let line: serde_json::Value = serde_json::from_str(&text(&out)).unwrap();
    assert_eq!(line["id"], "recall-trained-200-0-0");
    assert_eq!(line["prompt_sha256"], questions[0].prompt_sha256());
    assert_eq!(line["answer"]["content"], "111111");
    assert_eq!(line["expected"], questions[0].expected);
    assert_eq!((&line["correct"], &line["reason"]), (&false.into(), &"says 111111".into()));
    assert_eq!((&line["prompt_tokens"], &line["completion_tokens"]), (&7.into(), &3.into()));
    assert_eq!(
        (&line["settings"]["task"], &line["settings"]["max_tokens"]),
        (&"recall".into(), &64.into())
    );
}

#[test]
fn a_file_of_other_settings_or_questions_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.jsonl");
    let questions = recall_questions();
    let answerer = Scripted::new(recalled);
    run(&questions[..2], &answerer, &options("recall", Some(&out)), &mut |_| {}).unwrap();
    let before = text(&out) + "half a li";
    std::fs::write(&out, &before).unwrap();

    let mut other = options("recall", Some(&out));
    other.max_tokens = 65;
    let error = run(&questions, &answerer, &other, &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("`max_tokens` is 64 there, 65 now"), "{error}");
    let renamed = Scripted { name: "somebody else", ..Scripted::new(recalled) };
    let plain = options("recall", Some(&out));
    let error = run(&questions, &renamed, &plain, &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("`answerer`"), "{error}");

    let mut reworded = recall_questions();
    reworded[1].messages[0]["content"] = "another question".into();
    let error = run(&reworded, &answerer, &plain, &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("`recall-trained-200-0-1`") && error.contains("prompt"), "{error}");
    let mut corrected = recall_questions();
    corrected[0].expected = "000000".into();
    let error = run(&corrected, &answerer, &plain, &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("expected answer"), "{error}");
    assert_eq!(text(&out), before);

    std::fs::write(&out, "{\"id\": 1}\n").unwrap();
    let error = run(&questions, &answerer, &plain, &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("line 1") && error.contains("not a record"), "{error}");
}

#[test]
fn more_questions_go_into_the_same_file() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.jsonl");
    let (questions, answerer) = (recall_questions(), Scripted::new(recalled));
    let options = options("recall", Some(&out));
    run(&questions[5..9], &answerer, &options, &mut |_| {}).unwrap();
    run(&questions, &answerer, &options, &mut |_| {}).unwrap();
    let all = text(&out);
    let ids: Vec<&str> = all.lines().map(|line| line.split('"').nth(3).unwrap()).collect();
    let expected: Vec<&str> = questions.iter().map(|question| question.id.as_str()).collect();
    assert_eq!(ids, expected);
    // And a part of them again: the others stay.
    let records = run(&questions[..3], &answerer, &options, &mut |_| {}).unwrap();
    assert_eq!((records.len(), text(&out)), (3, all));
}

#[test]
fn two_runs_do_not_write_one_file() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.jsonl");
    let questions = recall_questions();
    let plain = options("recall", Some(&out));
    let inner = Scripted::new(|_: &str| String::new());
    let outer = Scripted::new(|_: &str| {
        let error = run(&recall_questions(), &inner, &plain, &mut |_| {}).unwrap_err();
        assert!(matches!(error, EvalError::Busy { .. }), "{error}");
        "busy".into()
    });
    let records = run(&questions[..1], &outer, &plain, &mut |_| {}).unwrap();
    assert_eq!(records[0].answer.as_ref().unwrap().content.as_deref(), Some("busy"));
}
