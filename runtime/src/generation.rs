//! What is asked of an engine, and what it answers.

use crate::sampling::Sampling;
use crate::speculation::Drafted;
use std::time::Duration;

/// What to generate.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// Ids of the prompt, `<bos>` included if there is to be one.
    pub prompt: Vec<u32>,
    /// Tokens to generate at most; `None`: until the context is full.
    pub max_tokens: Option<usize>,
    /// Ids that end the answer.
    pub stop_ids: Vec<u32>,
    /// Treat stop ids as any other token.
    pub ignore_eos: bool,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Return the logits of every position, prompt included. Then no position can skip the
    /// KV-shared layers, so that reading the prompt takes longer.
    pub logits: bool,
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop id was generated.
    Stop,
    /// `max_tokens` were generated.
    Length,
    /// The caller asked to stop.
    Cancelled,
}

impl FinishReason {
    /// `stop`, `length` or `cancelled`.
    pub fn name(self) -> &'static str {
        match self {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::Cancelled => "cancelled",
        }
    }
}

/// A finished answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Generation {
    /// The generated ids; a stop id that ended the answer is the last.
    pub tokens: Vec<u32>,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// The seed that repeats this answer; `None` for a greedy one.
    pub seed: Option<u64>,
    /// If asked for: `[prompt + generated - 1, vocabulary]`. Row `prompt - 1 + k` chose token `k`.
    pub logits: Option<Vec<f32>>,
    /// From the start until the first token was chosen.
    pub prefill: Duration,
    /// From then until the last token was chosen: one step fewer than there are tokens.
    pub decode: Duration,
    /// What was guessed ahead of it.
    pub drafted: Drafted,
}

impl Generation {
    /// Prompt tokens read in a second.
    pub fn prefill_tokens_per_second(&self) -> f64 {
        self.prompt_tokens as f64 / self.prefill.as_secs_f64()
    }

    /// Tokens generated in a second, the first one (it belongs to the prompt) not counted; `None`
    /// for an answer of one token.
    pub fn decode_tokens_per_second(&self) -> Option<f64> {
        let steps = self.tokens.len().checked_sub(1).filter(|&steps| steps > 0)?;
        Some(steps as f64 / self.decode.as_secs_f64())
    }
}
