//! Tokens of one sequence that are tried in one pass: the columns of `together.rs`, of one slot and at
//! neighbouring positions, each seeing the keys and values of those before it.
//!
//! Where there are graphs, they are captured for a few numbers of tokens; what is missing is filled up with the last
//! token once more, at its own position, which changes nothing. Rows of tokens that are not kept stay behind the end
//! of the sequence; rings have room for them beside what a window sees (`layout::ring_rows`).

use super::passes::Columns;
use super::plan::TRIED;
use super::together::Column;
use super::{CudaDevice, Decoded, Device, Slot, Trial};
use crate::error::Result;

/// A pass over tokens that are tried, done.
struct TriedTokens<'d> {
    device: &'d mut CudaDevice,
    slot: Slot,
    tokens: usize,
}

impl CudaDevice {
    /// Captures the steps, if there is room and tokens can go together at all.
    pub(super) fn capture_tried(&mut self) -> Result<()> {
        if self.layout.tried > 1 && self.passes()?.takes_batches() {
            self.tried_graphs = self.capture_columns(TRIED, Columns::OfOne)?;
        }
        Ok(())
    }

    /// See [`super::Device::try_tokens`].
    pub(super) fn try_together(
        &mut self,
        slot: Slot,
        tokens: &[u32],
    ) -> Result<Box<dyn Trial + '_>> {
        crate::device::check_tried(tokens, self.most_tried())?;
        let cache = self.cache(slot)?;
        self.check_room(cache, tokens.len())?;
        crate::forward::check_ids(&self.config.text, tokens, cache.length)?;
        let graph = TRIED.iter().position(|&count| count >= tokens.len());
        let graph = graph.expect("the last graph takes the most there may be");
        let count = if self.ways.several { tokens.len() } else { TRIED[graph] };
        let columns: Vec<Column> = (0..count)
            .map(|number| number.min(tokens.len() - 1))
            .map(|number| Column { slot, position: cache.length + number, token: tokens[number] })
            .collect();
        // Also where the pass fails half-way.
        let window = self.config.text.sliding_window;
        if let Some(cache) = &mut self.slots[slot.0] {
            cache.written(cache.length + tokens.len(), window);
        }
        self.send_columns(&columns)?;
        match self.ways.several {
            true => self.launch_columns(&columns)?,
            false => self.queue.settled()?.run(&self.tried_graphs[graph])?,
        }
        self.receive_columns(tokens.len())?;
        Ok(Box::new(TriedTokens { device: self, slot, tokens: tokens.len() }))
    }
}

impl Trial for TriedTokens<'_> {
    fn leads_to(&mut self, number: usize, logits: bool) -> Result<Decoded> {
        self.device.decoded(number, logits)
    }

    fn keep(self: Box<Self>, count: usize) {
        self.device.keep(self.slot, count.min(self.tokens));
    }
}
