//! What came of a run.

use crate::log::Record;
use serde::Serialize;
use serde_json::{Map, Value};
use std::fmt;

/// Counts over all records, and over each group.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// `recall`, `gsm8k`, `bfcl`.
    pub task: String,
    /// What answered.
    pub answerer: Value,
    /// All questions together.
    #[serde(flatten)]
    pub total: Score,
    /// Questions that got no answer and count as wrong.
    pub failures: usize,
    /// Answers that were cut at the longest length.
    pub cut: usize,
    /// Tokens of all prompts, of those that are known.
    pub prompt_tokens: u64,
    /// Tokens of all answers, of those that are known.
    pub completion_tokens: u64,
    /// Each group of questions, in the order of the questions.
    pub groups: Vec<Group>,
}

/// How many are right.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Score {
    /// Questions.
    pub questions: usize,
    /// Right answers.
    pub correct: usize,
}

/// The questions that have one thing in common.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Group {
    /// What they have in common.
    pub group: Map<String, Value>,
    /// How many are right.
    #[serde(flatten)]
    pub score: Score,
}

impl Score {
    fn add(&mut self, correct: bool) {
        self.questions += 1;
        self.correct += usize::from(correct);
    }

    /// Right answers a question; `None` without questions.
    pub fn accuracy(&self) -> Option<f64> {
        (self.questions > 0).then(|| self.correct as f64 / self.questions as f64)
    }

    /// The 95 % interval of the accuracy by Wilson's score, which holds for few questions and near
    /// 0 and 1 too.
    pub fn interval(&self) -> Option<(f64, f64)> {
        const Z: f64 = 1.959_963_984_540_054;
        let (n, p) = (self.questions as f64, self.accuracy()?);
        let middle = p + Z * Z / (2.0 * n);
        let reach = Z * (p * (1.0 - p) / n + Z * Z / (4.0 * n * n)).sqrt();
        let scale = 1.0 + Z * Z / n;
        Some((((middle - reach) / scale).max(0.0), ((middle + reach) / scale).min(1.0)))
    }
}

impl Summary {
    /// Counts. `answerer` is [`Answerer::identity`](crate::Answerer::identity).
    pub fn new(task: &str, answerer: Value, records: &[Record]) -> Self {
        let mut summary = Self {
            task: task.to_owned(),
            answerer,
            total: Score::default(),
            failures: 0,
            cut: 0,
            prompt_tokens: 0,
            completion_tokens: 0,
            groups: Vec::new(),
        };
        for record in records {
            summary.total.add(record.correct);
            summary.failures += usize::from(record.error.is_some());
            let reason = record.answer.as_ref().and_then(|answer| answer.finish_reason.as_deref());
            summary.cut += usize::from(reason == Some("length"));
            summary.prompt_tokens += record.prompt_tokens.unwrap_or(0);
            summary.completion_tokens += record.completion_tokens.unwrap_or(0);
            if record.group.is_empty() {
                continue;
            }
            let found = summary.groups.iter().position(|group| group.group == record.group);
            let place = found.unwrap_or_else(|| {
                let (group, score) = (record.group.clone(), Score::default());
                summary.groups.push(Group { group, score });
                summary.groups.len() - 1
            });
            summary.groups[place].score.add(record.correct);
        }
        summary
    }

    /// The summary as JSON, with accuracy and interval written out.
    pub fn to_json(&self) -> Value {
        let mut json = serde_json::to_value(self).expect("a summary has text keys only");
        let interval = self.total.interval().map(|(low, high)| vec![low, high]);
        json["accuracy"] = self.total.accuracy().into();
        json["interval_95"] = interval.into();
        json
    }
}

impl fmt::Display for Score {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} of {}", self.correct, self.questions)?;
        match self.accuracy() {
            Some(accuracy) => write!(out, " ({:.1} %)", 100.0 * accuracy),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {} right", self.task, self.total)?;
        if let Some((low, high)) = self.total.interval() {
            write!(out, ", 95 % interval {:.1} to {:.1} %", 100.0 * low, 100.0 * high)?;
        }
        writeln!(out)?;
        if self.failures > 0 {
            writeln!(out, "{} got no answer and count as wrong", self.failures)?;
        }
        if self.cut > 0 {
            writeln!(out, "{} were cut at the longest length", self.cut)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wilsons_interval() {
        let near = |(low, high): (f64, f64), expected: (f64, f64)| {
            (low - expected.0).abs() < 5e-4 && (high - expected.1).abs() < 5e-4
        };
        let interval = |correct, questions| Score { questions, correct }.interval();
        // Textbook values: 0 of 10, 10 of 10, 81 of 263.
        assert!(interval(0, 10).is_some_and(|found| near(found, (0.0, 0.2775))));
        assert!(interval(10, 10).is_some_and(|found| near(found, (0.7225, 1.0))));
        assert!(interval(81, 263).is_some_and(|found| near(found, (0.2553, 0.3662))));
        assert_eq!(interval(0, 0), None);
    }
}
