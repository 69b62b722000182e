//! What slots on a card hold, copied to the host and back.
//!
//! A layer's rows lie position by position, so what a sequence of some length holds of a layer is
//! the beginning of its keys, of its values and, where numbers are bytes, of their steps.

use super::{Cache, CudaDevice, KvType};
use crate::device::snapshot::{check_bytes, check_reach, unfit};
use crate::device::{Contents, Rings, Slot, SlotMemory};
use crate::error::{Result, RuntimeError};
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
            let rows = match cache.window {
                0 => positions,
                window => positions.min(window as usize),
            };
            let numbers = rows * cache.kv_heads as usize * cache.head_dim as usize;
            let bytes = numbers * self.options.kv.number_bytes();
            spans.extend([(cache.stored.keys, bytes), (cache.stored.values, bytes)]);
            if self.options.kv == KvType::Q8 {
                let bytes = 2 * numbers.div_ceil(32);
                let steps = [cache.stored.key_steps, cache.stored.value_steps];
                spans.extend(steps.map(|address| (address, bytes)));
            }
        }
        spans
    }

    fn copy_out(&self, slot: Slot, layers: Layers, positions: usize) -> Result<Vec<u8>> {
        let spans = self.spans(slot, layers, positions);
        let bytes = spans.iter().map(|(_, bytes)| bytes).sum();
        let mut copy = Vec::new();
        copy.try_reserve_exact(bytes).map_err(|_| RuntimeError::Memory {
            what: "a copy of keys and values".into(),
            bytes,
        })?;
        copy.resize(bytes, 0);
        self.gpu.bind()?;
        let mut rest = &mut copy[..];
        for (address, bytes) in spans {
            let (part, behind) = rest.split_at_mut(bytes);
            rest = behind;
            // SAFETY: the layout gave these rows to the slot. The copy waits its turn in the stream,
            // behind the passes that wrote them.
            unsafe { self.gpu.download(part, address)? };
        }
        Ok(copy)
    }

    fn copy_in(&self, slot: Slot, layers: Layers, positions: usize, copy: &[u8]) -> Result<()> {
        self.gpu.bind()?;
        let mut rest = copy;
        for (address, bytes) in self.spans(slot, layers, positions) {
            let (part, behind) = rest.split_at(bytes);
            rest = behind;
            // SAFETY: the layout gave these rows to the slot. The copy waits its turn in the stream,
            // behind the passes that read them.
            unsafe { self.gpu.upload(address, part)? };
        }
        // `copy` may go.
        Ok(self.gpu.wait()?)
    }

    fn bytes_of(&self, slot: Slot, layers: Layers, positions: usize) -> usize {
        self.spans(slot, layers, positions).iter().map(|(_, bytes)| bytes).sum()
    }

    fn set_length(&mut self, slot: Slot, length: usize) {
        if let Some(cache) = &mut self.slots[slot.0] {
            cache.length = length;
        }
    }
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
        let Cache { length, .. } = self.cache(slot)?;
        if target > length {
            return unfit(format!("of {length} positions {target} cannot be kept"));
        }
        let window = self.config.text.sliding_window;
        if let Some(Rings { positions, bytes }) = rings {
            check_reach(*positions, target, window)?;
            let expected = self.bytes_of(slot, Layers::Sliding, *positions);
            check_bytes("rings", bytes.len(), expected)?;
            self.copy_in(slot, Layers::Sliding, *positions, bytes)?;
        } else {
            check_reach(length, target, window)?;
        }
        self.set_length(slot, target);
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
        self.set_length(slot, 0);
        for (_, layers, bytes) in parts {
            self.copy_in(slot, layers, positions, bytes)?;
        }
        self.set_length(slot, positions);
        Ok(())
    }

    fn arithmetic(&self) -> String {
        let (card, kv) = (&self.card().name, self.options.kv.name());
        format!("cuda, {card}, {} kernels, {:?}, {kv}", self.gpu.kernels(), self.products)
    }

    fn answers_serve_as_prompts(&self) -> bool {
        // Decode steps sum in another order than chunks of a prompt.
        false
    }
}
