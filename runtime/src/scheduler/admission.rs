//! Which job gets which slot, and what comes from disk and goes there.
//!
//! First come, first served. A job gets the free slot that holds most of its prompt, or the one used
//! least recently if none holds a useful part. If the disk holds clearly more, its prompt is read
//! from there by another thread while rounds go on.

use super::held::{Reuse, longest};
use super::running::{End, Running, Ticket};
use super::store::{Head, Record};
use super::worker::{Place, State, Worker};
use crate::error::Result;
use std::sync::mpsc;

/// Fewer tokens than this are read as quickly as found on disk.
const LEAST_ON_DISK: usize = 32;

/// A slot is worth taking for what it holds if that is a prompt's tenth; two conversations have a
/// few first tokens in common in any case.
const USEFUL_SHARE: usize = 10;

impl Worker {
    /// Gives free slots to waiting jobs, and starts those whose prompts have come from disk.
    pub fn admit(&mut self) {
        for place in 0..self.places.len() {
            self.look_for_file(place);
        }
        while self.places.iter().any(Place::is_free)
            && let Some(ticket) = self.waiting.pop_front()
        {
            let (place, reuse) = self.choose(&ticket.prompt);
            let least = reuse.positions + LEAST_ON_DISK;
            match self.on_disk(&ticket.prompt).filter(|(_, positions)| *positions >= least) {
                Some((key, _)) => self.load(ticket, key),
                None => self.start(place, ticket, reuse),
            }
        }
    }

    /// The free place for a prompt, and what it can keep of it.
    fn choose(&self, prompt: &[u32]) -> (usize, Reuse) {
        let free = self.places.iter().enumerate().filter(|(_, place)| place.is_free());
        let offers = free.map(|(number, place)| (number, place.held.reuse(prompt, &self.rules)));
        let oldest_first = |number: usize| std::cmp::Reverse(self.places[number].used);
        let best = offers
            .clone()
            .max_by_key(|(number, reuse)| (reuse.positions, oldest_first(*number)))
            .filter(|(_, reuse)| reuse.positions * USEFUL_SHARE >= prompt.len());
        let oldest = || offers.max_by_key(|(number, _)| oldest_first(*number));
        best.or_else(oldest).expect("a place is free")
    }

    /// The prompt on disk that serves best, and how many tokens of it do.
    fn on_disk(&self, prompt: &[u32]) -> Option<(String, usize)> {
        let reuse = |head: &Head| {
            let copies = head.rings.iter().map(|&(positions, _)| (positions, None));
            let serving = &head.tokens[..head.serving];
            longest(serving, copies, prompt, self.rules.window).positions
        };
        self.store.as_ref()?.best(reuse)
    }

    /// Has a prompt read from disk for a job, in the place used least recently.
    fn load(&mut self, ticket: Box<Ticket>, key: String) {
        let free = (0..self.places.len()).filter(|&place| self.places[place].is_free());
        let place = free.min_by_key(|&place| self.places[place].used).expect("a place is free");
        let (sender, record) = mpsc::channel();
        let Some(store) = &self.store else { return self.waiting.push_front(ticket) };
        store.load_elsewhere(key, sender);
        self.places[place].state = State::Loading { ticket, record };
    }

    /// Starts the job of a place whose file has come, with it or without.
    fn look_for_file(&mut self, place: usize) {
        let State::Loading { record, .. } = &self.places[place].state else { return };
        let record = match record.try_recv() {
            Ok(record) => record,
            Err(mpsc::TryRecvError::Empty) => return,
            // The reading thread is gone: a miss.
            Err(mpsc::TryRecvError::Disconnected) => None,
        };
        let state = std::mem::replace(&mut self.places[place].state, State::Free);
        let State::Loading { ticket, .. } = state else { return };
        if let Some(record) = record {
            self.save(place, false);
            let Self { device, places, .. } = self;
            let Place { slot, held, saved, .. } = &mut places[place];
            held.forget();
            // Contents that do not fit this model are a miss as well.
            if device.memory().import(*slot, &record.contents).is_ok() {
                *held = record.into_held();
                self.shared.gauges().disk_hits += 1;
            }
            *saved = true;
        }
        let reuse = self.places[place].held.reuse(&ticket.prompt, &self.rules);
        self.start(place, ticket, reuse);
    }

    /// Starts a job in a free place.
    fn start(&mut self, place: usize, ticket: Box<Ticket>, reuse: Reuse) {
        if reuse.positions < self.places[place].held.len() {
            self.save(place, false);
        }
        let reuse = match self.cut(place, reuse) {
            Ok(reuse) => reuse,
            Err(error) => return self.end_waiting(ticket, End::Failed(error)),
        };
        let stops = self.rules.stops(&ticket.prompt, reuse.positions);
        let running = Running::new(*ticket, reuse.positions, stops);
        self.places[place].state = State::Running(Box::new(running));
        let mut gauges = self.shared.gauges();
        gauges.running += 1;
        gauges.cached_tokens += reuse.positions as u64;
        gauges.cache_hits += u64::from(reuse.positions > 0);
        drop(gauges);
        self.count_memory();
        self.work(place, |running, _| running.report());
    }

    /// Cuts a slot to what is reused, or to nothing where that fails.
    fn cut(&mut self, place: usize, reuse: Reuse) -> Result<Reuse> {
        let Self { device, places, rules, .. } = self;
        let Place { slot, held, .. } = &mut places[place];
        if held.cut(device.as_mut(), *slot, reuse, rules).is_ok() {
            return Ok(reuse);
        }
        held.forget();
        device.memory().restore(*slot, 0, None)?;
        Ok(Reuse { positions: 0, checkpoint: None })
    }

    /// Has what a free slot holds written to disk, if it is not there and worth it. `patiently`:
    /// waits for the writing thread; else a prompt is given up, for now, when that is busy.
    pub fn save(&mut self, place: usize, patiently: bool) {
        let Self { device, places, store, .. } = self;
        let Place { slot, held, saved, state, .. } = &mut places[place];
        let Some(store) = store else { return };
        if *saved || !matches!(state, State::Free) {
            return;
        }
        *saved = true;
        if held.serving() < LEAST_ON_DISK || store.holds(held.tokens()) {
            return;
        }
        // A slot that cannot be copied is as good as one that was never saved.
        let Ok(contents) = device.memory().export(*slot) else { return };
        let record = Record::of(store.identity(), held, contents);
        match patiently {
            true => store.save_patiently(record),
            false => *saved = store.save(record),
        }
    }
}
