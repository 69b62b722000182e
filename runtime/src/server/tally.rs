//! What is counted of the answers to one request, for its reply and for `/metrics`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::answer::{Ending, Finish, Piece};
use super::error::ApiError;
use super::metrics::Metrics;
use super::wire::{Timings, Usage};
use crate::speculation::Drafted;

/// Counts what comes through. Dropped before all answers are done, it counts them as cancelled:
/// then the client has gone.
pub struct Tally {
    metrics: Arc<Metrics>,
    submitted: Instant,
    /// Whether each answer is the first to its prompt.
    first_of_prompt: Vec<bool>,
    /// Answers that are not done.
    left: usize,
    /// An error has ended them all.
    failed: bool,
    usage: Usage,
    longest: Longest,
}

/// The longest times of any answer, and the steps and guesses of all.
#[derive(Default)]
struct Longest {
    queued: Duration,
    prefill: Duration,
    decode: Duration,
    steps: usize,
    drafted: Drafted,
}

impl Tally {
    pub fn new(
        metrics: Arc<Metrics>,
        submitted: Instant,
        prompt_tokens: usize,
        first_of_prompt: Vec<bool>,
    ) -> Self {
        let left = first_of_prompt.len();
        let usage = Usage { prompt_tokens, ..Usage::default() };
        let longest = Longest::default();
        Self { metrics, submitted, first_of_prompt, left, failed: false, usage, longest }
    }

    /// Answers there are.
    pub fn count(&self) -> usize {
        self.first_of_prompt.len()
    }

    pub fn all_done(&self) -> bool {
        self.failed || self.left == 0
    }

    /// An error ends all answers.
    pub fn fail(&mut self) {
        self.failed = true;
        self.metrics.failed();
    }

    /// Looks at a piece and hands it on.
    pub fn take(&mut self, index: usize, piece: Piece) -> Result<(usize, Piece), ApiError> {
        match &piece {
            Piece::Begun => self.metrics.first_token(self.submitted.elapsed()),
            // Nobody here asked for that: the server is going down.
            Piece::Ended(ending) if ending.finish == Finish::Cancelled => {
                self.fail();
                return Err(ApiError::shutting_down());
            }
            Piece::Ended(ending) => self.end(index, ending),
            Piece::Failed(message) => {
                self.fail();
                return Err(ApiError::engine(message.clone()));
            }
            _ => {}
        }
        Ok((index, piece))
    }

    fn end(&mut self, index: usize, ending: &Ending) {
        let summary = &ending.summary;
        self.metrics.answered(ending);
        self.left -= 1;
        self.usage.completion_tokens += summary.completion_tokens;
        self.usage.total_tokens = self.usage.prompt_tokens + self.usage.completion_tokens;
        self.usage.completion_tokens_details.reasoning_tokens += ending.reasoning_tokens;
        if self.first_of_prompt[index] {
            self.usage.prompt_tokens_details.cached_tokens += summary.cached_tokens;
        }
        let longest = &mut self.longest;
        longest.queued = longest.queued.max(summary.queued);
        longest.prefill = longest.prefill.max(summary.prefill);
        longest.decode = longest.decode.max(summary.decode);
        longest.steps += summary.completion_tokens.saturating_sub(1);
        longest.drafted.drafted += summary.drafted.drafted;
        longest.drafted.accepted += summary.drafted.accepted;
    }

    /// Tokens, once all are done.
    pub fn usage(&self) -> Usage {
        self.usage
    }

    /// Times, once all are done.
    pub fn timings(&self) -> Timings {
        let Longest { queued, prefill, decode, steps, drafted } = self.longest;
        let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
        let measured = steps > 0 && !decode.is_zero();
        Timings {
            queued_ms: milliseconds(queued),
            prompt_ms: milliseconds(prefill),
            decode_ms: milliseconds(decode),
            decode_tok_per_s: measured.then(|| steps as f64 / decode.as_secs_f64()),
            drafted_tokens: drafted.drafted,
            accepted_tokens: drafted.accepted,
        }
    }
}

impl Drop for Tally {
    fn drop(&mut self) {
        if !self.all_done() {
            self.metrics.cancelled(self.left);
        }
    }
}
