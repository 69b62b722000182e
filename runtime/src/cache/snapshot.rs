//! Contents of a CPU cache, taken out and put back: numbers as they are kept, in the machine's byte
//! order.

use super::{Cache, LayerCache, Rows};
use crate::device::snapshot::{Contents, Rings, check_bytes, check_reach, check_rows, unfit};
use crate::error::{Result, RuntimeError};
use bytemuck::Pod;

impl<S: Pod + Default> Cache<S> {
    /// Bytes of its blocks and staged rows.
    pub fn bytes(&self) -> usize {
        let rows = |rows: &Rows<S>| {
            let blocks: usize = rows.blocks.iter().map(Vec::capacity).sum();
            (blocks + rows.staged.capacity()) * size_of::<S>()
        };
        self.layers.iter().flatten().map(|layer| rows(&layer.keys) + rows(&layer.values)).sum()
    }

    /// Empties it for another sequence of at most `context` positions; its memory stays.
    pub fn reset(&mut self, context: usize) {
        self.set_length(0, 0);
        self.context = context;
    }

    /// A copy of the rings.
    pub fn rings(&self) -> Result<Rings> {
        Ok(Rings { positions: self.length, bytes: self.copy(|layer| layer.ring.is_some())? })
    }

    /// A copy of everything.
    pub fn contents(&self) -> Result<Contents> {
        Ok(Contents { full: self.copy(|layer| layer.ring.is_none())?, rings: self.rings()? })
    }

    /// Cuts the sequence to `target` positions, with its own rings or saved ones.
    pub fn restore(&mut self, target: usize, rings: Option<&Rings>) -> Result<()> {
        if target > self.length {
            return unfit(format!("of {} positions {target} cannot be kept", self.length));
        }
        let window = self.window();
        let Some(rings) = rings else {
            if let Some(window) = window {
                check_reach(self.length, target, window)?;
                check_rows(self.oldest, target, window)?;
            }
            self.set_length(target, self.oldest);
            return Ok(());
        };
        if let Some(window) = window {
            check_reach(rings.positions, target, window)?;
        }
        self.put(|layer| layer.ring.is_some(), "rings", rings.positions, &rings.bytes)?;
        self.set_length(target, self.begin_of_rings(rings.positions));
        Ok(())
    }

    /// Replaces everything.
    pub fn fill(&mut self, contents: &Contents) -> Result<()> {
        let Contents { full, rings } = contents;
        let positions = rings.positions;
        if positions > self.context {
            return unfit(format!("{positions} positions in a context of {}", self.context));
        }
        let is_full = |layer: &LayerCache<S>| layer.ring.is_none();
        check_bytes("full layers", full.len(), self.bytes_of(is_full, positions))?;
        check_bytes("rings", rings.bytes.len(), self.bytes_of(|layer| !is_full(layer), positions))?;
        self.put(is_full, "full layers", positions, full)?;
        self.put(|layer| !is_full(layer), "rings", positions, &rings.bytes)?;
        self.set_length(positions, self.begin_of_rings(positions));
        Ok(())
    }

    /// The first position that rings of so many positions have the row of.
    fn begin_of_rings(&self, positions: usize) -> usize {
        positions.saturating_sub(self.window().unwrap_or(positions))
    }

    fn set_length(&mut self, length: usize, oldest: usize) {
        self.length = length;
        self.oldest = if length == 0 { 0 } else { oldest };
        for layer in self.layers.iter_mut().flatten() {
            layer.length = length;
            layer.keys.staged.clear();
            layer.values.staged.clear();
        }
    }

    /// Bytes of some layers' rows at `positions`.
    fn bytes_of(&self, chosen: impl Fn(&LayerCache<S>) -> bool, positions: usize) -> usize {
        let layers = self.layers.iter().flatten().filter(|layer| chosen(layer));
        layers.map(|layer| 2 * layer.slots(positions) * layer.width * size_of::<S>()).sum()
    }

    /// The rows of some layers, layer by layer, keys before values.
    fn copy(&self, chosen: impl Fn(&LayerCache<S>) -> bool) -> Result<Vec<u8>> {
        let bytes = self.bytes_of(&chosen, self.length);
        let mut copy = Vec::new();
        copy.try_reserve_exact(bytes).map_err(|_| RuntimeError::Memory {
            what: "a copy of keys and values".into(),
            bytes,
        })?;
        for layer in self.layers.iter().flatten().filter(|layer| chosen(layer)) {
            let numbers = layer.slots(self.length) * layer.width;
            for rows in [&layer.keys, &layer.values] {
                let mut rest = numbers;
                for block in &rows.blocks {
                    let part = rest.min(block.len());
                    copy.extend_from_slice(bytemuck::cast_slice(&block[..part]));
                    rest -= part;
                }
            }
        }
        Ok(copy)
    }

    /// Puts such a copy back.
    fn put(
        &mut self,
        chosen: impl Fn(&LayerCache<S>) -> bool,
        what: &str,
        positions: usize,
        copy: &[u8],
    ) -> Result<()> {
        check_bytes(what, copy.len(), self.bytes_of(&chosen, positions))?;
        for layer in self.layers.iter_mut().flatten().filter(|layer| chosen(layer)) {
            let slots = layer.slots(positions);
            layer.keys.begin(slots, 0, layer.width)?;
            layer.values.begin(slots, 0, layer.width)?;
        }
        let mut rest = copy;
        for layer in self.layers.iter_mut().flatten().filter(|layer| chosen(layer)) {
            let bytes = layer.slots(positions) * layer.width * size_of::<S>();
            for rows in [&mut layer.keys, &mut layer.values] {
                let (mut own, behind) = rest.split_at(bytes);
                rest = behind;
                for block in &mut rows.blocks {
                    let block: &mut [u8] = bytemuck::cast_slice_mut(block);
                    let (part, behind) = own.split_at(own.len().min(block.len()));
                    block[..part.len()].copy_from_slice(part);
                    own = behind;
                }
            }
        }
        Ok(())
    }
}
