//! An answer in the making: which token comes next, and when it is the last.

use crate::constraint::{Allowed, Constraint};
use crate::device::Decoded;
use crate::error::Result;
use crate::generation::FinishReason;
use crate::sampling::{Chooser, Chosen};

/// What the next token needs of the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Needed {
    /// The id of the largest logit, which some devices find without handing over the logits.
    Likeliest,
    /// The logits.
    Logits,
}

/// An answer so far. For each token: [`Answer::prepare`], then [`Answer::choose`] or, of what a device was
/// asked for, [`Answer::decide`], then [`Answer::finished`].
pub(crate) struct Answer {
    chooser: Chooser,
    constraint: Option<Box<dyn Constraint>>,
    /// Whether `mask` holds for the next token.
    masked: bool,
    mask: Vec<u32>,
    stop_ids: Vec<u32>,
    max_tokens: usize,
    tokens: usize,
}

impl Answer {
    pub fn new(
        chooser: Chooser,
        constraint: Option<Box<dyn Constraint>>,
        stop_ids: Vec<u32>,
        max_tokens: usize,
    ) -> Self {
        let (masked, mask, tokens) = (false, Vec::new(), 0);
        Self { chooser, constraint, masked, mask, stop_ids, max_tokens, tokens }
    }

    /// The seed that repeats it; `None` for a greedy one.
    pub fn seed(&self) -> Option<u64> {
        self.chooser.seed()
    }

    /// Whether every token that may be anything is the device's likeliest.
    pub fn takes_likeliest(&self) -> bool {
        self.chooser.takes_likeliest()
    }

    /// Tokens so far.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Tokens there may be.
    pub fn max_tokens(&self) -> usize {
        self.max_tokens
    }

    /// Asks the constraint for the next token.
    pub fn prepare(&mut self) -> Result<Needed> {
        self.masked = false;
        if let Some(constraint) = &mut self.constraint
            && let Allowed::Only(words) = constraint.next()?
        {
            self.masked = true;
            self.mask.clear();
            self.mask.extend_from_slice(words);
        }
        let likeliest = self.chooser.takes_likeliest() && !self.masked;
        Ok(if likeliest { Needed::Likeliest } else { Needed::Logits })
    }

    /// The device's likeliest token.
    fn take(&mut self, id: u32) -> Result<Chosen> {
        let chosen = self.chooser.take(id);
        self.accept(chosen)
    }

    /// Chooses from logits.
    pub fn choose(&mut self, logits: &[f32]) -> Result<Chosen> {
        let allowed = if self.masked { Allowed::Only(&self.mask) } else { Allowed::Anything };
        let chosen = self.chooser.choose(logits, allowed)?;
        self.accept(chosen)
    }

    /// Takes or chooses, by what the device was asked for.
    pub fn decide(&mut self, decoded: Decoded) -> Result<Chosen> {
        match decoded {
            Decoded::Likeliest(id) => self.take(id),
            Decoded::Logits(logits) => self.choose(&logits),
        }
    }

    fn accept(&mut self, chosen: Chosen) -> Result<Chosen> {
        if let Some(constraint) = &mut self.constraint {
            constraint.accept(chosen.id)?;
        }
        self.tokens += 1;
        Ok(chosen)
    }

    /// Why `id` is the last token, if it is.
    pub fn finished(&self, id: u32) -> Option<FinishReason> {
        if self.stop_ids.contains(&id) {
            return Some(FinishReason::Stop);
        }
        (self.tokens >= self.max_tokens).then_some(FinishReason::Length)
    }
}
