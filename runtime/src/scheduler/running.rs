//! One answer on its way: in the queue, through its prompt, token by token.

use super::held::{Held, Rules, longest};
use super::job::{Event, Listener, Summary};
use crate::answer::{Answer, Needed};
use crate::device::{DecodeStep, Decoded, Device, Slot, Wanted, Work};
use crate::error::{Result, RuntimeError};
use crate::generation::FinishReason;
use crate::sampling::Chosen;
use crate::speculation::{Attempt, Drafted, Guesses, Speculator};
use std::collections::VecDeque;
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
    /// Tells the listener that no slot will come.
    pub fn end(mut self, end: End) {
        let finish = match end {
            End::Finished(finish) => finish,
            End::Failed(error) => {
                let _ = (self.listener)(Event::Failed(error));
                return;
            }
        };
        let summary = Summary {
            finish,
            prompt_tokens: self.prompt.len(),
            cached_tokens: 0,
            completion_tokens: 0,
            seed: self.answer.seed(),
            queued: self.submitted.elapsed(),
            prefill: Duration::ZERO,
            decode: Duration::ZERO,
            drafted: Drafted::default(),
        };
        let _ = (self.listener)(Event::Ended(&summary));
    }
}

/// What an answer works on.
pub(super) struct Ground<'w> {
    pub device: &'w mut dyn Device,
    pub speculator: &'w mut Speculator,
    pub slot: Slot,
    /// What the slot holds.
    pub held: &'w mut Held,
    pub rules: &'w Rules,
    /// Prompt tokens read in one step.
    pub chunk: usize,
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
    /// Tokens of the prompt that the slot held when the answer took it.
    pub cached: usize,
    /// Tokens of the prompt that the slot holds.
    pub read: usize,
    /// Positions of the prompt at which the rings are copied, ascending.
    stops: VecDeque<usize>,
    /// The token chosen last.
    last: Option<u32>,
    guesses: Guesses,
    started: Instant,
    first_chosen: Option<Instant>,
    last_chosen: Instant,
}

impl Running {
    /// Starts an answer in a slot that holds the first `cached` tokens of its prompt.
    pub fn new(ticket: Ticket, cached: usize, stops: Vec<usize>) -> Self {
        let started = Instant::now();
        Self {
            guesses: Guesses::new(ticket.answer.takes_likeliest()),
            ticket,
            cached,
            read: cached,
            stops: stops.into(),
            last: None,
            started,
            first_chosen: None,
            last_chosen: started,
        }
    }

    /// Whether the prompt is not read whole yet.
    pub fn is_reading(&self) -> bool {
        self.last.is_none()
    }

    /// Tokens of another prompt that can be kept of what this one has still to read; what it has read
    /// its slot shows.
    pub fn will_hold(&self, prompt: &[u32], rules: &Rules) -> usize {
        if !self.is_reading() {
            return 0;
        }
        let own = &self.ticket.prompt;
        let stops = self.stops.iter().copied().chain([own.len()]);
        longest(own, stops.map(|stop| (stop, None)), prompt, rules.window).positions
    }

    /// Whether the first token was chosen, and if so how long after submission.
    pub fn to_first_token(&self) -> Option<Duration> {
        self.first_chosen.map(|first| first - self.ticket.submitted)
    }

    /// Tokens generated.
    pub fn generated(&self) -> usize {
        self.ticket.answer.tokens()
    }

    /// What was guessed ahead so far.
    pub fn drafted(&self) -> Drafted {
        self.guesses.drafted
    }

    /// Tells the listener how far the prompt is read.
    pub fn report(&mut self) -> Result<(), End> {
        let (read, cached, prompt) = (self.read, self.cached, self.ticket.prompt.len());
        self.tell(Event::Reading { read, cached, prompt })
    }

    /// Reads a chunk of the prompt; behind the last one chooses the first token.
    pub fn read_chunk(&mut self, ground: Ground<'_>) -> Result<(), End> {
        let Ground { device, slot, held, rules, chunk, .. } = ground;
        let (prompt, max_tokens) = (&self.ticket.prompt, self.ticket.answer.max_tokens());
        let stop = self.stops.front().copied().unwrap_or(prompt.len());
        let end = stop.min(self.read + chunk);
        let is_last = end == prompt.len();
        let logits = if is_last { Wanted::Last } else { Wanted::Nothing };
        let tokens = &prompt[self.read..end];
        let logits = device.step(&[Work { slot, tokens, logits }])?.swap_remove(0);
        held.append(tokens, true);
        self.read = end;
        if end == stop {
            self.stops.pop_front();
            // Rings that the whole answer will not fill reach back by themselves.
            if prompt.len() + max_tokens > rules.window {
                held.save_rings(device, slot, rules)?;
            }
        }
        self.report()?;
        if !is_last {
            return Ok(());
        }
        self.ticket.answer.prepare()?;
        let chosen = self.ticket.answer.choose(&logits)?;
        self.take(&chosen)
    }

    /// Says what the next token needs.
    pub fn prepare(&mut self, slot: Slot) -> Result<DecodeStep, End> {
        let token = self.last.expect("the prompt is read");
        let logits = self.ticket.answer.prepare()? == Needed::Logits;
        Ok(DecodeStep { slot, token, logits })
    }

    /// Chooses the next token from what the device has made of the step.
    pub fn decode(&mut self, ground: Ground<'_>, decoded: Result<Decoded>) -> Result<(), End> {
        let decoded = decoded?;
        let last = self.last.expect("the prompt is read");
        ground.held.append(&[last], ground.rules.answers_serve);
        let chosen = self.ticket.answer.decide(decoded)?;
        self.take(&chosen)
    }

    /// A step for this answer alone has taken so long.
    pub fn stepped(&self, speculator: &mut Speculator, took: Duration) {
        speculator.stepped(&self.guesses, took);
    }

    /// What to try in one pass, if anything: `held` is what the slot holds.
    pub fn attempt(&mut self, held: &Held, speculator: &mut Speculator) -> Option<Attempt> {
        let last = self.last.expect("the prompt is read");
        let answer = &self.ticket.answer;
        let room = answer.max_tokens() - answer.tokens();
        speculator.attempt(&mut self.guesses, held.tokens(), last, room)
    }

    /// Runs the last token and drafted ones in one pass, and takes tokens as long as they are those
    /// drafted.
    pub fn try_tokens(&mut self, ground: Ground<'_>, attempt: &Attempt) -> Result<(), End> {
        let Ground { device, speculator, slot, held, rules, .. } = ground;
        let begin = Instant::now();
        let mut trial = device.try_tokens(slot, &attempt.tokens)?;
        let mut took = begin.elapsed();
        let mut kept = 0;
        let taken = loop {
            let logits = self.ticket.answer.prepare()? == Needed::Logits;
            let begin = Instant::now();
            let decoded = trial.leads_to(kept, logits)?;
            took += begin.elapsed();
            kept += 1;
            let chosen = self.ticket.answer.decide(decoded)?;
            let taken = self.take(&chosen);
            if taken.is_err() || attempt.tokens.get(kept) != Some(&chosen.id) {
                break taken;
            }
        };
        trial.keep(kept);
        held.append(&attempt.tokens[..kept], rules.answers_serve);
        speculator.tried(&mut self.guesses, attempt, kept, took);
        taken
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
            drafted: self.guesses.drafted,
        };
        let _ = (self.ticket.listener)(Event::Ended(&summary));
    }
}
