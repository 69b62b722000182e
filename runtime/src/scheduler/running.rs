//! One answer on its way: in the queue, through its prompt, token by token.

use super::job::{Event, Listener, Summary};
use crate::answer::{Answer, Needed};
use crate::device::{Device, Slot, Wanted, Work};
use crate::engine::FinishReason;
use crate::error::{Result, RuntimeError};
use crate::sampling::Chosen;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// A job that waits for a slot.
pub(super) struct Ticket {
    pub prompt: Vec<u32>,
    pub answer: Answer,
    pub listener: Listener,
    pub submitted: Instant,
}

impl Ticket {
    /// Whether its listener still wants it.
    pub fn still_wanted(&mut self) -> ControlFlow<FinishReason> {
        (self.listener)(Event::Waiting)
    }

    /// Tells the listener that no slot will come.
    pub fn end(mut self, finish: FinishReason) {
        let summary = Summary {
            finish,
            prompt_tokens: self.prompt.len(),
            cached_tokens: 0,
            completion_tokens: 0,
            seed: self.answer.seed(),
            queued: self.submitted.elapsed(),
            prefill: Duration::ZERO,
            decode: Duration::ZERO,
        };
        let _ = (self.listener)(Event::Ended(&summary));
    }
}

/// How an answer leaves its slot.
#[derive(Debug)]
pub(super) enum End {
    /// It is complete or was broken off.
    Finished(FinishReason),
    /// It cannot go on.
    Failed(RuntimeError),
}

impl From<RuntimeError> for End {
    fn from(error: RuntimeError) -> Self {
        End::Failed(error)
    }
}

/// An answer with a slot.
pub(super) struct Running {
    ticket: Ticket,
    /// Its cache on the device.
    pub slot: Slot,
    /// Tokens of the prompt that the slot held when the answer took it.
    pub cached: usize,
    /// Tokens of the prompt that the slot holds.
    pub read: usize,
    /// The token chosen last.
    last: Option<u32>,
    started: Instant,
    first_chosen: Option<Instant>,
    last_chosen: Instant,
}

impl Running {
    /// Starts an answer in a slot that holds the first `cached` tokens of its prompt.
    pub fn new(ticket: Ticket, slot: Slot, cached: usize) -> Self {
        let now = Instant::now();
        let (read, last, first_chosen) = (cached, None, None);
        Self { ticket, slot, cached, read, last, started: now, first_chosen, last_chosen: now }
    }

    /// Whether the prompt is not read whole yet.
    pub fn is_reading(&self) -> bool {
        self.last.is_none()
    }

    /// Whether the first token was chosen, and if so how long after submission.
    pub fn to_first_token(&self) -> Option<Duration> {
        self.first_chosen.map(|first| first - self.ticket.submitted)
    }

    /// Tokens generated.
    pub fn generated(&self) -> usize {
        self.ticket.answer.tokens()
    }

    /// Tells the listener how far the prompt is read.
    pub fn report(&mut self) -> Result<(), End> {
        let (read, cached, prompt) = (self.read, self.cached, self.ticket.prompt.len());
        self.tell(Event::Reading { read, cached, prompt })
    }

    /// Reads at most `chunk` tokens of the prompt; behind the last one chooses the first token.
    pub fn read_chunk(&mut self, device: &mut dyn Device, chunk: usize) -> Result<(), End> {
        let prompt = &self.ticket.prompt;
        let end = prompt.len().min(self.read + chunk);
        let logits = if end == prompt.len() { Wanted::Last } else { Wanted::Nothing };
        let work = Work { slot: self.slot, tokens: &prompt[self.read..end], logits };
        let logits = device.step(&[work])?.swap_remove(0);
        self.read = end;
        self.report()?;
        if end < self.ticket.prompt.len() {
            return Ok(());
        }
        self.ticket.answer.prepare()?;
        let chosen = self.ticket.answer.choose(&logits)?;
        self.take(&chosen)
    }

    /// Generates a token.
    pub fn decode(&mut self, device: &mut dyn Device) -> Result<(), End> {
        let last = self.last.expect("the prompt is read");
        let answer = &mut self.ticket.answer;
        let chosen = match answer.prepare()? {
            Needed::Likeliest => answer.take(device.decode_greedy(self.slot, last)?)?,
            Needed::Logits => answer.choose(&device.decode(self.slot, last)?)?,
        };
        self.take(&chosen)
    }

    fn take(&mut self, chosen: &Chosen) -> Result<(), End> {
        self.last = Some(chosen.id);
        self.last_chosen = Instant::now();
        self.first_chosen.get_or_insert(self.last_chosen);
        let heard = self.tell(Event::Token(chosen));
        match self.ticket.answer.finished(chosen.id) {
            Some(FinishReason::Stop) => Err(End::Finished(FinishReason::Stop)),
            // A stop string that the last possible token completes is a stop.
            Some(reason) => heard.and(Err(End::Finished(reason))),
            None => heard,
        }
    }

    fn tell(&mut self, event: Event<'_>) -> Result<(), End> {
        match (self.ticket.listener)(event) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(reason) => Err(End::Finished(reason)),
        }
    }

    /// Tells the listener that this was all.
    pub fn end(mut self, end: End) {
        let finish = match end {
            End::Finished(finish) => finish,
            End::Failed(error) => {
                let _ = (self.ticket.listener)(Event::Failed(error));
                return;
            }
        };
        let first_chosen = self.first_chosen.unwrap_or_else(Instant::now);
        let summary = Summary {
            finish,
            prompt_tokens: self.ticket.prompt.len(),
            cached_tokens: self.cached,
            completion_tokens: self.generated(),
            seed: self.ticket.answer.seed(),
            queued: self.started - self.ticket.submitted,
            prefill: first_chosen - self.started,
            decode: self.last_chosen.saturating_duration_since(first_chosen),
        };
        let _ = (self.ticket.listener)(Event::Ended(&summary));
    }
}
