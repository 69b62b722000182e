//! Two results of the same questions, side by side.
//!
//! Two accuracies say little about which answerer is better; the questions that only one of them
//! got right say it all. How likely such a difference is by chance is McNemar's p.

use crate::error::{EvalError, Result};
use crate::log::{self, Record, first_difference};
use crate::mcnemar::exact_p;
use serde::Serialize;
use serde_json::Value;
use std::collections::HashMap;
use std::fmt;
use std::path::Path;

/// How many ids an error shows.
const SHOWN_IDS: usize = 5;

/// What came of a comparison.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// One file.
    pub a: String,
    /// The other.
    pub b: String,
    /// Questions in both.
    pub questions: usize,
    /// Both right.
    pub both: usize,
    /// Ids of the questions that only A got right.
    pub only_a: Vec<String>,
    /// Ids of the questions that only B got right.
    pub only_b: Vec<String>,
    /// Neither right.
    pub neither: usize,
    /// Questions to which both gave word for word the same answer.
    pub same_answers: usize,
    /// McNemar's exact two-sided p.
    pub p: f64,
    /// Settings that differ: name, A's value, B's value.
    pub settings: Vec<(String, Value, Value)>,
}

/// Compares two output files.
///
/// Errors: a file cannot be read or is no result, or the two do not hold exactly the same
/// questions (by id, by what was asked, and by the expected answer).
pub fn compare(a: &Path, b: &Path) -> Result<Comparison> {
    let (records_a, records_b) = (log::read(a)?, log::read(b)?);
    let (name_a, name_b) = (a.display().to_string(), b.display().to_string());
    let incomparable =
        |finding: String| EvalError::Incomparable { a: name_a.clone(), b: name_b.clone(), finding };
    if records_a.is_empty() || records_b.is_empty() {
        return Err(incomparable("one of them holds none".into()));
    }
    let pairs = pair(&records_a, &records_b).map_err(&incomparable)?;
    let task = |record: &Record| record.settings.get("task").cloned();
    if let Some((a, b)) = pairs.iter().find(|(a, b)| task(a) != task(b)) {
        return Err(incomparable(format!(
            "`{}` belongs to {:?} and to {:?}",
            a.id,
            task(a),
            task(b)
        )));
    }

    let mut comparison = Comparison {
        questions: pairs.len(),
        both: 0,
        only_a: Vec::new(),
        only_b: Vec::new(),
        neither: 0,
        same_answers: 0,
        p: 1.0,
        settings: differing(&records_a[0].settings, &records_b[0].settings),
        a: name_a,
        b: name_b,
    };
    for (a, b) in pairs {
        match (a.correct, b.correct) {
            (true, true) => comparison.both += 1,
            (true, false) => comparison.only_a.push(a.id.clone()),
            (false, true) => comparison.only_b.push(a.id.clone()),
            (false, false) => comparison.neither += 1,
        }
        comparison.same_answers += usize::from(a.answer.is_some() && a.answer == b.answer);
    }
    let (only_a, only_b) = (comparison.only_a.len() as u64, comparison.only_b.len() as u64);
    comparison.p = exact_p(only_a, only_b);
    Ok(comparison)
}

/// The records of each question, in A's order.
fn pair<'r>(a: &'r [Record], b: &'r [Record]) -> Result<Vec<(&'r Record, &'r Record)>, String> {
    let by_id = |records: &'r [Record]| -> HashMap<&'r str, &'r Record> {
        records.iter().map(|record| (record.id.as_str(), record)).collect()
    };
    let (in_a, in_b) = (by_id(a), by_id(b));
    let only = |of: &'r [Record], other: &HashMap<&str, &Record>| -> Vec<&'r str> {
        of.iter().map(|record| record.id.as_str()).filter(|id| !other.contains_key(id)).collect()
    };
    for (name, missing) in [("first", only(a, &in_b)), ("second", only(b, &in_a))] {
        if !missing.is_empty() {
            return Err(format!("only the {name} has {}", some(&missing)));
        }
    }
    let pairs: Vec<(&Record, &Record)> =
        a.iter().map(|record| (record, in_b[record.id.as_str()])).collect();
    let differing = |differ: &dyn Fn(&Record, &Record) -> bool| -> Vec<&'r str> {
        pairs.iter().filter(|(a, b)| differ(a, b)).map(|(a, _)| a.id.as_str()).collect()
    };
    let prompts = differing(&|a, b| a.prompt_sha256 != b.prompt_sha256);
    let expected = differing(&|a, b| a.expected != b.expected);
    for (what, ids) in [("prompts", prompts), ("expected answers", expected)] {
        if !ids.is_empty() {
            return Err(format!("their {what} differ in {}", some(&ids)));
        }
    }
    Ok(pairs)
}

fn some(ids: &[&str]) -> String {
    let shown = ids[..ids.len().min(SHOWN_IDS)].join(", ");
    let more = if ids.len() > SHOWN_IDS { ", …" } else { "" };
    format!("{} question{}: {shown}{more}", ids.len(), if ids.len() == 1 { "" } else { "s" })
}

fn differing(a: &Value, b: &Value) -> Vec<(String, Value, Value)> {
    let (mut a, mut b) = (a.clone(), b.clone());
    let mut found = Vec::new();
    while let Some(key) = first_difference(&a, &b) {
        let take = |from: &mut Value| {
            let map = from.as_object_mut();
            map.and_then(|map| map.shift_remove(&key)).unwrap_or(Value::Null)
        };
        let (in_a, in_b) = (take(&mut a), take(&mut b));
        found.push((key, in_a, in_b));
    }
    found
}

impl fmt::Display for Comparison {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (only_a, only_b) = (self.only_a.len(), self.only_b.len());
        let share = |correct: usize| 100.0 * correct as f64 / self.questions.max(1) as f64;
        let (right_a, right_b) = (self.both + only_a, self.both + only_b);
        writeln!(
            out,
            "A: {}: {right_a} of {} right ({:.1} %)",
            self.a,
            self.questions,
            share(right_a)
        )?;
        writeln!(
            out,
            "B: {}: {right_b} of {} right ({:.1} %)",
            self.b,
            self.questions,
            share(right_b)
        )?;
        for (key, a, b) in &self.settings {
            writeln!(out, "{key}: A {a}, B {b}")?;
        }
        writeln!(out)?;
        for (what, count) in [
            ("both right", self.both),
            ("only A right", only_a),
            ("only B right", only_b),
            ("neither right", self.neither),
            ("same answer, word for word", self.same_answers),
        ] {
            writeln!(out, "{what:<28}{count:>6}")?;
        }
        writeln!(out, "\nMcNemar's exact p: {}", probability(self.p))?;
        for (what, ids) in [("only A", &self.only_a), ("only B", &self.only_b)] {
            if !ids.is_empty() {
                writeln!(out, "{what}: {}", ids.join(" "))?;
            }
        }
        Ok(())
    }
}

fn probability(p: f64) -> String {
    match p {
        0.0 => "below 1e-300".into(),
        small if small < 1e-3 => format!("{small:.2e}"),
        _ => format!("{p:.4}"),
    }
}
