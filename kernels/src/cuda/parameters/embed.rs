//! From token ids to the residual stream.

use super::Matrix;
use crate::cuda::Address;

/// The embeddings of a chunk's tokens, or of the tokens of decode steps; see `embed.cu`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Embed {
    /// `[vocabulary, columns]`.
    pub table: Matrix,
    /// Ids of a chunk's tokens, i32; 0: the tokens are those of `step`.
    pub ids: Address,
    /// The [`super::Step`] of each token.
    pub step: Address,
    /// Of one token that may go on by itself: the [`super::Step`] before this one and behind it; 0: it may not.
    pub other: Address,
    /// A word of the host's: what the step before has chosen, if this one goes on with it.
    pub told: Address,
    /// `[tokens]` of i32, the ids of steps.
    pub ids_out: Address,
    /// `[pairs]`, radians a position.
    pub frequencies: Address,
    /// `[tokens, columns]`.
    pub x: Address,
    /// Digits of one token's `x`; 0: they are not wanted.
    pub digits_out: Address,
    /// `[tokens, pairs]` of cosine and sine.
    pub turns: Address,
    /// What rows are multiplied by.
    pub factor: f32,
    /// Position of a chunk's first token.
    pub first: i32,
    /// Of all kinds of layers.
    pub pairs: i32,
    /// None.
    pub padding: i32,
}

/// Threads of a block of `embed` and `per_layer_inputs`.
pub const EMBED_THREADS: u32 = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_kernels() {
        assert_eq!(size_of::<Embed>(), 32 + 9 * 8 + 4 * 4);
    }
}
