//! GSM8K: word problems whose answer is a number.
//!
//! A line of the data is `{"question": …, "answer": … #### 72}`.

pub mod number;

use crate::answerer::Answer;
use crate::error::{EvalError, Result};
use crate::lines::{objects, unknown_keys};
use crate::question::{Judge, Question};
use num_rational::BigRational;
use serde_json::{Map, Value, json};
use std::path::Path;

const INSTRUCTION: &str = "Solve the problem step by step. End with a line that says \
                           \"The answer is\" and the number.";

/// Reads the questions of a data file; the id of a question is its line, from 1.
///
/// Errors name file and line: no JSON, a missing, unknown or mistyped field, an answer that does
/// not end in `#### NUMBER`.
pub fn questions(path: &Path) -> Result<Vec<Question>> {
    objects(path)?.into_iter().map(|(line, object)| question(path, line, &object)).collect()
}

fn question(path: &Path, line: usize, object: &Map<String, Value>) -> Result<Question> {
    let wrong = |finding: String| EvalError::line(path, line, finding);
    if let Some(keys) = unknown_keys(object, &["question", "answer"]) {
        return Err(wrong(format!("unknown fields: {keys}")));
    }
    let text = |key: &str| match object.get(key) {
        Some(Value::String(text)) => Ok(text.as_str()),
        Some(_) => Err(wrong(format!("`{key}` is no text"))),
        None => Err(wrong(format!("no `{key}`"))),
    };
    let (problem, answer) = (text("question")?, text("answer")?);
    let (_, expected) =
        answer.rsplit_once("####").ok_or_else(|| wrong("the answer has no `####`".into()))?;
    let expected = expected.trim();
    let number = number::whole(expected)
        .ok_or_else(|| wrong(format!("behind `####` stands no number: `{expected}`")))?;
    Ok(Question {
        id: format!("gsm8k-{line}"),
        group: Map::new(),
        messages: vec![json!({"role": "user", "content": format!("{problem}\n\n{INSTRUCTION}")})],
        tools: Vec::new(),
        expected: number.to_string().into(),
        judge: Box::new(Number(number)),
    })
}

/// Right is an answer whose final number is this one, exactly.
struct Number(BigRational);

impl Judge for Number {
    fn judge(&self, answer: &Answer) -> Result<(), String> {
        let content = answer.content.as_deref().unwrap_or_default();
        match number::last(content) {
            Some(found) if found == self.0 => Ok(()),
            Some(found) => Err(format!("says {found}")),
            None => Err("holds no number".into()),
        }
    }
}
