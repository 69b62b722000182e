//! GSM8K's file, from question to verdict.

use crate::support::{Scripted, options};
use std::fs;
use w4pack_eval::{gsm8k, run};

const DATA: &str = r#####"{"question": "Ann has 3 eggs and buys 4. How many?", "answer": "3 + 4 = <<3+4=7>>7\n#### 7"}
{"question": "A car costs half of $2,500. How much?", "answer": "2500/2 = 1250\n#### 1,250"}
{"question": "What is 3 minus 8?", "answer": "#### -5"}
"#####;

#[test]
fn questions_are_asked_and_numbers_compared() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("test.jsonl");
    fs::write(&data, DATA).unwrap();
    let questions = gsm8k::questions(&data).unwrap();
    let prompt = questions[0].messages[0]["content"].as_str().unwrap();
    assert!(prompt.starts_with("Ann has 3 eggs") && prompt.contains("The answer is"), "{prompt}");
    assert_eq!((questions[1].id.as_str(), &questions[1].expected), ("gsm8k-2", &"1250".into()));
    let answerer = Scripted::new(|prompt: &str| match prompt {
        _ if prompt.starts_with("Ann") => "3 + 4 = 7 eggs. The answer is 7.".into(),
        _ if prompt.starts_with("A car") => "The answer is $1,250.00".into(),
        _ => "The answer is 5.".into(),
    });
    let records = run(&questions, &answerer, &options("gsm8k", None), &mut |_| {}).unwrap();
    let verdicts: Vec<bool> = records.iter().map(|record| record.correct).collect();
    assert_eq!(verdicts, [true, true, false]);
    assert_eq!(records[2].reason.as_deref(), Some("says 5"));
}

#[test]
fn faulty_lines_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("test.jsonl");
    for (line, word) in [
        ("{", "not JSON"),
        ("[]", "not a JSON object"),
        (r#"{"question": "x"}"#, "no `answer`"),
        (r#####"{"question": 1, "answer": "#### 1"}"#####, "`question` is no text"),
        (r#"{"question": "x", "answer": "7"}"#, "####"),
        (r#####"{"question": "x", "answer": "#### many"}"#####, "no number: `many`"),
        (r#####"{"question": "x", "answer": "#### 1", "level": 2}"#####, "`level`"),
    ] {
        fs::write(&data, format!("{DATA}\n{line}\n")).unwrap();
        let error = gsm8k::questions(&data).err().unwrap().to_string();
        assert!(error.contains("line 5") && error.contains(word), "{error}");
    }
    fs::write(&data, "\n").unwrap();
    assert!(gsm8k::questions(&data).err().unwrap().to_string().contains("no line"));
}
