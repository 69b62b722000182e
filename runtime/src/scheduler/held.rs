//! What a slot still holds when its answer has ended, and how much of it serves a new prompt.

use crate::device::{Device, Rings, Slot, reaches};
use crate::error::Result;

/// What decides how much is kept and where copies of the rings are taken.
#[derive(Debug, Clone)]
pub(super) struct Rules {
    /// Positions of a ring.
    pub window: usize,
    /// Copies of the rings that a slot keeps.
    pub checkpoints: usize,
    /// Ids that end a turn of a conversation.
    pub turn_ends: Vec<u32>,
    /// Whether tokens of an answer serve as those of a prompt.
    pub answers_serve: bool,
}

impl Rules {
    /// Positions of a prompt, ascending, at which copies of the rings are worth taking on the way to
    /// its end: behind the first turn, which other conversations may share (it says who the model
    /// is and which tools it has), and behind the last ones, where a turn may be said otherwise.
    pub fn stops(&self, prompt: &[u32], from: usize) -> Vec<usize> {
        // One copy is for the end of the prompt and one for the end of the answer.
        let most = self.checkpoints.saturating_sub(2);
        let ends = (1..prompt.len()).filter(|&end| self.turn_ends.contains(&prompt[end - 1]));
        let ends: Vec<usize> = ends.collect();
        let last = ends.len().saturating_sub(most.saturating_sub(1));
        let chosen = |&(number, _): &(usize, usize)| most > 0 && (number == 0 || number >= last);
        let chosen = ends.into_iter().enumerate().filter(chosen).map(|(_, end)| end);
        chosen.filter(|&end| end > from).collect()
    }
}

/// The part of a prompt that a slot can keep, and how it gets back there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reuse {
    /// Tokens kept.
    pub positions: usize,
    /// The copy of the rings to put back; `None`: the rings as they are.
    pub checkpoint: Option<usize>,
}

/// The longest part of `prompt` that is a prefix of `serving` and within reach of one of the copies
/// of the rings, given by position and number.
pub(super) fn longest(
    serving: &[u32],
    copies: impl Iterator<Item = (usize, Option<usize>)>,
    prompt: &[u32],
    window: usize,
) -> Reuse {
    let common = serving.iter().zip(prompt).take_while(|(held, asked)| held == asked).count();
    // The last token is always read, for its logits.
    let common = common.min(prompt.len().saturating_sub(1));
    let mut best = Reuse { positions: 0, checkpoint: None };
    for (positions, checkpoint) in copies {
        let target = common.min(positions);
        if reaches(positions, target, window) && target > best.positions {
            best = Reuse { positions: target, checkpoint };
        }
    }
    best
}

/// The tokens whose keys and values a slot holds, and copies of its rings.
#[derive(Debug, Clone, Default)]
pub(super) struct Held {
    tokens: Vec<u32>,
    /// The first so many of them serve as tokens of a prompt.
    serving: usize,
    /// By position.
    checkpoints: Vec<Rings>,
}

impl Held {
    /// Tokens held.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// The tokens.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// How many of them, from the first, serve as tokens of a prompt.
    pub fn serving(&self) -> usize {
        self.serving
    }

    /// The copies of the rings, by position.
    pub fn checkpoints(&self) -> &[Rings] {
        &self.checkpoints
    }

    /// What a slot holds that was filled from elsewhere.
    pub fn from_parts(tokens: Vec<u32>, serving: usize, checkpoints: Vec<Rings>) -> Self {
        Self { tokens, serving, checkpoints }
    }

    /// Bytes of the copies of rings.
    pub fn checkpoint_bytes(&self) -> usize {
        self.checkpoints.iter().map(|rings| rings.bytes.len()).sum()
    }

    /// As much of `prompt` as can be kept.
    pub fn reuse(&self, prompt: &[u32], rules: &Rules) -> Reuse {
        let own = std::iter::once((self.tokens.len(), None));
        let copies = self.checkpoints.iter().enumerate();
        let copies = copies.map(|(number, rings)| (rings.positions, Some(number)));
        longest(&self.tokens[..self.serving], own.chain(copies), prompt, rules.window)
    }

    /// Cuts the slot to what is reused.
    pub fn cut(
        &mut self,
        device: &mut dyn Device,
        slot: Slot,
        reuse: Reuse,
        rules: &Rules,
    ) -> Result<()> {
        let Reuse { positions, checkpoint } = reuse;
        if positions > 0 && positions == self.tokens.len() && checkpoint.is_none() {
            // The end of an answer: from here on its rings will be written over.
            self.save_rings(device, slot, rules)?;
        }
        let rings = checkpoint.map(|number| &self.checkpoints[number]);
        device.memory().restore(slot, positions, rings)?;
        self.tokens.truncate(positions);
        self.serving = self.serving.min(positions);
        self.checkpoints.retain(|rings| rings.positions <= positions);
        Ok(())
    }

    /// Copies the rings as they are now.
    pub fn save_rings(&mut self, device: &mut dyn Device, slot: Slot, rules: &Rules) -> Result<()> {
        if rules.checkpoints == 0 {
            return Ok(());
        }
        let rings = device.memory().save_rings(slot)?;
        debug_assert_eq!(rings.positions, self.tokens.len());
        if rings.positions <= rules.window {
            // Rings that have not gone round reach every earlier position.
            self.checkpoints.clear();
        }
        self.checkpoints.retain(|earlier| earlier.positions != rings.positions);
        self.checkpoints.push(rings);
        if self.checkpoints.len() > rules.checkpoints {
            // The first one stays, other conversations may share it; the next is the oldest.
            self.checkpoints.remove(usize::from(rules.checkpoints > 1));
        }
        Ok(())
    }

    /// Notes tokens that the slot has taken; `serve`: as tokens of a prompt.
    pub fn append(&mut self, tokens: &[u32], serve: bool) {
        self.tokens.extend_from_slice(tokens);
        if serve {
            self.serving = self.tokens.len();
        }
    }

    /// Forgets everything: nobody knows what the slot holds.
    pub fn forget(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rules(window: usize, checkpoints: usize) -> Rules {
        Rules { window, checkpoints, turn_ends: vec![9], answers_serve: true }
    }

    #[test]
    fn copies_are_taken_behind_the_first_turn_and_the_last_ones() {
        let prompt = [1, 9, 1, 9, 1, 9, 1, 9, 1, 1];
        assert_eq!(rules(4, 4).stops(&prompt, 0), [2, 8]);
        assert_eq!(rules(4, 5).stops(&prompt, 0), [2, 6, 8]);
        assert_eq!(rules(4, 3).stops(&prompt, 0), [2]);
        assert_eq!(rules(4, 4).stops(&prompt, 2), [8], "the first is behind us");
        assert_eq!(rules(4, 4).stops(&prompt[..2], 0), [0; 0], "the end has a copy of its own");
        assert_eq!(rules(4, 2).stops(&prompt, 0), [0; 0]);
        assert_eq!(rules(4, 20).stops(&prompt, 0), [2, 4, 6, 8]);
    }

    proptest! {
        /// Whatever a slot holds, what it offers is a prefix of both that its rings reach, and no
        /// longer one is.
        #[test]
        fn the_longest_prefix_within_reach_is_offered(
            tokens in prop::collection::vec(0u32..2, 0..30),
            prompt in prop::collection::vec(0u32..2, 1..30),
            window in 2usize..9,
            at in prop::collection::btree_set(0usize..30, 0..4),
            serving in 0usize..30,
        ) {
            let positions = at.into_iter().filter(|&position| position <= tokens.len());
            let rings = |positions| Rings { positions, bytes: Vec::new() };
            let checkpoints: Vec<Rings> = positions.map(rings).collect();
            let serving = serving.min(tokens.len());
            let held = Held { tokens: tokens.clone(), serving, checkpoints };
            let found = held.reuse(&prompt, &rules(window, 4));
            let possible = |target: usize| {
                target < prompt.len()
                    && target <= serving
                    && tokens[..target] == prompt[..target]
                    && (reaches(tokens.len(), target, window)
                        || held.checkpoints.iter().any(|c| reaches(c.positions, target, window)))
            };
            let longest = (0..=tokens.len()).rev().find(|&target| possible(target));
            prop_assert_eq!(found.positions, longest.unwrap_or(0));
            if let Some(number) = found.checkpoint {
                let positions = held.checkpoints[number].positions;
                prop_assert!(reaches(positions, found.positions, window));
            } else {
                prop_assert!(reaches(tokens.len(), found.positions, window));
            }
        }
    }
}
