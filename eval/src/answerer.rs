//! Whoever answers: messages and tools in, content and calls out.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use w4pack_runtime::chat::ChatError;
use w4pack_runtime::{RuntimeError, Sampling};

/// One request.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    /// OpenAI's messages.
    pub messages: &'a [Value],
    /// OpenAI's tools; may be empty.
    pub tools: &'a [Value],
    /// Longest answer in tokens.
    pub max_tokens: usize,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Thinking on or off; `None` leaves it to the model.
    pub thinking: Option<bool>,
}

/// An answer, taken apart.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Answer {
    /// The thought, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<String>,
    /// The text, if there is any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// Tool calls, in the order they were written.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<Call>,
    /// `stop`, `length`, `tool_calls`, …: why it ended, in the answerer's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finish_reason: Option<String>,
}

/// A tool call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Call {
    /// The function.
    pub name: String,
    /// Its arguments: an object, or the text that should have been one.
    pub arguments: Value,
}

impl Call {
    /// A call whose arguments came as text. What is not JSON stays text, to be judged wrong.
    pub fn from_text(name: String, arguments: &str) -> Self {
        let parsed = serde_json::from_str(arguments);
        Self { name, arguments: parsed.unwrap_or_else(|_| Value::String(arguments.to_owned())) }
    }
}

/// An answer and what it took.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reply {
    /// The answer.
    pub answer: Answer,
    /// Tokens of the prompt, if known.
    pub prompt_tokens: Option<u64>,
    /// Tokens that were generated, if known.
    pub completion_tokens: Option<u64>,
}

/// A model that answers.
pub trait Answerer: Sync {
    /// What answers, as a setting of the run: two runs with equal identities may share a file.
    fn identity(&self) -> Value;

    /// Requests it takes at once.
    fn concurrency(&self) -> usize;

    /// Answers one request.
    fn answer(&self, asked: &Asked<'_>) -> Result<Reply, AnswerError>;
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum AnswerError {
    /// The server refused or failed, also when asked again.
    #[error("{url} answered {status} ({tries}): {body}", tries = asked(*tries))]
    Status {
        /// Where it was asked.
        url: String,
        /// The last HTTP status.
        status: u16,
        /// How often it was asked.
        tries: usize,
        /// The beginning of what it said.
        body: String,
    },
    /// There was no reply at all.
    #[error("no reply from {url} ({tries}): {finding}", tries = asked(*tries))]
    Connection {
        /// Where it was asked.
        url: String,
        /// How often it was asked.
        tries: usize,
        /// What happened the last time.
        finding: String,
    },
    /// The reply is not one of OpenAI's chat completions.
    #[error("the reply of {url} is not a chat completion: {finding}")]
    Reply {
        /// Where it was asked.
        url: String,
        /// What was found.
        finding: String,
    },
    /// The local model cannot take the request.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// Messages cannot be turned into a prompt.
    #[error(transparent)]
    Chat(#[from] ChatError),
    /// A request before this one ended in a panic.
    #[error("the engine broke down in an earlier request")]
    Broken,
}

impl AnswerError {
    /// Whether another question may well be answered: then this one can be counted as wrong.
    pub fn is_about_the_question(&self) -> bool {
        match self {
            Self::Status { .. } | Self::Reply { .. } | Self::Runtime(_) | Self::Chat(_) => true,
            Self::Connection { .. } | Self::Broken => false,
        }
    }
}

fn asked(number: usize) -> String {
    if number == 1 { "asked once".into() } else { format!("asked {number} times") }
}
