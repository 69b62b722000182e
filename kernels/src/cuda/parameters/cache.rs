//! The cache, a decode step, and attention of one token on ordinary cores.

use super::Span;
use crate::cuda::Address;

/// Rows of the cache.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct Rows {
    /// Keys.
    pub keys: Address,
    /// Values.
    pub values: Address,
    /// Steps of q8 keys.
    pub key_steps: Address,
    /// Steps of q8 values.
    pub value_steps: Address,
}

/// The cache of one layer; see `kv.cuh`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct KvLayer {
    /// All positions, or the ring.
    pub stored: Rows,
    /// Those of the running chunk, in sliding layers.
    pub staged: Rows,
    /// Heads.
    pub kv_heads: i32,
    /// Numbers of a head.
    pub head_dim: i32,
    /// Positions that a query sees, itself included; 0: a full layer.
    pub window: i32,
    /// Rows of a sliding layer's ring, at least `window`.
    pub ring: i32,
}

/// Attention of one token.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Attention {
    /// The layer's, or the one's it reads.
    pub cache: KvLayer,
    /// `[heads, head_dim]`, raw.
    pub q: Address,
    /// `[kv_heads, head_dim]`, raw; 0: the layer owns none.
    pub k: Address,
    /// The same.
    pub v: Address,
    /// `[head_dim]`.
    pub q_norm: Address,
    /// `[head_dim]`.
    pub k_norm: Address,
    /// `[pairs]` of cosine and sine.
    pub turns: Address,
    /// `[heads, head_dim]`.
    pub out: Address,
    /// Digits of `[heads * head_dim]` instead; 0: none.
    pub digits_out: Address,
    /// `[heads, max_pieces, head_dim]`.
    pub pieces: Address,
    /// `[heads, max_pieces]` of two f32.
    pub piece_state: Address,
    /// A u32 a head, 0 between launches.
    pub finished: Address,
    /// The [`Step`].
    pub step: Address,
    /// What later kernels read; asked for by blocks without positions.
    pub ahead: [Span; 2],
    /// Of the norms.
    pub epsilon: f32,
    /// That turn.
    pub pairs: i32,
    /// Query heads.
    pub heads: i32,
    /// Pieces there may be.
    pub max_pieces: i32,
    /// Whether the last block joins the pieces.
    pub join_here: i32,
    /// Query heads of a block.
    pub rows: i32,
}

/// What a decode step is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Step {
    /// Of the token.
    pub position: i32,
    /// Its id; -1: the one that the step before chose.
    pub token: i32,
    /// What the head chose; see [`Step::chosen`].
    pub best: u64,
}

impl Step {
    /// The id in `best`.
    pub fn chosen(best: u64) -> u32 {
        !(best as u32)
    }

    /// Whether the logit of that id is NaN: then no comparison ranks.
    pub fn is_nan(best: u64) -> bool {
        best >> 32 == u64::from(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_kernels() {
        assert_eq!(size_of::<KvLayer>(), 80);
        assert_eq!(size_of::<Attention>(), 80 + 12 * 8 + 2 * 16 + 6 * 4);
        assert_eq!(size_of::<Step>(), 16);
    }
}
