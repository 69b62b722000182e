//! The output file: one JSON line a question, written as answers come, taken up again later.
//!
//! A line is written in one piece. A run that is killed leaves at most half a line at the end,
//! which the next run drops; all other lines count. Every line carries the settings it was got
//! with, so that answers of two settings never mix, and a hash of what was asked.

use crate::answerer::Answer;
use crate::error::{EvalError, Result};
use crate::question::Question;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// One question, answered and judged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// The question's id.
    pub id: String,
    /// What accuracy is broken down by.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub group: Map<String, Value>,
    /// [`Question::prompt_sha256`].
    pub prompt_sha256: String,
    /// The answer; `None` if there was none.
    pub answer: Option<Answer>,
    /// Why there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The right answer.
    pub expected: Value,
    /// Whether the answer is right.
    pub correct: bool,
    /// What is wrong with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Tokens of the prompt, if known.
    pub prompt_tokens: Option<u64>,
    /// Tokens of the answer, if known.
    pub completion_tokens: Option<u64>,
    /// What the answer was got with.
    pub settings: Value,
}

/// An output file that this run owns.
pub struct Log {
    path: PathBuf,
    file: File,
    records: Vec<Record>,
    /// Bytes of half a line that a killed run had left at the end.
    pub dropped: usize,
}

impl Log {
    /// Opens a file, or makes it, and reads what earlier runs left.
    ///
    /// Errors: another run writes it, a line is no record, an id is there twice, or a line was got
    /// with other settings or asked another question than the one of its id in `questions`.
    pub fn open(path: &Path, settings: &Value, questions: &[Question]) -> Result<Self> {
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(EvalError::io("open", path))?;
        let name = || path.display().to_string();
        file.try_lock().map_err(|error| match error {
            fs::TryLockError::WouldBlock => EvalError::Busy { file: name() },
            fs::TryLockError::Error(source) => EvalError::io("lock", path)(source),
        })?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(EvalError::io("read", path))?;
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let records = parse(path, &bytes[..whole])?;
        check(path, &records, settings, questions)?;
        // Only now: a file that is refused stays as it was.
        file.set_len(whole as u64).map_err(EvalError::io("write", path))?;
        file.seek(SeekFrom::End(0)).map_err(EvalError::io("write", path))?;
        let dropped = bytes.len() - whole;
        Ok(Self { path: path.to_owned(), file, records, dropped })
    }

    /// What is there.
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// Adds a line.
    pub fn push(&mut self, record: Record) -> Result<()> {
        self.file.write_all(&line(&record)).map_err(EvalError::io("write", &self.path))?;
        self.records.push(record);
        Ok(())
    }

    /// Puts the lines in the order of the questions (those of other questions behind), so that the
    /// file of a run does not depend on who was answered first or where it was broken off.
    pub fn finish(mut self, questions: &[Question]) -> Result<Vec<Record>> {
        let place: HashMap<&str, usize> =
            questions.iter().enumerate().map(|(at, question)| (question.id.as_str(), at)).collect();
        let order = |record: &Record| place.get(record.id.as_str()).copied().unwrap_or(usize::MAX);
        if !self.records.is_sorted_by_key(order) {
            self.records.sort_by_key(order);
            self.rewrite()?;
        }
        self.file.sync_all().map_err(EvalError::io("write", &self.path))?;
        Ok(self.records)
    }

    fn rewrite(&self) -> Result<()> {
        let error = EvalError::io("write", &self.path);
        let folder = match self.path.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        };
        let mut sorted = tempfile::NamedTempFile::new_in(folder).map_err(&error)?;
        for record in &self.records {
            sorted.write_all(&line(record)).map_err(&error)?;
        }
        let permissions = self.file.metadata().map_err(&error)?.permissions();
        sorted.as_file().set_permissions(permissions).map_err(&error)?;
        sorted.as_file().sync_all().map_err(&error)?;
        sorted.persist(&self.path).map_err(|failed| error(failed.error))?;
        Ok(())
    }
}

/// Reads the records of a finished file.
///
/// Errors: it cannot be read, or a line is no record; half a line at the end is one such.
pub fn read(path: &Path) -> Result<Vec<Record>> {
    parse(path, &fs::read(path).map_err(EvalError::io("read", path))?)
}

fn line(record: &Record) -> Vec<u8> {
    let mut line = serde_json::to_vec(record).expect("a record has text keys only");
    line.push(b'\n');
    line
}

fn parse(path: &Path, bytes: &[u8]) -> Result<Vec<Record>> {
    let mut records: Vec<Record> = Vec::new();
    let mut lines: HashMap<String, usize> = HashMap::new();
    for (index, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
        if line.is_empty() {
            continue;
        }
        let record: Record = serde_json::from_slice(line).map_err(|error| {
            EvalError::line(path, index + 1, format!("not a record of an evaluation ({error})"))
        })?;
        if let Some(first) = lines.insert(record.id.clone(), index + 1) {
            let finding = format!("question `{}` is in line {first} already", record.id);
            return Err(EvalError::line(path, index + 1, finding));
        }
        records.push(record);
    }
    Ok(records)
}

fn check(path: &Path, records: &[Record], settings: &Value, questions: &[Question]) -> Result<()> {
    let questions: HashMap<&str, &Question> =
        questions.iter().map(|question| (question.id.as_str(), question)).collect();
    let file = || path.display().to_string();
    for record in records {
        if let Some(key) = first_difference(&record.settings, settings) {
            let at = |value: &Value| value.get(&key).unwrap_or(&Value::Null).to_string();
            let (found, wanted) = (at(&record.settings), at(settings));
            return Err(EvalError::OtherSettings { file: file(), key, found, wanted });
        }
        let Some(question) = questions.get(record.id.as_str()) else { continue };
        let other = |part| EvalError::OtherQuestion { file: file(), id: record.id.clone(), part };
        if record.prompt_sha256 != question.prompt_sha256() {
            return Err(other("prompt"));
        }
        if record.expected != question.expected {
            return Err(other("expected answer"));
        }
    }
    Ok(())
}

/// The first key whose values differ between two objects, or that only one of them has.
pub(crate) fn first_difference(a: &Value, b: &Value) -> Option<String> {
    let keys =
        |value: &Value| value.as_object().map_or(Vec::new(), |map| map.keys().cloned().collect());
    keys(b).into_iter().chain(keys(a)).find(|key| a.get(key) != b.get(key))
}
