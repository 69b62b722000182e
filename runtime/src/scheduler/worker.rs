//! The engine's thread: admission, rounds, stopping.

use super::Shared;
use super::running::{End, Running, Ticket};
use crate::device::Device;
use crate::engine::FinishReason;
use crate::error::{Result, RuntimeError};
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

/// The thread's own things.
pub(super) struct Worker {
    device: Box<dyn Device>,
    chunk: usize,
    /// One for each slot.
    places: Vec<Option<Running>>,
    waiting: VecDeque<Box<Ticket>>,
    /// The place whose prompt was read last.
    turn: usize,
    asked_waiting: Instant,
    messages: mpsc::Receiver<Message>,
    stop_by: Option<Instant>,
    shared: Arc<Shared>,
}

impl Worker {
    pub fn new(
        device: Box<dyn Device>,
        chunk: usize,
        slots: usize,
        messages: mpsc::Receiver<Message>,
        shared: Arc<Shared>,
    ) -> Self {
        Self {
            device,
            chunk,
            places: (0..slots).map(|_| None).collect(),
            waiting: VecDeque::new(),
            turn: 0,
            asked_waiting: Instant::now(),
            messages,
            stop_by: None,
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
    }

    /// Takes messages, and waits for one when there is nothing to do; `false` when all is done.
    fn hear(&mut self) -> bool {
        loop {
            let idle = self.waiting.is_empty() && self.places.iter().all(Option::is_none);
            let message = match (idle, self.stop_by) {
                (true, Some(_)) => return false,
                (true, None) => self.messages.recv().map_err(|_| ()),
                (false, _) => match self.messages.try_recv() {
                    Ok(message) => Ok(message),
                    Err(mpsc::TryRecvError::Empty) => return true,
                    Err(mpsc::TryRecvError::Disconnected) => Err(()),
                },
            };
            match message {
                Ok(Message::Job(ticket)) => self.waiting.push_back(ticket),
                Ok(Message::Stop { by }) => self.stop_by = Some(by),
                // The handle stops the thread before it goes; without one nobody waits for answers.
                Err(()) => return false,
            }
        }
    }

    /// Breaks off whatever is left.
    fn break_off(&mut self) {
        for place in 0..self.places.len() {
            self.leave(place, End::Finished(FinishReason::Cancelled));
        }
        for ticket in std::mem::take(&mut self.waiting) {
            self.drop_waiting(ticket, FinishReason::Cancelled);
        }
    }

    /// Drops waiting jobs that nobody wants any more.
    fn ask_waiting(&mut self) {
        if self.waiting.is_empty() || self.asked_waiting.elapsed() < ASK_WAITING {
            return;
        }
        self.asked_waiting = Instant::now();
        for mut ticket in std::mem::take(&mut self.waiting) {
            match catch_unwind(AssertUnwindSafe(|| ticket.still_wanted())) {
                Ok(ControlFlow::Continue(())) => self.waiting.push_back(ticket),
                Ok(ControlFlow::Break(reason)) => self.drop_waiting(ticket, reason),
                Err(_) => self.drop_waiting(ticket, FinishReason::Cancelled),
            }
        }
    }

    fn drop_waiting(&mut self, ticket: Box<Ticket>, reason: FinishReason) {
        self.shared.gauges().cancelled += 1;
        self.shared.pending.fetch_sub(1, Ordering::SeqCst);
        // A listener that panics has lost its client already.
        let _ = catch_unwind(AssertUnwindSafe(|| ticket.end(reason)));
    }

    /// Gives free slots to waiting jobs, first come, first served.
    fn admit(&mut self) {
        while let Some(place) = self.places.iter().position(Option::is_none)
            && let Some(ticket) = self.waiting.pop_front()
        {
            let slot = match self.device.make_slot(ticket.prompt.len() + ticket.answer.max_tokens())
            {
                Ok(slot) => slot,
                Err(error) => {
                    self.fail_waiting(ticket, error);
                    continue;
                }
            };
            self.places[place] = Some(Running::new(*ticket, slot, 0));
            self.shared.gauges().running += 1;
            self.work(place, |running, _| running.report());
        }
    }

    /// A token for every answer whose prompt is read.
    fn decode(&mut self) {
        for place in 0..self.places.len() {
            if self.places[place].as_ref().is_some_and(|running| !running.is_reading()) {
                let begin = Instant::now();
                self.work(place, |running, device| running.decode(device));
                self.shared.gauges().decode += begin.elapsed();
            }
        }
    }

    /// A chunk of one prompt; prompts take turns.
    fn read(&mut self) {
        let places = self.places.len();
        let reading = |&place: &usize| {
            self.places[place].as_ref().is_some_and(|running| running.is_reading())
        };
        let next = (1..=places).map(|step| (self.turn + step) % places).find(reading);
        let Some(place) = next else { return };
        self.turn = place;
        let (begin, chunk) = (Instant::now(), self.chunk);
        self.work(place, |running, device| running.read_chunk(device, chunk));
        self.shared.gauges().prefill += begin.elapsed();
    }

    /// Lets an answer work; if that was its end, frees its place. Returns the tokens it got.
    fn work(
        &mut self,
        place: usize,
        work: impl FnOnce(&mut Running, &mut dyn Device) -> Result<(), End>,
    ) -> u64 {
        let Some(running) = &mut self.places[place] else { return 0 };
        let device = self.device.as_mut();
        let (read, generated, was_first) =
            (running.read, running.generated(), running.to_first_token().is_none());
        // A fault in what serves one answer, its listener say, must not take the others along.
        let result = catch_unwind(AssertUnwindSafe(|| work(running, device)))
            .unwrap_or(Err(End::Failed(RuntimeError::Panic)));
        let generated = (running.generated() - generated) as u64;
        let mut gauges = self.shared.gauges();
        gauges.prompt_tokens += (running.read - read) as u64;
        gauges.generated_tokens += generated;
        if !was_first {
            gauges.decoded_tokens += generated;
        }
        if let (true, Some(duration)) = (was_first, running.to_first_token()) {
            gauges.first_tokens += 1;
            gauges.to_first_token += duration;
        }
        drop(gauges);
        if let Err(end) = result {
            self.leave(place, end);
        }
        generated
    }

    /// Frees a place and tells its listener.
    fn leave(&mut self, place: usize, end: End) {
        let Some(running) = self.places[place].take() else { return };
        let freed = self.device.free_slot(running.slot);
        let end = match freed {
            Ok(()) => end,
            Err(error) => End::Failed(error),
        };
        let mut gauges = self.shared.gauges();
        gauges.running -= 1;
        match &end {
            End::Finished(FinishReason::Cancelled) => gauges.cancelled += 1,
            End::Finished(_) => gauges.finished += 1,
            End::Failed(_) => gauges.failed += 1,
        }
        drop(gauges);
        self.shared.pending.fetch_sub(1, Ordering::SeqCst);
        let _ = catch_unwind(AssertUnwindSafe(|| running.end(end)));
    }

    fn fail_waiting(&mut self, mut ticket: Box<Ticket>, error: RuntimeError) {
        self.shared.gauges().failed += 1;
        self.shared.pending.fetch_sub(1, Ordering::SeqCst);
        let _ = catch_unwind(AssertUnwindSafe(|| (ticket.listener)(super::Event::Failed(error))));
    }
}
