//! The card as everything but this file sees it: with nothing under way that the host has not asked for.
//!
//! A step that runs ahead uses the work space, both `Step`s and its slot's rows. Whoever gives the card other
//! work therefore gets it by [`Queue::settled`], which waits for such a step and forgets it. There is no other
//! way to the card, so that nobody has to remember.

use super::When;
use super::ahead::{Ahead, Turn};
use crate::device::Slot;
use crate::error::Result;
use w4pack_kernels::cuda::{Address, Card, Gpu, Graph, Words};

/// A card, and the step that it may be running ahead of the host.
pub(super) struct Queue {
    gpu: Gpu,
    ahead: Ahead,
    /// By turn: what the step before a step that runs ahead has chosen.
    told: Words,
}

impl Queue {
    pub fn new(gpu: Gpu, run: When) -> Result<Self> {
        let told = gpu.words(2)?;
        Ok(Self { gpu, ahead: Ahead::new(run), told })
    }

    /// The card, bound to this thread, with nothing under way that was run ahead.
    pub fn settled(&mut self) -> Result<&Gpu> {
        self.gpu.bind()?;
        if self.ahead.forget() {
            self.gpu.wait()?;
        }
        Ok(&self.gpu)
    }

    /// What kind of card it is.
    pub fn card(&self) -> &Card {
        self.gpu.card()
    }

    /// Which kernels were loaded, see [`Gpu::kernels`].
    pub fn kernels(&self) -> &'static str {
        self.gpu.kernels()
    }

    /// Where the step of a turn says what the one before it has chosen.
    pub fn told_at(&self, turn: Turn) -> Result<Address> {
        Ok(self.told.address(turn)?)
    }

    /// Steps that were taken while under way.
    pub fn steps_run_ahead(&self) -> usize {
        self.ahead.taken()
    }

    /// See [`Ahead::take`].
    pub fn take(&mut self, slot: Slot, position: usize, token: u32) -> Option<Turn> {
        self.ahead.take(slot, position, token)
    }

    /// See [`Ahead::pays`].
    pub fn pays(&self) -> bool {
        self.ahead.pays()
    }

    /// See [`Ahead::chose`].
    pub fn chose(&mut self, slot: Slot, position: usize, token: u32) {
        self.ahead.chose(slot, position, token);
    }

    /// Launches the step of this turn behind the one that the card is at or has done, whose choice it goes on
    /// with; returns that choice, once there is one.
    pub fn run_ahead(
        &mut self,
        graph: &Graph,
        slot: Slot,
        position: usize,
        turn: Turn,
    ) -> Result<u64> {
        self.gpu.bind()?;
        // The last step of this turn has written its word long ago: what it said was waited for.
        self.told.clear(turn);
        self.ahead.begins(slot, position, turn);
        self.gpu.run(graph)?;
        Ok(self.gpu.wait_for(&self.told, turn)?)
    }
}
