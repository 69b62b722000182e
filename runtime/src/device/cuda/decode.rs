//! A decode step: one captured graph, which reads the position and the token from the card's memory. Of
//! the host it takes sixteen bytes, and gives back the likeliest id or the logits.

use super::{CudaDevice, Slot};
use crate::error::{Result, RuntimeError};
use w4pack_kernels::cuda::parameters::Step;

impl CudaDevice {
    /// Captures every slot's step, so that no answer has to ask the card for memory.
    pub(super) fn capture_steps(&mut self) -> Result<()> {
        for caches in &self.layout.caches {
            let passes = self.passes();
            let graph = self.gpu.capture(|| passes.step(caches))?;
            self.graphs.push(graph);
        }
        Ok(self.gpu.wait()?)
    }

    /// The logits behind `token`, which the slot holds afterwards.
    pub(super) fn step_to_logits(&mut self, slot: Slot, token: u32) -> Result<Vec<f32>> {
        self.run_step(slot, token)?;
        let logits = self.download_logits()?;
        self.commit_step(slot);
        Ok(logits)
    }

    /// The likeliest id behind `token`: the lowest one of the largest logit.
    pub(super) fn step_to_likeliest(&mut self, slot: Slot, token: u32) -> Result<u32> {
        self.run_step(slot, token)?;
        let best_address = self.layout.work.step + 8;
        let bytes = &mut self.mailbox.bytes_mut()[16..24];
        // SAFETY: `best` has 8 bytes; they are read after the wait.
        unsafe { self.gpu.download(bytes, best_address)? };
        let best = bytemuck::pod_read_unaligned(&self.mailbox.bytes()[16..24]);
        let id = Step::chosen(best);
        if Step::is_nan(best) {
            return Err(RuntimeError::BrokenLogits { id: id as usize, value: f32::NAN });
        }
        self.commit_step(slot);
        Ok(id)
    }

    /// Puts a step into the mailbox and on its way.
    pub(super) fn send_step(&mut self, position: usize, token: i32) -> Result<()> {
        let step = Step { position: position as i32, token, best: 0 };
        let bytes = &mut self.mailbox.bytes_mut()[..16];
        bytes[..4].copy_from_slice(&step.position.to_le_bytes());
        bytes[4..8].copy_from_slice(&step.token.to_le_bytes());
        bytes[8..].copy_from_slice(&step.best.to_le_bytes());
        // SAFETY: `step` has 16 bytes; the mailbox is not written again before the stream is done.
        unsafe { self.gpu.upload(self.layout.work.step, bytes)? };
        Ok(())
    }

    /// Runs the decode step of `token`; its logits and best id are on the card afterwards.
    fn run_step(&mut self, slot: Slot, token: u32) -> Result<()> {
        let cache = self.cache(slot)?;
        self.check_room(cache, 1)?;
        crate::forward::check_ids(&self.config.text, &[token], cache.length)?;
        self.gpu.bind()?;
        self.fetch_table_rows(&[token])?;
        self.send_step(cache.length, token as i32)?;
        Ok(self.gpu.run(&self.graphs[slot.0])?)
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
