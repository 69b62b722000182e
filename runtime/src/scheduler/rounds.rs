//! What a round computes: a token for every running answer, or several for one that is alone, and a chunk of
//! one prompt.

use super::running::Running;
use super::worker::{Place, State, Worker};
use crate::error::RuntimeError;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// How long a chunk of a prompt may take: running answers wait for it, and a client that leaves is
/// noticed behind it.
const CHUNK_TIME: Duration = Duration::from_millis(250);
/// Tokens of a chunk that takes longer even so.
const LEAST_CHUNK: usize = 8;
/// Tokens of the first chunk, whose speed nobody knows.
const FIRST_CHUNK: usize = 32;

impl Worker {
    /// A token for every answer whose prompt is read, or several for one that is alone.
    pub fn decode(&mut self) {
        let answers = |&place: &usize| {
            self.places[place].running().is_some_and(|running| !running.is_reading())
        };
        let answering: Vec<usize> = (0..self.places.len()).filter(answers).collect();
        if answering.is_empty() {
            return;
        }
        let begin = Instant::now();
        match answering[..] {
            [alone] if self.speculate(alone) => {}
            _ => self.step_together(&answering),
        }
        self.shared.gauges().decode += begin.elapsed();
    }

    /// A token for each of these.
    fn step_together(&mut self, answering: &[usize]) {
        let (mut prepared, mut steps) = (Vec::new(), Vec::new());
        for &place in answering {
            let mut step = None;
            self.work(place, |running, ground| {
                step = Some(running.prepare(ground.slot)?);
                Ok(())
            });
            prepared.extend(step.map(|_| place));
            steps.extend(step);
        }
        if steps.is_empty() {
            return;
        }
        let (device, begin) = (&mut self.device, Instant::now());
        let decoded = catch_unwind(AssertUnwindSafe(|| device.decode_together(&steps)));
        let took = begin.elapsed();
        if let (&[alone], Ok(_)) = (&prepared[..], &decoded) {
            self.work(alone, |running, ground| {
                running.stepped(ground.speculator, took);
                Ok(())
            });
        }
        let decoded =
            decoded.unwrap_or_else(|_| steps.iter().map(|_| Err(RuntimeError::Panic)).collect());
        for (place, decoded) in prepared.into_iter().zip(decoded) {
            self.work(place, |running, ground| running.decode(ground, decoded));
        }
    }

    /// A pass over guessed tokens for the only answer that runs; `false`: nothing is worth a guess.
    fn speculate(&mut self, place: usize) -> bool {
        let Self { places, speculator, .. } = self;
        let Place { held, state: State::Running(running), .. } = &mut places[place] else {
            return false;
        };
        let Some(attempt) = running.attempt(held, speculator) else { return false };
        self.work(place, |running, ground| running.try_tokens(ground, &attempt));
        true
    }

    /// A chunk of one prompt; prompts take turns. Chunks are cut so that none takes long; what comes
    /// out does not depend on how they are cut.
    pub fn read(&mut self) {
        let places = self.places.len();
        let reading =
            |&place: &usize| self.places[place].running().is_some_and(Running::is_reading);
        let next = (1..=places).map(|step| (self.turn + step) % places).find(reading);
        let Some(place) = next else { return };
        self.turn = place;
        let (begin, before) = (Instant::now(), self.shared.gauges().prompt_tokens);
        self.work(place, Running::read_chunk);
        let took = begin.elapsed();
        let tokens = {
            let mut gauges = self.shared.gauges();
            gauges.prefill += took;
            gauges.prompt_tokens - before
        };
        if let Some(token_time) = took.checked_div(tokens as u32) {
            // Half of it from before: one slow chunk is not the rule.
            let before = self.token_time.unwrap_or(token_time);
            self.token_time = Some((before + token_time) / 2);
        }
        self.count_memory();
    }

    /// Prompt tokens to read in the next step.
    pub fn next_chunk(&self) -> usize {
        let in_time = match self.token_time {
            None => FIRST_CHUNK,
            Some(token_time) => (CHUNK_TIME.as_nanos() / token_time.as_nanos().max(1)) as usize,
        };
        self.chunk.min(in_time.max(LEAST_CHUNK))
    }
}
