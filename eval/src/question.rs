//! A question, whoever answers it.

use crate::answerer::Answer;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

/// What is asked, and how its answer is judged.
pub struct Question {
    /// Unique within an evaluation; the same in every run.
    pub id: String,
    /// What accuracy is broken down by: `{"length": 1000, "depth": 50}`; may be empty.
    pub group: Map<String, Value>,
    /// OpenAI's messages.
    pub messages: Vec<Value>,
    /// OpenAI's tools: `{"type": "function", "function": {…}}`.
    pub tools: Vec<Value>,
    /// The right answer, for the record.
    pub expected: Value,
    /// Tells right from wrong.
    pub judge: Box<dyn Judge>,
}

impl Question {
    /// SHA-256, in hexadecimal, of messages and tools: what was asked, whoever was asked.
    pub fn prompt_sha256(&self) -> String {
        let asked = json!({"messages": self.messages, "tools": self.tools}).to_string();
        Sha256::digest(asked).iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Tells a right answer from a wrong one.
pub trait Judge: Send + Sync {
    /// Ok if the answer is right, else what is wrong with it.
    fn judge(&self, answer: &Answer) -> Result<(), String>;
}
