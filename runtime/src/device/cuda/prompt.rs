//! A prompt in chunks: through the layers that own keys and values all of it, through the shared ones
//! what logits are wanted of.

use super::layout;
use super::load::Table;
use super::passes::Token;
use super::{CudaDevice, Slot, Wanted, Work};
use crate::error::{Result, RuntimeError};
use w4pack_kernels::cuda::Address;

impl CudaDevice {
    /// Reads a piece of a prompt, in chunks.
    pub(super) fn read_prompt(&mut self, work: &Work<'_>) -> Result<Vec<f32>> {
        let cache = self.cache(work.slot)?;
        if work.tokens.is_empty() {
            return Err(RuntimeError::EmptyPrompt);
        }
        crate::forward::check_ids(&self.config.text, work.tokens, cache.length)?;
        self.check_room(cache, work.tokens.len())?;
        let chunk = match work.logits {
            Wanted::All => self.layout.work.chunk_for_all,
            _ => self.layout.work.chunk,
        };
        let (mut logits, mut first) = (Vec::new(), cache.length);
        let mut pieces = work.tokens.chunks(chunk).peekable();
        while let Some(tokens) = pieces.next() {
            let wanted = match work.logits {
                Wanted::Last if pieces.peek().is_some() => Wanted::Nothing,
                wanted => wanted,
            };
            self.read_chunk(work.slot, first, tokens, wanted, &mut logits)?;
            first += tokens.len();
        }
        self.keep(work.slot, work.tokens.len());
        Ok(logits)
    }

    fn read_chunk(
        &mut self,
        slot: Slot,
        first: usize,
        tokens: &[u32],
        wanted: Wanted,
        logits: &mut Vec<f32>,
    ) -> Result<()> {
        self.fetch_table_rows(tokens)?;
        let ids: Vec<u8> = tokens.iter().flat_map(|id| id.to_le_bytes()).collect();
        let layout_work = self.layout.work;
        // SAFETY: the plan has ids for a chunk of tokens.
        unsafe { self.queue.settled()?.upload(layout_work.chunk_ids, &ids)? };
        let (owning, all) = (self.config.text.owning_layers(), self.config.text.layers.len());
        let (vocabulary, hidden) = (self.config.text.vocab_size, self.config.text.hidden_size);
        let width = self.config.text.hidden_size_per_layer_input;
        let count = tokens.len();
        let layers = if wanted == Wanted::All { 0..all } else { 0..owning };
        let passes = self.passes()?;
        let caches = &passes.layout.caches[slot.0];
        passes.chunk_layers(caches, first, count, layers)?;
        passes.commit(caches, first, count)?;
        match wanted {
            Wanted::Nothing => {}
            Wanted::All => {
                let rows = (layout_work.wide / vocabulary).max(1);
                for begin in (0..count).step_by(rows) {
                    let rows = rows.min(count - begin);
                    self.passes()?.chunk_head(begin, rows)?;
                    let old = logits.len();
                    logits.resize(old + rows * vocabulary, 0.0);
                    let target = bytemuck::cast_slice_mut(&mut logits[old..]);
                    // SAFETY: `chunk_head` wrote these logits.
                    unsafe { self.queue.settled()?.download(target, layout_work.chunk_wide)? };
                }
            }
            Wanted::Last => {
                // From the first KV-shared layer on only the last token is of interest.
                let last = count - 1;
                let x = layout_work.chunk_stream + (4 * last * hidden) as u64;
                let per_layer = layout_work.chunk_per_layer + (4 * last * all * width) as u64;
                let turns = layout_work.chunk_turns + (8 * last * self.layout.vectors.pairs) as u64;
                self.send_step(first + last, tokens[last] as i32)?;
                let passes = self.passes()?;
                let caches = &passes.layout.caches[slot.0];
                let layers = owning..all;
                passes.token_layers(&Token { caches, layers, x, per_layer, turns })?;
                *logits = self.download_logits()?;
            }
        }
        // The ids and the mailbox may be written again.
        self.queue.settled()?.wait()?;
        Ok(())
    }

    pub(super) fn download_logits(&mut self) -> Result<Vec<f32>> {
        self.download_row(self.layout.work.logits)
    }

    /// A row of logits that the head has written.
    pub(super) fn download_row(&mut self, from: Address) -> Result<Vec<f32>> {
        // By way of pinned memory: into any other the driver copies twice.
        // SAFETY: the callers' address is that of a row of the vocabulary.
        unsafe { self.queue.settled()?.download(self.row.bytes_mut(), from)? };
        Ok(bytemuck::pod_collect_to_vec(self.row.bytes()))
    }

    /// Rows of a table that stays on disk, for these tokens, to the card.
    pub(super) fn fetch_table_rows(&mut self, tokens: &[u32]) -> Result<()> {
        let Table::Disk { checkpoint, words } = &mut self.table else { return Ok(()) };
        let Some(inputs) = &self.layout.weights.per_layer_inputs else { return Ok(()) };
        let stored = &inputs.embed_tokens.stored;
        let tensors = crate::weights::tensors_of(stored);
        let work = &self.layout.work;
        let targets = [work.table_words, work.table_steps];
        let row_bytes = layout::row_bytes(stored);
        // Copies of earlier rows must be done before their memory is used again.
        self.queue.settled()?.wait()?;
        let mut rest = words.bytes_mut();
        for ((tensor, target), bytes) in tensors.iter().zip(targets).zip(row_bytes) {
            let (part, behind) = rest.split_at_mut(tokens.len() * bytes);
            rest = behind;
            for (&token, row) in tokens.iter().zip(part.chunks_exact_mut(bytes)) {
                checkpoint.read_range(tensor, u64::from(token) * bytes as u64, row)?;
            }
            // SAFETY: the plan has rows for a chunk of tokens, and for the tokens that go together.
            unsafe { self.queue.settled()?.upload(target, part)? };
        }
        Ok(())
    }
}
