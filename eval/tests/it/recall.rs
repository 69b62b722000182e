//! The recall questions themselves, and their table.

use crate::support::{Scripted, options, recall_questions, recalled};
use std::collections::HashSet;
use w4pack_eval::recall::{RecallOptions, Wording, questions, table::Table, tokens};
use w4pack_eval::{EvalError, Summary, run};

fn ask(wording: Wording, length: usize, depth: usize, seed: u64) -> (String, String) {
    let options =
        RecallOptions { wording, lengths: vec![length], depths: vec![depth], seeds: vec![seed] };
    let question = questions(&options).unwrap().pop().unwrap();
    let prompt = question.messages[0]["content"].as_str().unwrap().to_owned();
    (prompt, question.expected.as_str().unwrap().to_owned())
}

#[test]
fn every_question_can_be_answered_and_is_as_long_and_deep_as_it_says() {
    for wording in [Wording::Plain, Wording::Trained] {
        for length in [100, 250, 1000, 4000] {
            for (depth, seed) in [(0, 0), (25, 1), (50, 2), (75, 3), (100, 4), (100, 5)] {
                let (prompt, code) = ask(wording, length, depth, seed);
                assert_eq!(recalled(&prompt), code);
                assert_eq!(prompt.matches(&code).count(), 1);
                let counted = tokens(&prompt);
                assert!(counted <= length + 10 && counted + 60 >= length, "{length}: {counted}");
                let records: Vec<&str> = prompt
                    .lines()
                    .filter(|line| line.ends_with(|c: char| c.is_ascii_digit()))
                    .collect();
                let place = records.iter().position(|line| line.ends_with(&code)).unwrap();
                let share = 100 * place / (records.len() - 1).max(1);
                assert!(share.abs_diff(depth) <= 100 / records.len() + 1, "{depth}: {share}");
            }
        }
    }
}

#[test]
fn a_question_depends_on_nothing_but_its_own_place_and_seed() {
    let all = recall_questions();
    for question in &all {
        let (length, depth) = (&question.group["length"], &question.group["depth"]);
        let seed = question.id.rsplit_once('-').unwrap().1.parse().unwrap();
        let number = |value: &serde_json::Value| value.as_u64().unwrap() as usize;
        let (prompt, _) = ask(Wording::Trained, number(length), number(depth), seed);
        assert_eq!(question.messages[0]["content"], prompt);
    }
    let hashes: HashSet<String> = all.iter().map(|question| question.prompt_sha256()).collect();
    assert_eq!(hashes.len(), all.len());
}

/// Pins the questions: results of different versions of w4pack stay comparable.
#[test]
fn the_questions_stay_what_they_are() {
    let (prompt, code) = ask(Wording::Plain, 100, 50, 0);
    let expected = "Below is a list of records. Each record has a number and a six-digit code.\n\n\
                    Record 62920: 476033\nRecord 81556: 132349\nRecord 46248: 244333\n\n\
                    What is the code of record 81556? Answer with the six digits only.";
    assert_eq!((prompt.as_str(), code.as_str()), (expected, "132349"));
}

#[test]
fn settings_out_of_range_are_refused() {
    let good = RecallOptions {
        wording: Wording::Plain,
        lengths: vec![100],
        depths: vec![0],
        seeds: vec![0],
    };
    for bad in [
        RecallOptions { lengths: vec![], ..good.clone() },
        RecallOptions { lengths: vec![99], ..good.clone() },
        RecallOptions { lengths: vec![500_001], ..good.clone() },
        RecallOptions { depths: vec![101], ..good.clone() },
        RecallOptions { seeds: vec![], ..good.clone() },
    ] {
        assert!(matches!(questions(&bad), Err(EvalError::Setting { .. })), "{bad:?}");
    }
    // Twice the same question would count twice.
    let twice = questions(&RecallOptions { seeds: vec![1, 1], ..good }).unwrap();
    let answerer = Scripted::new(recalled);
    assert!(run(&twice, &answerer, &options("recall", None), &mut |_| {}).is_err());
}

#[test]
fn table_and_plot_say_which_cells_failed() {
    // Forgets what stands at the beginning of long lists.
    let answerer = Scripted::new(|prompt: &str| {
        let code = recalled(prompt);
        let early = prompt.find(&code).unwrap() < 40;
        if early && prompt.len() > 400 { "I do not know".into() } else { code }
    });
    let records =
        run(&recall_questions(), &answerer, &options("recall", None), &mut |_| {}).unwrap();
    let summary = Summary::new("recall", "x".into(), &records);
    assert_eq!((summary.total.questions, summary.total.correct), (24, 20));
    let table = Table::new(&summary);
    let text = table.text();
    let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["depth", "200", "400", "tokens"]);
    assert_eq!(rows[1], ["0", "%", "4/4", "0/4"]);
    assert_eq!(rows[3], ["100", "%", "4/4", "4/4"]);
    let svg = table.svg("recall of <x> & y");
    assert!(svg.contains("&lt;x&gt; &amp; y") && !svg.contains("<x>"));
    assert_eq!((svg.matches(">4/4<").count(), svg.matches(">0/4<").count()), (5, 1));
    assert_eq!(svg.matches("<rect").count(), 7);
}
