//! Which job gets which slot, and what comes from disk and goes there.
//!
//! First come, first served. A job whose prompt goes on from the last one of a free slot gets that
//! slot: it is the same conversation. Another one gets the slot used least recently, and what some
//! slot holds of its prompt, a running one too, is copied over: that conversation keeps its slot. A
//! job that begins like a prompt that is being read right now waits until it can have that
//! beginning, and others go first. If the disk holds clearly more than any slot, the prompt is read
//! from there by another thread while rounds go on.

use super::held::{Reuse, longest};
use super::running::{End, Running, Ticket};
use super::store::{Head, Record};
use super::worker::{Place, State, Worker};
use crate::error::Result;
use std::sync::mpsc;

/// Fewer tokens than this are read as quickly as they are found elsewhere.
const LEAST_FOUND: usize = 32;

/// Tokens at the end of a prompt, there to begin the answer, that the next prompt of the same
/// conversation may have otherwise.
const OTHERWISE_SAID: usize = 8;

/// The place for a job.
struct Choice {
    place: usize,
    /// What the place holds of its prompt.
    reuse: Reuse,
    /// Another place that holds more of it.
    donor: Option<(usize, Reuse)>,
}

impl Choice {
    /// Tokens of the prompt that need not be read.
    fn positions(&self) -> usize {
        self.donor.map_or(self.reuse.positions, |(_, reuse)| reuse.positions)
    }
}

impl Worker {
    /// Gives free slots to waiting jobs, and starts those whose prompts have come from disk.
    pub fn admit(&mut self) {
        for place in 0..self.places.len() {
            self.look_for_file(place);
        }
        while self.places.iter().any(Place::is_free)
            && let Some((number, choice)) = self.next()
            && let Some(ticket) = self.waiting.remove(number)
        {
            let least = choice.positions() + LEAST_FOUND;
            match self.on_disk(&ticket.prompt).filter(|(_, positions)| *positions >= least) {
                Some((key, _)) => self.load(ticket, key),
                None => self.start(ticket, &choice),
            }
        }
    }

    /// The job to start next and the place for it; a place is free. Looks at no more jobs than there
    /// are places: this is asked in every round.
    fn next(&self) -> Option<(usize, Choice)> {
        let first = self.waiting.iter().take(self.places.len()).enumerate();
        first
            .map(|(number, ticket)| (number, &ticket.prompt, self.choose(&ticket.prompt)))
            .find_map(|(number, prompt, choice)| {
                let reading = self.places.iter().filter_map(Place::running);
                let soon = reading.map(|running| running.will_hold(prompt, &self.rules)).max();
                let worth_waiting =
                    soon.is_some_and(|soon| soon >= choice.positions() + LEAST_FOUND);
                (!worth_waiting).then_some((number, choice))
            })
    }

    /// The free place for a prompt, and where most of it is.
    fn choose(&self, prompt: &[u32]) -> Choice {
        let offer = |place: usize| self.places[place].held.reuse(prompt, &self.rules);
        let oldest_first = |place: usize| std::cmp::Reverse(self.places[place].used);
        let free = (0..self.places.len()).filter(|&place| self.places[place].is_free());
        let oldest = free.clone().max_by_key(|&place| oldest_first(place));
        let goes_on = |&place: &usize| {
            let kept = offer(place).positions;
            kept > 0 && kept + OTHERWISE_SAID >= self.places[place].prompt
        };
        let same =
            free.filter(goes_on).max_by_key(|&place| (offer(place).positions, oldest_first(place)));
        let place = same.or(oldest).expect("a place is free");
        let reuse = offer(place);
        let others = (0..self.places.len()).filter(|&other| other != place);
        let donor = others
            .map(|other| (other, offer(other)))
            .max_by_key(|(_, reuse)| reuse.positions)
            .filter(|(_, found)| found.positions >= reuse.positions + LEAST_FOUND);
        Choice { place, reuse, donor }
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
        self.start(ticket, &Choice { place, reuse, donor: None });
    }

    /// Starts a job in the place chosen.
    fn start(&mut self, ticket: Box<Ticket>, choice: &Choice) {
        let &Choice { place, mut reuse, donor } = choice;
        if donor.is_some() || reuse.positions < self.places[place].held.len() {
            self.save(place, false);
        }
        if let Some((donor, found)) = donor {
            reuse = self.copy(donor, place, found);
        }
        let reuse = match self.cut(place, reuse) {
            Ok(reuse) => reuse,
            Err(error) => return self.end_waiting(ticket, End::Failed(error)),
        };
        let prompt = ticket.prompt.len();
        let stops = self.rules.stops(&ticket.prompt, reuse.positions);
        let running = Running::new(*ticket, reuse.positions, stops);
        self.places[place].prompt = prompt;
        self.places[place].state = State::Running(Box::new(running));
        let mut gauges = self.shared.gauges();
        gauges.running += 1;
        gauges.cached_tokens += reuse.positions as u64;
        gauges.cache_hits += u64::from(reuse.positions > 0);
        drop(gauges);
        self.count_memory();
        self.work(place, |running, _| running.report());
    }

    /// Copies what a slot holds into a free one. What is reused there: as in the donor, or nothing if
    /// that fails.
    fn copy(&mut self, donor: usize, place: usize, found: Reuse) -> Reuse {
        let Self { device, places, .. } = self;
        let (from, to) = (places[donor].slot, places[place].slot);
        let memory = device.memory();
        let copied = memory.export(from).and_then(|contents| memory.import(to, &contents));
        match copied {
            Ok(()) => {
                places[place].held = places[donor].held.clone();
                found
            }
            Err(_) => {
                places[place].held.forget();
                Reuse { positions: 0, checkpoint: None }
            }
        }
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
        if held.serving() < LEAST_FOUND || store.holds(held.tokens()) {
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
