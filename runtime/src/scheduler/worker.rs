//! The engine's thread: messages, rounds, stopping. Who gets which slot is in `admission.rs`.

use super::held::{Held, Rules};
use super::running::{End, Ground, Running, Ticket};
use super::store::{Record, Store};
use super::{Shared, job::Event};
use crate::device::{Device, Slot};
use crate::error::{Result, RuntimeError};
use crate::generation::FinishReason;
use crate::speculation::Speculator;
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// What the handle tells the thread.
pub(super) enum Message {
    /// A job, already counted as pending.
    Job(Box<Ticket>),
    /// End all by then. No job follows.
    Stop { by: Instant },
}

/// How often waiting jobs are asked whether they are still wanted.
const ASK_WAITING: Duration = Duration::from_millis(50);
/// How long a chunk of a prompt may take: running answers wait for it, and a client that leaves is
/// noticed behind it.
const CHUNK_TIME: Duration = Duration::from_millis(250);
/// Tokens of a chunk that takes longer even so.
const LEAST_CHUNK: usize = 8;
/// Tokens of the first chunk, whose speed nobody knows.
const FIRST_CHUNK: usize = 32;
/// How long to wait for a message while all there is to do is to wait for a file.
const FILE_WAIT: Duration = Duration::from_millis(2);
/// How long nothing must happen before prompts are written to disk.
const IDLE: Duration = Duration::from_secs(1);

/// What the thread has of the engine.
pub(super) struct Computing {
    pub device: Box<dyn Device>,
    pub speculator: Speculator,
    /// Prompt tokens read in one step at most.
    pub chunk: usize,
}

/// The thread's own things.
pub(super) struct Worker {
    pub device: Box<dyn Device>,
    speculator: Speculator,
    /// Prompt tokens read in one step at most.
    chunk: usize,
    /// How long a prompt token took lately.
    token_time: Option<Duration>,
    pub rules: Rules,
    pub places: Vec<Place>,
    pub waiting: VecDeque<Box<Ticket>>,
    /// The place whose prompt was read last.
    turn: usize,
    /// Counts answers, to know which slot was used last.
    pub clock: u64,
    asked_waiting: Instant,
    messages: mpsc::Receiver<Message>,
    stop_by: Option<Instant>,
    pub store: Option<Store>,
    pub shared: Arc<Shared>,
}

/// A slot and what it is for.
pub(super) struct Place {
    pub slot: Slot,
    pub held: Held,
    /// Tokens of the prompt that was read last.
    pub prompt: usize,
    /// When its last answer ended, by the worker's clock.
    pub used: u64,
    /// Whether what it holds is on disk, or not worth it.
    pub saved: bool,
    pub state: State,
}

/// What a slot is doing.
pub(super) enum State {
    Free,
    /// A prompt comes from disk.
    Loading {
        ticket: Box<Ticket>,
        record: mpsc::Receiver<Option<Record>>,
    },
    Running(Box<Running>),
}

impl Place {
    fn new(slot: Slot) -> Self {
        Self { slot, held: Held::default(), prompt: 0, used: 0, saved: true, state: State::Free }
    }

    pub fn is_free(&self) -> bool {
        matches!(self.state, State::Free)
    }

    pub fn running(&self) -> Option<&Running> {
        match &self.state {
            State::Running(running) => Some(running),
            _ => None,
        }
    }
}

impl Worker {
    pub fn new(
        Computing { device, speculator, chunk }: Computing,
        rules: Rules,
        slots: Vec<Slot>,
        store: Option<Store>,
        messages: mpsc::Receiver<Message>,
        shared: Arc<Shared>,
    ) -> Self {
        Self {
            device,
            speculator,
            chunk,
            token_time: None,
            rules,
            places: slots.into_iter().map(Place::new).collect(),
            waiting: VecDeque::new(),
            turn: 0,
            clock: 0,
            asked_waiting: Instant::now(),
            messages,
            stop_by: None,
            store,
            shared,
        }
    }

    /// Works until it is told to stop and everything has ended.
    pub fn run(mut self) {
        while self.hear() {
            if self.stop_by.is_some_and(|by| Instant::now() >= by) {
                self.break_off();
            }
            self.ask_waiting();
            self.admit();
            self.decode();
            self.read();
        }
        for place in 0..self.places.len() {
            self.save(place, true);
        }
    }

    /// Takes messages, and waits for one when there is nothing to do; `false` when all is done.
    fn hear(&mut self) -> bool {
        loop {
            let idle = self.waiting.is_empty() && self.places.iter().all(Place::is_free);
            if idle && self.stop_by.is_some() {
                return false;
            }
            let computing = self.places.iter().any(|place| place.running().is_some());
            let admitting = !self.waiting.is_empty() && self.places.iter().any(Place::is_free);
            let unsaved = self.places.iter().position(|place| !place.saved);
            let wait = match (idle, unsaved) {
                (true, None) => Duration::MAX,
                (true, Some(_)) => IDLE,
                (false, _) if computing || admitting => Duration::ZERO,
                (false, _) => FILE_WAIT,
            };
            let message = match wait {
                Duration::MAX => self.messages.recv().map_err(mpsc::RecvTimeoutError::from),
                wait => self.messages.recv_timeout(wait),
            };
            match (message, unsaved) {
                (Ok(Message::Job(ticket)), _) => self.waiting.push_back(ticket),
                (Ok(Message::Stop { by }), _) => self.stop_by = Some(by),
                (Err(mpsc::RecvTimeoutError::Timeout), Some(place)) if idle => {
                    self.save(place, false);
                }
                (Err(mpsc::RecvTimeoutError::Timeout), _) => return true,
                // The handle stops the thread before it goes; without one nobody waits for answers.
                (Err(mpsc::RecvTimeoutError::Disconnected), _) => return false,
            }
        }
    }

    /// Breaks off whatever is left.
    fn break_off(&mut self) {
        for place in 0..self.places.len() {
            self.leave(place, End::Finished(FinishReason::Cancelled));
        }
        for ticket in std::mem::take(&mut self.waiting) {
            self.end_waiting(ticket, End::Finished(FinishReason::Cancelled));
        }
    }

    /// Drops jobs without a slot, or with one that waits for a file, that nobody wants any more.
    fn ask_waiting(&mut self) {
        if self.asked_waiting.elapsed() < ASK_WAITING {
            return;
        }
        self.asked_waiting = Instant::now();
        for mut ticket in std::mem::take(&mut self.waiting) {
            match unwanted(&mut ticket) {
                None => self.waiting.push_back(ticket),
                Some(end) => self.end_waiting(ticket, end),
            }
        }
        for place in 0..self.places.len() {
            if let State::Loading { ticket, .. } = &mut self.places[place].state
                && let Some(end) = unwanted(ticket)
            {
                self.leave(place, end);
            }
        }
    }

    /// A token for every answer whose prompt is read, or several for one that is alone.
    fn decode(&mut self) {
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
        if let ([_], Ok(_)) = (&steps[..], &decoded) {
            self.speculator.stepped(begin.elapsed());
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
    fn read(&mut self) {
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
    fn next_chunk(&self) -> usize {
        let in_time = match self.token_time {
            None => FIRST_CHUNK,
            Some(token_time) => (CHUNK_TIME.as_nanos() / token_time.as_nanos().max(1)) as usize,
        };
        self.chunk.min(in_time.max(LEAST_CHUNK))
    }

    /// Lets an answer work; if that was its end, frees its place.
    pub fn work(
        &mut self,
        place: usize,
        work: impl FnOnce(&mut Running, Ground<'_>) -> Result<(), End>,
    ) {
        let chunk = self.next_chunk();
        let Place { slot, held, state, .. } = &mut self.places[place];
        let State::Running(running) = state else { return };
        let (device, speculator) = (self.device.as_mut(), &mut self.speculator);
        let ground = Ground { device, speculator, slot: *slot, held, rules: &self.rules, chunk };
        let (read, generated, was_first) =
            (running.read, running.generated(), running.to_first_token().is_none());
        let drafted = running.drafted();
        // A fault in what serves one answer, its listener say, must not take the others along.
        let result = catch_unwind(AssertUnwindSafe(|| work(running, ground)))
            .unwrap_or(Err(End::Failed(RuntimeError::Panic)));
        let generated = (running.generated() - generated) as u64;
        let mut gauges = self.shared.gauges();
        gauges.prompt_tokens += (running.read - read) as u64;
        gauges.generated_tokens += generated;
        gauges.drafted_tokens += (running.drafted().drafted - drafted.drafted) as u64;
        gauges.accepted_tokens += (running.drafted().accepted - drafted.accepted) as u64;
        match (was_first, running.to_first_token()) {
            (false, _) => gauges.decoded_tokens += generated,
            (true, Some(duration)) => {
                gauges.first_tokens += 1;
                gauges.to_first_token += duration;
            }
            (true, None) => {}
        }
        drop(gauges);
        if let Err(end) = result {
            self.leave(place, end);
        }
    }

    /// Frees a place and tells its listener.
    pub fn leave(&mut self, place: usize, end: End) {
        let Place { held, used, saved, state, .. } = &mut self.places[place];
        let running = match std::mem::replace(state, State::Free) {
            State::Free => return,
            State::Loading { ticket, .. } => return self.end_waiting(ticket, end),
            State::Running(running) => running,
        };
        if matches!(end, End::Failed(_)) {
            held.forget();
        }
        self.clock += 1;
        *used = self.clock;
        *saved = self.store.is_none();
        self.shared.gauges().running -= 1;
        self.count_end(&end);
        self.count_memory();
        // What listeners do wrong is their own answer's fault, and that has ended.
        let _ = catch_unwind(AssertUnwindSafe(|| running.end(end)));
    }

    /// Tells the listener of a job that never ran.
    pub fn end_waiting(&mut self, ticket: Box<Ticket>, end: End) {
        self.count_end(&end);
        let _ = catch_unwind(AssertUnwindSafe(|| ticket.end(end)));
    }

    fn count_end(&mut self, end: &End) {
        let mut gauges = self.shared.gauges();
        match end {
            End::Finished(FinishReason::Cancelled) => gauges.cancelled += 1,
            End::Finished(_) => gauges.finished += 1,
            End::Failed(_) => gauges.failed += 1,
        }
        drop(gauges);
        self.shared.pending.fetch_sub(1, Ordering::SeqCst);
    }

    /// Looks at what the slots hold.
    pub fn count_memory(&mut self) {
        let memory = self.device.memory();
        let bytes = self.places.iter().map(|place| memory.slot_bytes(place.slot).unwrap_or(0));
        let slot_bytes = bytes.sum();
        let held = || self.places.iter().map(|place| &place.held);
        let mut gauges = self.shared.gauges();
        gauges.slot_bytes = slot_bytes;
        gauges.cached_positions = held().map(Held::len).sum();
        gauges.checkpoint_bytes = held().map(Held::checkpoint_bytes).sum();
        gauges.disk_failures = self.store.as_ref().map_or(0, Store::failures);
        gauges.disk_bytes = self.store.as_ref().map_or(0, Store::bytes);
    }
}

/// How a job that waits has ended, if its listener says so or cannot be asked.
fn unwanted(ticket: &mut Ticket) -> Option<End> {
    match catch_unwind(AssertUnwindSafe(|| (ticket.listener)(Event::Waiting))) {
        Ok(ControlFlow::Continue(())) => None,
        Ok(ControlFlow::Break(reason)) => Some(End::Finished(reason)),
        Err(_) => Some(End::Failed(RuntimeError::Panic)),
    }
}
