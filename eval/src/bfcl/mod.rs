//! BFCL, the Berkeley Function-Calling Leaderboard: its simple, multiple, parallel and
//! parallel-multiple questions, which ask for one round of calls.
//!
//! A line of the data is `{"id", "question": [[messages]], "function": [declarations]}`, a line of
//! the answers `{"id", "ground_truth": [{NAME: {PARAMETER: [acceptable values]}}]}`. BFCL keeps the
//! answers in a folder `possible_answer` beside the data, in a file of the same name.

mod calls;
mod declaration;
mod values;

use crate::answerer::Answer;
use crate::error::{EvalError, Result};
use crate::lines::{objects, unknown_keys};
use crate::question::{Judge, Question};
pub use calls::{Expected, Truth};
pub use declaration::Declaration;
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// Where the questions are, and how functions are named to the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BfclOptions {
    /// The questions.
    pub data: PathBuf,
    /// The ground truth; `None`: where BFCL keeps it.
    pub answers: Option<PathBuf>,
    /// Write the dots in names of functions as underscores, for servers that take no dots.
    pub underscores: bool,
}

/// Reads the questions and their ground truth.
///
/// Errors name file and line: what is no JSON, a missing, unknown or mistyped field, several turns,
/// another language than Python (its arguments are source text), an id without ground truth, a
/// ground truth that does not fit the declarations.
pub fn questions(options: &BfclOptions) -> Result<Vec<Question>> {
    let answers = options.answers.clone().unwrap_or_else(|| beside(&options.data));
    if options.answers.is_none() && options.data.exists() && !answers.exists() {
        return Err(EvalError::NoGroundTruth {
            data: options.data.display().to_string(),
            answers: answers.display().to_string(),
        });
    }
    let mut truths = HashMap::new();
    for (line, object) in objects(&answers)? {
        if let Some(keys) = unknown_keys(&object, &["id", "ground_truth"]) {
            return Err(EvalError::line(&answers, line, format!("unknown fields: {keys}")));
        }
        let id = text(&answers, line, &object, "id")?;
        let truth = object.get("ground_truth").and_then(Value::as_array);
        let truth =
            truth.ok_or_else(|| EvalError::line(&answers, line, "no list `ground_truth`"))?;
        if truths.insert(id.clone(), (line, truth.clone())).is_some() {
            return Err(EvalError::line(&answers, line, format!("`{id}` is there twice")));
        }
    }
    objects(&options.data)?
        .into_iter()
        .map(|(line, object)| {
            let id = text(&options.data, line, &object, "id")?;
            let (truth_line, truth) = truths.get(&id).ok_or_else(|| {
                let finding = format!("`{id}` has no ground truth in `{}`", answers.display());
                EvalError::line(&options.data, line, finding)
            })?;
            let question = question(options, id, &object)
                .map_err(|finding| EvalError::line(&options.data, line, finding))?;
            let (question, declarations) = question;
            let expected = Expected::parse(truth, &declarations, options.underscores)
                .map_err(|finding| EvalError::line(&answers, *truth_line, finding))?;
            Ok(Question {
                expected: Value::Array(truth.clone()),
                judge: Box::new(expected),
                ..question
            })
        })
        .collect()
}

fn beside(data: &Path) -> PathBuf {
    let name = data.file_name().unwrap_or_default();
    data.parent().unwrap_or(Path::new("")).join("possible_answer").join(name)
}

fn text(path: &Path, line: usize, object: &Map<String, Value>, key: &str) -> Result<String> {
    let text = object.get(key).and_then(Value::as_str);
    let text = text.ok_or_else(|| EvalError::line(path, line, format!("no text `{key}`")))?;
    Ok(text.to_owned())
}

/// A question that nobody judges yet, and its functions.
fn question(
    options: &BfclOptions,
    id: String,
    object: &Map<String, Value>,
) -> Result<(Question, Vec<Declaration>), String> {
    if let Some(keys) = unknown_keys(object, &["id", "question", "function"]) {
        return Err(format!("`{id}`: unknown fields: {keys}"));
    }
    let category = category(&id);
    if category.contains("java") {
        return Err(format!("`{id}`: only Python's questions can be judged, this is {category}"));
    }
    let functions = match object.get("function") {
        Some(Value::Array(list)) if !list.is_empty() => list.clone(),
        Some(function @ Value::Object(_)) => vec![function.clone()],
        _ => return Err(format!("`{id}`: `function` is no list of functions")),
    };
    let declarations = functions.iter().map(Declaration::parse).collect::<Result<Vec<_>, _>>();
    let declarations = declarations.map_err(|finding| format!("`{id}`: {finding}"))?;
    let mut group = Map::new();
    group.insert("category".into(), category.into());
    let question = Question {
        messages: messages(object.get("question")).map_err(|what| format!("`{id}`: {what}"))?,
        tools: declarations.iter().map(|function| function.tool(options.underscores)).collect(),
        id,
        group,
        expected: Value::Null,
        judge: Box::new(Expected::default()),
    };
    Ok((question, declarations))
}

/// `simple_python_12` is of `simple_python`, `live_simple_0-0-0` of `live_simple`.
fn category(id: &str) -> &str {
    id.trim_end_matches(|character: char| character.is_ascii_digit() || character == '-')
        .trim_end_matches('_')
}

/// The messages of the only turn.
fn messages(question: Option<&Value>) -> Result<Vec<Value>, String> {
    let turns = question.and_then(Value::as_array).ok_or("`question` is no list")?;
    let messages = match turns.as_slice() {
        [Value::Array(messages)] => messages,
        [Value::Array(_), ..] => return Err(format!("has {} turns, not one", turns.len())),
        // Older files hold the messages themselves.
        _ => turns,
    };
    let is_message = |message: &Value| {
        let text = |key| message.get(key).is_some_and(Value::is_string);
        text("role") && text("content")
    };
    match messages.is_empty() || !messages.iter().all(is_message) {
        true => Err("`question` holds something that is no message".into()),
        false => Ok(messages.clone()),
    }
}

impl Judge for Expected {
    fn judge(&self, answer: &Answer) -> Result<(), String> {
        self.check(&answer.calls)
    }
}

#[cfg(test)]
mod tests {
    use super::category;

    #[test]
    fn categories() {
        for (id, expected) in [
            ("simple_python_12", "simple_python"),
            ("parallel_multiple_3", "parallel_multiple"),
            ("live_simple_0-0-0", "live_simple"),
            ("multiple_199", "multiple"),
        ] {
            assert_eq!(category(id), expected);
        }
    }
}
