//! Two results side by side.

use crate::support::{Scripted, options, recall_questions, recalled};
use std::path::{Path, PathBuf};
use w4pack_eval::{compare, run};

/// Answers the questions whose place in the list `right` says are answered rightly.
fn result(folder: &Path, name: &'static str, count: usize, right: fn(usize) -> bool) -> PathBuf {
    let out = folder.join(name);
    let questions = &recall_questions()[..count];
    let prompts: Vec<String> = questions
        .iter()
        .map(|question| question.messages[0]["content"].as_str().unwrap().to_owned())
        .collect();
    let script = |prompt: &str| match right(prompts.iter().position(|p| p == prompt).unwrap()) {
        true => recalled(prompt),
        false => "no".into(),
    };
    let answerer = Scripted { name, ..Scripted::new(script) };
    run(questions, &answerer, &options("recall", Some(&out)), &mut |_| {}).unwrap();
    out
}

#[test]
fn counts_ids_and_p_are_those_worked_out_by_hand() {
    let folder = tempfile::tempdir().unwrap();
    // Of 24: A right in 0..18, B right in 10..23: only A 10, both 8, only B 5, neither 1.
    let a = result(folder.path(), "a.jsonl", 24, |at| at < 18);
    let b = result(folder.path(), "b.jsonl", 24, |at| (10..23).contains(&at));
    let found = compare(&a, &b).unwrap();
    assert_eq!((found.questions, found.both, found.neither), (24, 8, 1));
    assert_eq!((found.only_a.len(), found.only_b.len()), (10, 5));
    assert_eq!(found.only_a[0], "recall-trained-200-0-0");
    assert_eq!(found.only_b[4], "recall-trained-400-100-2");
    // 2·(1 + 15 + 105 + 455 + 1365 + 3003) / 2^15
    assert_eq!(found.p, 9888.0 / 32768.0);
    assert_eq!(found.same_answers, 9, "8 right ones and `no`");
    assert_eq!(found.settings, [("answerer".into(), "a.jsonl".into(), "b.jsonl".into())]);
    let text = found.to_string();
    for part in
        ["18 of 24 right (75.0 %)", "13 of 24", "p: 0.3018", "only B: recall-trained-400-50-2"]
    {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    let turned = compare(&b, &a).unwrap();
    assert_eq!((turned.p, &turned.only_a, &turned.only_b), (found.p, &found.only_b, &found.only_a));
    let itself = compare(&a, &a).unwrap();
    assert_eq!((itself.p, itself.both, itself.neither, itself.same_answers), (1.0, 18, 6, 24));
}

#[test]
fn other_questions_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let a = result(folder.path(), "a.jsonl", 24, |_| true);
    let refused = |b: &Path, words: &[&str]| {
        for error in [compare(&a, b).unwrap_err(), compare(b, &a).unwrap_err()] {
            let error = error.to_string();
            assert!(words.iter().all(|word| error.contains(word)), "{error}");
        }
    };
    let fewer = result(folder.path(), "fewer.jsonl", 20, |_| true);
    refused(&fewer, &["has 4 questions: recall-trained-400-100-0"]);
    let lines = std::fs::read_to_string(&a).unwrap();
    let b = folder.path().join("b.jsonl");
    let change = |from: &str, to: &str| std::fs::write(&b, lines.replacen(from, to, 1)).unwrap();
    change("\"prompt_sha256\":\"", "\"prompt_sha256\":\"0");
    refused(&b, &["prompts differ in 1 question: recall-trained-200-0-0"]);
    change("\"expected\":\"", "\"expected\":\"0");
    refused(&b, &["expected answers differ in 1 question"]);
    change("\"task\":\"recall\"", "\"task\":\"gsm8k\"");
    refused(&b, &["belongs to"]);
    std::fs::write(&b, "").unwrap();
    refused(&b, &["holds none"]);
    std::fs::write(&b, &lines[..lines.len() - 9]).unwrap();
    refused(&b, &["line 24"]);
    refused(&folder.path().join("absent"), &["could not read"]);
}
