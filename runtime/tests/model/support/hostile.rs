//! A drafter that means no good.

use w4pack_runtime::speculation::{Draft, Drafter};

/// Drafts tokens that have nothing to do with the sequence: right now and then by chance alone.
pub struct Hostile {
    state: u32,
    vocabulary: u32,
}

impl Hostile {
    pub fn new(seed: u32, vocabulary: u32) -> Self {
        Self { state: seed, vocabulary }
    }
}

impl Drafter for Hostile {
    fn append(&mut self, tokens: &[u32]) {
        let mix = |state: u32, token: &u32| state.wrapping_mul(31).wrapping_add(*token);
        self.state = tokens.iter().fold(self.state, mix);
    }

    fn draft(&mut self, most: usize) -> Draft {
        let state = self.state.wrapping_mul(2_654_435_761);
        let token = |number: u32| state.wrapping_add(number * 77) % self.vocabulary;
        Draft { tokens: (0..most as u32).map(token).collect(), matched: 9 }
    }
}
