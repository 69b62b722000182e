//! A decode step: one captured graph, which reads the position and the token from the card's memory. Of
//! the host it takes sixteen bytes, and gives back the likeliest id or the logits; a greedy step that goes on
//! from the one before takes nothing, and may be under way before it is asked for (`ahead.rs`).

use super::ahead::{BEGUN_BY_HOST, Turn, other};
use super::load::Table;
use super::plan::MOST_SLOTS_AHEAD;
use super::{Cache, CudaDevice, Slot, When};
use crate::error::{Result, RuntimeError};
use w4pack_kernels::cuda::Graph;
use w4pack_kernels::cuda::parameters::Step;

impl CudaDevice {
    /// Captures every slot's step, so that no answer has to ask the card for memory; twice, if steps run ahead.
    pub(super) fn capture_steps(&mut self) -> Result<()> {
        self.graphs = self.capture_in_turn(BEGUN_BY_HOST)?;
        // Rows of a table on disk are fetched by the host, which must know the token.
        let is_on_disk = matches!(self.table, Table::Disk { .. });
        let has_few = self.slots.len() <= MOST_SLOTS_AHEAD;
        if self.options.ahead != When::Never && has_few && !is_on_disk {
            self.ahead_graphs = self.capture_in_turn(other(BEGUN_BY_HOST))?;
        }
        Ok(self.queue.settled()?.wait()?)
    }

    fn capture_in_turn(&mut self, turn: Turn) -> Result<Vec<Graph>> {
        let passes = self.passes_in(turn)?;
        let capture = |caches: &Vec<_>| passes.gpu.capture(|| passes.step(caches));
        passes.layout.caches.iter().map(capture).collect()
    }

    /// The logits behind `token`, which the slot holds afterwards.
    pub(super) fn step_to_logits(&mut self, slot: Slot, token: u32) -> Result<Vec<f32>> {
        let cache = self.check_step(slot, token)?;
        self.begin_step(slot, cache, token)?;
        let logits = self.download_logits()?;
        self.commit_step(slot);
        Ok(logits)
    }

    /// The likeliest id behind `token`: the lowest one of the largest logit.
    pub(super) fn step_to_likeliest(&mut self, slot: Slot, token: u32) -> Result<u32> {
        let cache = self.check_step(slot, token)?;
        let turn = match self.queue.take(slot, cache.length, token) {
            Some(turn) => turn,
            None => {
                self.begin_step(slot, cache, token)?;
                BEGUN_BY_HOST
            }
        };
        let best = match self.can_go_on(cache) {
            true => self.go_on(slot, cache.length + 1, other(turn))?,
            false => self.download_best(turn)?,
        };
        let id = Step::chosen(best);
        if Step::is_nan(best) {
            return Err(RuntimeError::BrokenLogits { id: id as usize, value: f32::NAN });
        }
        self.commit_step(slot);
        self.queue.chose(slot, cache.length + 1, id);
        Ok(id)
    }

    /// Whether the step behind the next one should be under way before anybody asks for it, and may be.
    fn can_go_on(&self, cache: Cache) -> bool {
        !self.ahead_graphs.is_empty() && self.queue.pays() && self.check_room(cache, 2).is_ok()
    }

    /// Launches the step at `position` behind the one under way, whose choice it returns.
    fn go_on(&mut self, slot: Slot, position: usize, turn: Turn) -> Result<u64> {
        // Kept or not, it writes a row of each ring.
        let window = self.config.text.sliding_window;
        if let Some(cache) = &mut self.slots[slot.0] {
            cache.written(position + 1, window);
        }
        let graphs = if turn == BEGUN_BY_HOST { &self.graphs } else { &self.ahead_graphs };
        self.queue.run_ahead(&graphs[slot.0], slot, position, turn)
    }

    /// What the step of this turn, the last one under way, has chosen.
    fn download_best(&mut self, turn: Turn) -> Result<u64> {
        let best_address = self.layout.work.in_turn(turn).step + 8;
        let bytes = &mut self.mailbox.bytes_mut()[16..24];
        // SAFETY: `best` has 8 bytes; they are read after the wait.
        unsafe { self.queue.settled()?.download(bytes, best_address)? };
        Ok(bytemuck::pod_read_unaligned(&self.mailbox.bytes()[16..24]))
    }

    /// Puts a step into the mailbox and on its way.
    pub(super) fn send_step(&mut self, position: usize, token: i32) -> Result<()> {
        let step = Step { position: position as i32, token, best: 0 };
        let bytes = &mut self.mailbox.bytes_mut()[..16];
        bytes[..4].copy_from_slice(&step.position.to_le_bytes());
        bytes[4..8].copy_from_slice(&step.token.to_le_bytes());
        bytes[8..].copy_from_slice(&step.best.to_le_bytes());
        // SAFETY: `step` has 16 bytes; the mailbox is not written again before the stream is done.
        unsafe { self.queue.settled()?.upload(self.layout.work.step, bytes)? };
        Ok(())
    }

    /// The slot, if it can hold this token next.
    pub(super) fn check_step(&self, slot: Slot, token: u32) -> Result<Cache> {
        let cache = self.cache(slot)?;
        self.check_room(cache, 1)?;
        crate::forward::check_ids(&self.config.text, &[token], cache.length)?;
        Ok(cache)
    }

    /// Runs the decode step of `token`; its logits and best id are on the card afterwards.
    fn begin_step(&mut self, slot: Slot, cache: Cache, token: u32) -> Result<()> {
        self.fetch_table_rows(&[token])?;
        self.send_step(cache.length, token as i32)?;
        Ok(self.queue.settled()?.run(&self.graphs[slot.0])?)
    }

    pub(super) fn commit_step(&mut self, slot: Slot) {
        self.keep(slot, 1);
    }

    /// The slot holds so many tokens more, whose keys and values are written.
    pub(super) fn keep(&mut self, slot: Slot, tokens: usize) {
        let window = self.config.text.sliding_window;
        if let Some(cache) = &mut self.slots[slot.0] {
            cache.length += tokens;
            cache.written(cache.length, window);
        }
    }
}
