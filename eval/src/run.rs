//! Ask, judge, write.

use crate::answerer::{AnswerError, Answerer, Asked, Reply};
use crate::error::{EvalError, Result};
use crate::log::{Log, Record};
use crate::question::Question;
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use w4pack_runtime::Sampling;

/// How a run is made.
#[derive(Debug, Clone)]
pub struct RunOptions {
    /// `recall`, `gsm8k`, `bfcl`.
    pub task: &'static str,
    /// Longest answer in tokens.
    pub max_tokens: usize,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Thinking on or off; `None` leaves it to the model.
    pub thinking: Option<bool>,
    /// Count a question that the model refuses as wrong instead of stopping there.
    pub failures_are_wrong: bool,
    /// Where lines go; `None` keeps nothing.
    pub out: Option<PathBuf>,
}

impl RunOptions {
    /// What every line of the output file carries: all that decides an answer beside the question.
    pub fn settings(&self, answerer: &dyn Answerer) -> Value {
        let sampling = &self.sampling;
        json!({
            "task": self.task,
            "answerer": answerer.identity(),
            "max_tokens": self.max_tokens,
            "temperature": sampling.temperature,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
            "min_p": sampling.min_p,
            "seed": sampling.seed,
            "thinking": self.thinking,
            "failures_are_wrong": self.failures_are_wrong,
        })
    }
}

/// How far a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// The run begins.
    Begun {
        /// Questions that have to be answered.
        questions: usize,
        /// Questions that the output file answers already.
        kept: usize,
        /// Lines of the output file that are about other questions, and stay as they are.
        others: usize,
        /// Bytes of half a line that were dropped from the end of the output file.
        dropped: usize,
    },
    /// One more answer.
    Answered {
        /// Whether it is right.
        correct: bool,
    },
}

/// Asks every question that the output file does not answer, as many at once as the answerer
/// takes, and returns the records of all questions in their order.
///
/// Errors: ids that are not unique, settings out of range, an output file that does not fit, or a
/// question without an answer. What was answered before an error is in the output file.
pub fn run(
    questions: &[Question],
    answerer: &dyn Answerer,
    options: &RunOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<Vec<Record>> {
    check(questions, options)?;
    let settings = options.settings(answerer);
    let out = options.out.as_deref();
    let mut log = out.map(|path| Log::open(path, &settings, questions)).transpose()?;
    let mut records: HashMap<String, Record> = HashMap::new();
    let ids: HashSet<&str> = questions.iter().map(|question| question.id.as_str()).collect();
    let (mut others, mut dropped) = (0, 0);
    if let Some(log) = &log {
        dropped = log.dropped;
        for record in log.records() {
            match ids.contains(record.id.as_str()) {
                true => drop(records.insert(record.id.clone(), record.clone())),
                false => others += 1,
            }
        }
    }
    let open: Vec<&Question> =
        questions.iter().filter(|question| !records.contains_key(&question.id)).collect();
    progress(Progress::Begun { questions: open.len(), kept: records.len(), others, dropped });

    ask_all(&open, answerer, options, &mut |question, outcome| {
        let record = judged(question, outcome, options, &settings)?;
        progress(Progress::Answered { correct: record.correct });
        if let Some(log) = &mut log {
            log.push(record.clone())?;
        }
        records.insert(record.id.clone(), record);
        Ok(())
    })?;
    if let Some(log) = log {
        log.finish(questions)?;
    }
    let record = |question: &Question| records.remove(&question.id);
    Ok(questions.iter().filter_map(record).collect())
}

fn check(questions: &[Question], options: &RunOptions) -> Result<()> {
    let mut seen = HashSet::new();
    if let Some(twice) = questions.iter().find(|question| !seen.insert(&question.id)) {
        let (value, expected) = (twice.id.clone(), "unique, but two questions have it");
        return Err(EvalError::Setting { name: "a question's id", value, expected });
    }
    if options.max_tokens == 0 {
        let (value, expected) = ("0".into(), "at least 1");
        return Err(EvalError::Setting { name: "max_tokens", value, expected });
    }
    Ok(())
}

type Outcome = Result<Reply, AnswerError>;

/// Asks questions in their order from as many threads as the answerer takes requests; `take` gets
/// the outcomes as they come. After its first error no further question is asked; the answers that
/// are under way then still come, and count.
fn ask_all<'q>(
    questions: &[&'q Question],
    answerer: &dyn Answerer,
    options: &RunOptions,
    take: &mut dyn FnMut(&'q Question, Outcome) -> Result<()>,
) -> Result<()> {
    let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    let (sender, receiver) = mpsc::channel();
    let ask = |sender: mpsc::Sender<(usize, Outcome)>| {
        while !stop.load(Ordering::Relaxed) {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(question) = questions.get(index) else { break };
            let outcome = answerer.answer(&Asked {
                messages: &question.messages,
                tools: &question.tools,
                max_tokens: options.max_tokens,
                sampling: options.sampling,
                thinking: options.thinking,
            });
            if sender.send((index, outcome)).is_err() {
                break;
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..answerer.concurrency().min(questions.len()) {
            let sender = sender.clone();
            scope.spawn(|| ask(sender));
        }
        drop(sender);
        let mut result = Ok(());
        for (index, outcome) in receiver {
            let taken = take(questions[index], outcome);
            if taken.is_err() {
                stop.store(true, Ordering::Relaxed);
            }
            result = result.and(taken);
        }
        result
    })
}

fn judged(
    question: &Question,
    outcome: Outcome,
    options: &RunOptions,
    settings: &Value,
) -> Result<Record> {
    let mut record = Record {
        id: question.id.clone(),
        group: question.group.clone(),
        prompt_sha256: question.prompt_sha256(),
        answer: None,
        error: None,
        expected: question.expected.clone(),
        correct: false,
        reason: None,
        prompt_tokens: None,
        completion_tokens: None,
        settings: settings.clone(),
    };
    match outcome {
        Ok(reply) => {
            record.reason = question.judge.judge(&reply.answer).err();
            record.correct = record.reason.is_none();
            record.prompt_tokens = reply.prompt_tokens;
            record.completion_tokens = reply.completion_tokens;
            record.answer = Some(reply.answer);
        }
        Err(error) if options.failures_are_wrong && error.is_about_the_question() => {
            record.error = Some(error.to_string());
        }
        Err(error) => {
            return Err(EvalError::NoAnswer { id: record.id, source: Box::new(error) });
        }
    }
    Ok(record)
}
