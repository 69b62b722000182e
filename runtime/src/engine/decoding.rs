//! An answer behind its prompt: plain steps, and passes over tokens that are guessed ahead.

use crate::answer::{Answer, Needed};
use crate::device::{Decoded, Device, Slot};
use crate::error::Result;
use crate::generation::{FinishReason, Generation, Request};
use crate::speculation::{Attempt, Guesses, Speculator};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// An answer on its way.
pub(super) struct Decoding<'r> {
    slot: Slot,
    answer: Answer,
    prompt_tokens: usize,
    /// Prompt and answer.
    sequence: Vec<u32>,
    guesses: Guesses,
    /// Those of every position so far, if they are asked for.
    logits: Option<Vec<f32>>,
    /// Gets every token and may break off.
    token: &'r mut dyn FnMut(u32) -> ControlFlow<()>,
}

impl<'r> Decoding<'r> {
    /// An answer to a prompt that the slot holds, whose `logits` are these if they are asked for.
    pub fn new(
        slot: Slot,
        answer: Answer,
        request: &Request,
        logits: Vec<f32>,
        token: &'r mut dyn FnMut(u32) -> ControlFlow<()>,
    ) -> Self {
        Self {
            slot,
            guesses: Guesses::new(answer.takes_likeliest()),
            answer,
            prompt_tokens: request.prompt.len(),
            sequence: request.prompt.clone(),
            logits: request.logits.then_some(logits),
            token,
        }
    }

    /// Chooses the first token, from the logits of the prompt's last. Returns why it is the last one, if it
    /// is.
    pub fn first(&mut self, last: &[f32]) -> Result<Option<FinishReason>> {
        self.answer.prepare()?;
        let id = self.answer.choose(last)?.id;
        Ok(self.take(id))
    }

    /// One token more, or several at once. Returns why the answer ends with them, if it does.
    pub fn next(
        &mut self,
        device: &mut dyn Device,
        speculator: &mut Speculator,
    ) -> Result<Option<FinishReason>> {
        let (&last, before) = self.sequence.split_last().expect("the first token is chosen");
        let room = self.answer.max_tokens() - self.answer.tokens();
        match speculator.attempt(&mut self.guesses, before, last, room) {
            None => self.step(device, speculator, last),
            Some(attempt) => self.try_tokens(device, speculator, &attempt),
        }
    }

    fn step(
        &mut self,
        device: &mut dyn Device,
        speculator: &mut Speculator,
        last: u32,
    ) -> Result<Option<FinishReason>> {
        let logits = self.needs_logits()?;
        let begin = Instant::now();
        let decoded = match logits {
            true => Decoded::Logits(device.decode(self.slot, last)?),
            false => Decoded::Likeliest(device.decode_greedy(self.slot, last)?),
        };
        speculator.stepped(&self.guesses, begin.elapsed());
        self.decide(decoded)
    }

    fn try_tokens(
        &mut self,
        device: &mut dyn Device,
        speculator: &mut Speculator,
        attempt: &Attempt,
    ) -> Result<Option<FinishReason>> {
        let begin = Instant::now();
        let mut trial = device.try_tokens(self.slot, &attempt.tokens)?;
        let mut took = begin.elapsed();
        let mut kept = 0;
        let finish = loop {
            let logits = self.needs_logits()?;
            let begin = Instant::now();
            let decoded = trial.leads_to(kept, logits)?;
            took += begin.elapsed();
            kept += 1;
            let finish = self.decide(decoded)?;
            let as_drafted = attempt.tokens.get(kept) == self.sequence.last();
            if finish.is_some() || !as_drafted {
                break finish;
            }
        };
        trial.keep(kept);
        speculator.tried(&mut self.guesses, attempt, kept, took);
        Ok(finish)
    }

    /// Asks the answer what its next token needs.
    fn needs_logits(&mut self) -> Result<bool> {
        Ok(self.answer.prepare()? == Needed::Logits || self.logits.is_some())
    }

    /// Chooses a token from what the one before has led to.
    fn decide(&mut self, decoded: Decoded) -> Result<Option<FinishReason>> {
        if let (Some(all), Decoded::Logits(row)) = (&mut self.logits, &decoded) {
            all.extend_from_slice(row);
        }
        let id = self.answer.decide(decoded)?.id;
        Ok(self.take(id))
    }

    fn take(&mut self, id: u32) -> Option<FinishReason> {
        self.sequence.push(id);
        let go_on = (self.token)(id);
        let finished = self.answer.finished(id);
        finished.or(go_on.is_break().then_some(FinishReason::Cancelled))
    }

    /// The answer, complete.
    pub fn end(
        mut self,
        finish_reason: FinishReason,
        prefill: Duration,
        decode: Duration,
    ) -> Generation {
        Generation {
            tokens: self.sequence.split_off(self.prompt_tokens),
            prompt_tokens: self.prompt_tokens,
            finish_reason,
            seed: self.answer.seed(),
            logits: self.logits,
            prefill,
            decode,
            drafted: self.guesses.drafted,
        }
    }
}
