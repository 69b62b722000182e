//! Tokens that are tried: a pass whose staged rows are stored as far as they are kept.

use super::CpuDevice;
use crate::cache::Cache;
use crate::device::{Decoded, MOST_TRIED, Slot, Trial, Wanted, check_tried};
use crate::error::{Result, RuntimeError};
use crate::forward::{NoObserver, Piece, forward_tried};
use crate::number::Kept;
use crate::sampling::greedy;
use std::panic::{AssertUnwindSafe, catch_unwind};
use w4pack_kernels::cpu::CacheNumber;

/// A pass over tokens that are tried, done.
struct TriedTokens<'d, S> {
    cache: &'d mut Cache<S>,
    tokens: usize,
    /// `[tokens, vocabulary]`.
    logits: Vec<f32>,
}

impl<S: Kept<f32> + CacheNumber> CpuDevice<S> {
    /// See [`crate::device::Device::try_tokens`].
    pub(super) fn try_together(
        &mut self,
        slot: Slot,
        tokens: &[u32],
    ) -> Result<Box<dyn Trial + '_>> {
        check_tried(tokens, MOST_TRIED)?;
        let Self { model, arithmetic, slots, .. } = self;
        let cache = slots.get_mut(slot.0).and_then(Option::as_mut);
        let cache = cache.ok_or(RuntimeError::NoSlot { slot: slot.0 })?;
        let mut piece = [Piece { cache: &mut *cache, tokens, wanted: Wanted::All }];
        // As for every pass: a fault ends the answer and leaves staged rows, which the next one drops.
        let pass = || forward_tried(model, arithmetic, &mut piece, &mut NoObserver);
        let logits = catch_unwind(AssertUnwindSafe(pass)).unwrap_or(Err(RuntimeError::Panic));
        let logits = logits?.swap_remove(0);
        Ok(Box::new(TriedTokens { cache, tokens: tokens.len(), logits }))
    }
}

impl<S: Kept<f32>> Trial for TriedTokens<'_, S> {
    fn leads_to(&mut self, number: usize, logits: bool) -> Result<Decoded> {
        let vocabulary = self.logits.len() / self.tokens;
        let row = &self.logits[number * vocabulary..][..vocabulary];
        match logits {
            true => Ok(Decoded::Logits(row.to_vec())),
            false => greedy(row).map(Decoded::Likeliest),
        }
    }

    fn keep(self: Box<Self>, count: usize) {
        self.cache.commit(count.min(self.tokens));
    }
}
