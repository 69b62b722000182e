//! What a scheduler has done and is doing, in numbers.

use std::time::Duration;

/// A look at a scheduler. Counts and sums are since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Gauges {
    /// Answers that can be made at once.
    pub slots: usize,
    /// Answers in the making.
    pub running: usize,
    /// Jobs that wait for a slot.
    pub waiting: usize,
    /// Jobs that may wait.
    pub queue: usize,
    /// Answers that ended by themselves.
    pub finished: u64,
    /// Answers that were broken off, in the queue, in the prompt or later.
    pub cancelled: u64,
    /// Answers that failed.
    pub failed: u64,
    /// Jobs refused because as many waited as may.
    pub queue_full: u64,
    /// Prompt tokens read.
    pub prompt_tokens: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// Time the engine spent on prompts.
    pub prefill: Duration,
    /// Time the engine spent on tokens behind the first of an answer.
    pub decode: Duration,
    /// Tokens generated in that time: all but the first of each answer.
    pub decoded_tokens: u64,
    /// Tokens that were guessed ahead and tried.
    pub drafted_tokens: u64,
    /// Those of them that answers have.
    pub accepted_tokens: u64,
    /// Answers that have got their first token.
    pub first_tokens: u64,
    /// Sum of their times from submission until then.
    pub to_first_token: Duration,
    /// Answers that found a part of their prompt in a slot or on disk.
    pub cache_hits: u64,
    /// Prompt tokens that were found so and not read.
    pub cached_tokens: u64,
    /// Prompts that came from disk.
    pub disk_hits: u64,
    /// Prompts that could not be written to disk.
    pub disk_failures: u64,
    /// Positions that slots hold now.
    pub cached_positions: usize,
    /// Bytes that slots take now beside what the device took for all at its start.
    pub slot_bytes: usize,
    /// Bytes that copies of rings take now, to go back to.
    pub checkpoint_bytes: usize,
    /// Bytes that prompts take on disk now.
    pub disk_bytes: u64,
}
