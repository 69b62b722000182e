//! What can go wrong in an evaluation.

use crate::answerer::AnswerError;
use std::path::Path;

/// Result of this crate.
pub type Result<T, E = EvalError> = std::result::Result<T, E>;

/// An evaluation that cannot be made, or two results that cannot be compared.
#[derive(Debug, thiserror::Error)]
pub enum EvalError {
    /// A file cannot be opened, read or written.
    #[error("could not {action} `{file}`: {source}")]
    Io {
        /// What was tried: `read`, `write`, …
        action: &'static str,
        /// The file.
        file: String,
        /// What the system says.
        source: std::io::Error,
    },
    /// A line of a file is not what it must be.
    #[error("`{file}`, line {line}: {finding}")]
    Line {
        /// The file.
        file: String,
        /// The line, from 1.
        line: usize,
        /// What was found.
        finding: String,
    },
    /// A file as a whole is not what it must be.
    #[error("`{file}`: {finding}")]
    File {
        /// The file.
        file: String,
        /// What was found.
        finding: String,
    },
    /// Questions came without ground truth, and none lies where BFCL keeps it.
    #[error("`{data}` holds questions, and there is no `{answers}` with their ground truth")]
    NoGroundTruth {
        /// The file of questions.
        data: String,
        /// Where the ground truth was looked for.
        answers: String,
    },
    /// A setting is out of range.
    #[error("{name} is {value}: {expected}")]
    Setting {
        /// The setting.
        name: &'static str,
        /// What it is.
        value: String,
        /// What it may be.
        expected: &'static str,
    },
    /// The output file holds answers that were got with other settings.
    #[error(
        "`{file}` holds answers got with other settings: `{key}` is {found} there, {wanted} now"
    )]
    OtherSettings {
        /// The file.
        file: String,
        /// The first setting that differs.
        key: String,
        /// Its value in the file.
        found: String,
        /// Its value now.
        wanted: String,
    },
    /// The output file holds an answer to another question of the same id.
    #[error("`{file}`: question `{id}` was another one there (its {part} differs)")]
    OtherQuestion {
        /// The file.
        file: String,
        /// The question's id.
        id: String,
        /// `prompt` or `expected answer`.
        part: &'static str,
    },
    /// Another run writes the output file.
    #[error("`{file}` is being written by another run")]
    Busy {
        /// The file.
        file: String,
    },
    /// A question got no answer.
    #[error("question `{id}` was not answered: {source}")]
    NoAnswer {
        /// The question's id.
        id: String,
        /// Why.
        source: Box<AnswerError>,
    },
    /// Two results are not about the same questions.
    #[error("`{a}` and `{b}` do not hold the same questions: {finding}")]
    Incomparable {
        /// One file.
        a: String,
        /// The other.
        b: String,
        /// How they differ.
        finding: String,
    },
}

impl EvalError {
    /// The next step, where there is one.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::OtherSettings { .. } | Self::OtherQuestion { .. } => {
                Some("give another --out, or remove the file to begin again".into())
            }
            Self::NoGroundTruth { .. } => {
                Some("--answers FILE names the file of the ground truth".into())
            }
            Self::NoAnswer { source, .. } if source.is_about_the_question() => Some(
                "answers so far are kept; --failures-are-wrong counts such questions as wrong and \
                 goes on"
                    .into(),
            ),
            Self::NoAnswer { .. } => {
                Some("answers so far are kept: the same command goes on from there".into())
            }
            _ => None,
        }
    }

    /// A closure for `map_err` on what was tried with a file.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl Fn(std::io::Error) -> EvalError {
        let file = path.display().to_string();
        move |source| EvalError::Io { action, file: file.clone(), source }
    }

    /// Something wrong in one line of a file.
    pub(crate) fn line(path: &Path, line: usize, finding: impl Into<String>) -> EvalError {
        EvalError::Line { file: path.display().to_string(), line, finding: finding.into() }
    }
}
