//! What slots on a card hold, copied to the host and back.
//!
//! A layer's rows lie position by position, so what a sequence of some length holds of a layer is
//! the beginning of its keys, of its values and, where numbers are bytes, of their steps. Of a ring, copies
//! hold what one of just a window's rows would hold, in its order: so they do not tell how long rings
//! are, and have nothing of tokens that were tried and dropped.

use super::{Cache, CudaDevice, KvType};
use crate::device::snapshot::{check_bytes, check_reach, check_rows, unfit};
use crate::device::{Contents, Rings, Slot, SlotMemory};
use crate::error::{Result, RuntimeError};
use std::ops::Range;
use w4pack_kernels::cuda::Address;
use w4pack_kernels::cuda::parameters::KvLayer;

/// Which layers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Layers {
    Full,
    Sliding,
}

impl CudaDevice {
    /// Addresses and bytes of what `positions` positions take, layer by layer.
    fn spans(&self, slot: Slot, layers: Layers, positions: usize) -> Vec<(Address, usize)> {
        let kind = |cache: &&KvLayer| (cache.window == 0) == (layers == Layers::Full);
        let mut spans = Vec::new();
        for cache in self.layout.caches[slot.0].iter().flatten().filter(kind) {
            let runs = match cache.window {
                0 => std::iter::once(0..positions).collect(),
                window => ring_runs(positions, window as usize, cache.ring as usize),
            };
            let row = cache.kv_heads as usize * cache.head_dim as usize;
            let mut add = |address: Address, row_bytes: usize| {
                let span = |rows: &Range<usize>| {
                    (address + (rows.start * row_bytes) as u64, rows.len() * row_bytes)
                };
                spans.extend(runs.iter().map(span));
            };
            let bytes = row * self.options.kv.number_bytes();
            add(cache.stored.keys, bytes);
            add(cache.stored.values, bytes);
            if self.options.kv == KvType::Q8 {
                add(cache.stored.key_steps, row / 16);
                add(cache.stored.value_steps, row / 16);
            }
        }
        spans
    }

    fn copy_out(&mut self, slot: Slot, layers: Layers, positions: usize) -> Result<Vec<u8>> {
        let spans = self.spans(slot, layers, positions);
        let bytes = spans.iter().map(|(_, bytes)| bytes).sum();
        let mut copy = Vec::new();
        copy.try_reserve_exact(bytes).map_err(|_| RuntimeError::Memory {
            what: "a copy of keys and values".into(),
            bytes,
        })?;
        copy.resize(bytes, 0);
        let gpu = self.queue.settled()?;
        let mut rest = &mut copy[..];
        for (address, bytes) in spans {
            let (part, behind) = rest.split_at_mut(bytes);
            rest = behind;
            // SAFETY: the layout gave these rows to the slot. The copy waits its turn in the stream,
            // behind the passes that wrote them.
            unsafe { gpu.download(part, address)? };
        }
        Ok(copy)
    }

    fn copy_in(&mut self, slot: Slot, layers: Layers, positions: usize, copy: &[u8]) -> Result<()> {
        let spans = self.spans(slot, layers, positions);
        let gpu = self.queue.settled()?;
        let mut rest = copy;
        for (address, bytes) in spans {
            let (part, behind) = rest.split_at(bytes);
            rest = behind;
            // SAFETY: the layout gave these rows to the slot. The copy waits its turn in the stream,
            // behind the passes that read them.
            unsafe { gpu.upload(address, part)? };
        }
        // `copy` may go.
        Ok(gpu.wait()?)
    }

    fn bytes_of(&self, slot: Slot, layers: Layers, positions: usize) -> usize {
        self.spans(slot, layers, positions).iter().map(|(_, bytes)| bytes).sum()
    }

    /// What the slot holds now, and the first position that its rings have the row of.
    fn set_length(&mut self, slot: Slot, length: usize, oldest: usize) {
        if let Some(cache) = &mut self.slots[slot.0] {
            cache.length = length;
            cache.oldest = if length == 0 { 0 } else { oldest };
        }
    }
}

/// Rows of a ring of `ring` rows that hold what one of `window` rows would hold of `positions` positions, in
/// the order of that one's rows.
fn ring_runs(positions: usize, window: usize, ring: usize) -> Vec<Range<usize>> {
    let turn = positions - positions % window;
    // In its first rows the positions of this turn, behind them what is left of the one before.
    let before = positions.saturating_sub(window)..turn;
    let mut runs = Vec::new();
    for Range { mut start, end } in [turn..positions, before] {
        while start < end {
            let row = start % ring;
            let count = (end - start).min(ring - row);
            runs.push(row..row + count);
            start += count;
        }
    }
    runs
}

impl SlotMemory for CudaDevice {
    fn positions(&self, slot: Slot) -> Result<usize> {
        Ok(self.cache(slot)?.length)
    }

    fn slot_bytes(&self, slot: Slot) -> Result<usize> {
        self.cache(slot)?;
        // All of it is in the arena from the start.
        Ok(0)
    }

    fn save_rings(&mut self, slot: Slot) -> Result<Rings> {
        let positions = self.cache(slot)?.length;
        Ok(Rings { positions, bytes: self.copy_out(slot, Layers::Sliding, positions)? })
    }

    fn restore(&mut self, slot: Slot, target: usize, rings: Option<&Rings>) -> Result<()> {
        let Cache { length, oldest, .. } = self.cache(slot)?;
        if target > length {
            return unfit(format!("of {length} positions {target} cannot be kept"));
        }
        let window = self.config.text.sliding_window;
        if let Some(Rings { positions, bytes }) = rings {
            check_reach(*positions, target, window)?;
            let expected = self.bytes_of(slot, Layers::Sliding, *positions);
            check_bytes("rings", bytes.len(), expected)?;
            self.copy_in(slot, Layers::Sliding, *positions, bytes)?;
            self.set_length(slot, target, positions.saturating_sub(window));
            return Ok(());
        }
        check_reach(length, target, window)?;
        check_rows(oldest, target, window)?;
        self.set_length(slot, target, oldest);
        Ok(())
    }

    fn export(&mut self, slot: Slot) -> Result<Contents> {
        let rings = self.save_rings(slot)?;
        let full = self.copy_out(slot, Layers::Full, rings.positions)?;
        Ok(Contents { full, rings })
    }

    fn import(&mut self, slot: Slot, contents: &Contents) -> Result<()> {
        let Cache { context, .. } = self.cache(slot)?;
        let Contents { full, rings } = contents;
        let positions = rings.positions;
        if positions > context {
            return unfit(format!("{positions} positions in a context of {context}"));
        }
        let parts = [("full layers", Layers::Full, full), ("rings", Layers::Sliding, &rings.bytes)];
        for (what, layers, bytes) in parts {
            check_bytes(what, bytes.len(), self.bytes_of(slot, layers, positions))?;
        }
        // From here on a copy that fails leaves rows of both: none of them may be read.
        self.set_length(slot, 0, 0);
        for (_, layers, bytes) in parts {
            self.copy_in(slot, layers, positions, bytes)?;
        }
        self.set_length(slot, positions, positions.saturating_sub(self.config.text.sliding_window));
        Ok(())
    }

    fn arithmetic(&self) -> String {
        let (card, kv) = (&self.card().name, self.options.kv.name());
        format!("cuda, {card}, {} kernels, {:?}, {kv}", self.queue.kernels(), self.ways.products)
    }

    fn answers_serve_as_prompts(&self) -> bool {
        // Decode steps sum in another order than chunks of a prompt.
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By simulation: rings of every size that writes position `p` into row `p % size`.
    #[test]
    fn runs_of_a_longer_ring_are_the_rows_of_one_of_just_a_window() {
        let written = |size: usize, positions: usize| {
            let mut ring = vec![None; size];
            (0..positions).for_each(|position| ring[position % size] = Some(position));
            ring
        };
        for window in 1..9 {
            for ring in window..window + 9 {
                for positions in 0..60 {
                    let longer = written(ring, positions);
                    let runs = ring_runs(positions, window, ring);
                    let found: Vec<_> = runs.into_iter().flatten().map(|row| longer[row]).collect();
                    let expected = &written(window, positions)[..positions.min(window)];
                    assert_eq!(found, expected, "{window} of {ring}, {positions}");
                }
            }
        }
    }
}
