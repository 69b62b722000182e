//! Answerers that say what a test wants.

#[path = "../../../../testing/nobody.rs"]
mod nobody;
pub mod server;

pub use nobody::Nobody;

use serde_json::Value;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use w4pack_eval::{Answer, AnswerError, Answerer, Asked, Question, Reply, RunOptions};
use w4pack_runtime::Sampling;

/// Answers by a function of the last message; breaks down after so many answers.
pub struct Scripted<F> {
    pub name: &'static str,
    pub concurrency: usize,
    pub breaks_after: usize,
    pub answered: AtomicUsize,
    pub script: F,
}

impl<F: Fn(&str) -> String + Sync> Scripted<F> {
    pub fn new(script: F) -> Self {
        let answered = AtomicUsize::new(0);
        Self { name: "scripted", concurrency: 1, breaks_after: usize::MAX, answered, script }
    }
}

impl<F: Fn(&str) -> String + Sync> Answerer for Scripted<F> {
    fn identity(&self) -> Value {
        self.name.into()
    }

    fn concurrency(&self) -> usize {
        self.concurrency
    }

    fn answer(&self, asked: &Asked<'_>) -> Result<Reply, AnswerError> {
        if self.answered.fetch_add(1, Ordering::SeqCst) >= self.breaks_after {
            let (url, finding) = ("scripted".into(), "gone".into());
            return Err(AnswerError::Connection { url, tries: 1, finding });
        }
        let content = asked.messages[asked.messages.len() - 1]["content"].as_str().unwrap();
        let answer = Answer { content: Some((self.script)(content)), ..Answer::default() };
        Ok(Reply { answer, prompt_tokens: Some(7), completion_tokens: Some(3) })
    }
}

/// Greedy, at most 64 tokens, lines to `out`.
pub fn options(task: &'static str, out: Option<&Path>) -> RunOptions {
    RunOptions {
        task,
        max_tokens: 64,
        sampling: Sampling::GREEDY,
        thinking: None,
        failures_are_wrong: false,
        out: out.map(Path::to_owned),
    }
}

/// Finds the asked record in a recall prompt, as a perfect model would: the code on the line that
/// holds the number the question names.
pub fn recalled(prompt: &str) -> String {
    let (list, question) = prompt.rsplit_once('\n').unwrap();
    let digits = |text: &str| -> Vec<String> {
        let runs = text.split(|c: char| !c.is_ascii_digit()).filter(|run| !run.is_empty());
        runs.map(str::to_owned).collect()
    };
    let number = digits(question).pop().unwrap();
    let line = list.lines().map(digits).find(|found| found.len() == 2 && found[0] == number);
    line.unwrap().pop().unwrap()
}

/// The recall questions of two lengths, three depths and four seeds: 24.
pub fn recall_questions() -> Vec<Question> {
    w4pack_eval::recall::questions(&w4pack_eval::recall::RecallOptions {
        wording: w4pack_eval::recall::Wording::Trained,
        lengths: vec![200, 400],
        depths: vec![0, 50, 100],
        seeds: vec![0, 1, 2, 3],
    })
    .unwrap()
}

pub fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}
