//! Parameters of the kernels that take a chunk of a prompt.

use super::{KvLayer, Matrix};
use crate::cuda::Address;

/// Activations of a chunk; see `activations.cuh`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Activations {
    /// Numbers, or two planes of halves.
    pub values: Address,
    /// `[tokens]`.
    pub scales: Address,
    /// Halves of a plane.
    pub plane: u64,
    /// 0: f32, 1: two f16.
    pub format: i32,
    /// None.
    pub padding: i32,
}

/// Norms and residual additions of a chunk.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct NormRows {
    /// `[tokens, columns]`, in and out.
    pub stream: Address,
    /// 0: nothing is added.
    pub delta: Address,
    /// `[columns]`.
    pub delta_norm: Address,
    /// 0: no norm.
    pub norm: Address,
    /// The result.
    pub out: Activations,
    /// Multiplies the stream after the addition.
    pub scalar: f32,
    /// Of the norms.
    pub epsilon: f32,
    /// Width.
    pub columns: i32,
    /// None.
    pub padding: i32,
}

/// Gates of a chunk.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct MapRows {
    /// `[tokens, in_stride]`.
    pub input: Address,
    /// 0: the input as it is; else `gelu(input) * with`.
    pub with: Address,
    /// The result.
    pub out: Activations,
    /// Numbers.
    pub in_stride: u64,
    /// Numbers.
    pub with_stride: u64,
    /// Width.
    pub columns: i32,
    /// None.
    pub padding: i32,
}

/// A matrix product of a chunk.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Gemm {
    /// The weight.
    pub weight: Matrix,
    /// `[tokens, columns]`.
    pub x: Activations,
    /// `[tokens, out_stride]`.
    pub out: Address,
    /// Numbers.
    pub out_stride: u64,
    /// Tokens.
    pub tokens: i32,
    /// None.
    pub padding: i32,
}

/// Norms, rotations and storing of a chunk's q, k and v.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct RopeRows {
    /// The layer's own, or the one's it reads.
    pub cache: KvLayer,
    /// `[tokens, stride]`, in place.
    pub q: Address,
    /// 0: the layer owns none.
    pub k: Address,
    /// The same.
    pub v: Address,
    /// `[head_dim]`.
    pub q_norm: Address,
    /// `[head_dim]`.
    pub k_norm: Address,
    /// `[tokens, turns_stride]` of cosine and sine.
    pub turns: Address,
    /// Numbers.
    pub stride: u64,
    /// Pairs.
    pub turns_stride: i32,
    /// That turn.
    pub pairs: i32,
    /// Position of the first token.
    pub first: i32,
    /// Query heads.
    pub heads: i32,
    /// Of the norms.
    pub epsilon: f32,
    /// None.
    pub padding: i32,
}

/// Attention of a chunk.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Attend {
    /// The layer's own, or the one's it reads.
    pub cache: KvLayer,
    /// `[tokens, stride]`.
    pub q: Address,
    /// `[tokens, heads, head_dim]`.
    pub out: Address,
    /// Numbers.
    pub stride: u64,
    /// Position of the first token.
    pub first: i32,
    /// Position of the first staged row.
    pub staged_first: i32,
    /// Tokens.
    pub tokens: i32,
    /// Query heads.
    pub heads: i32,
}

/// Moves staged rows into the ring.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Commit {
    /// Of a sliding layer that owns keys.
    pub cache: KvLayer,
    /// Position of the first staged row.
    pub first: i32,
    /// Rows.
    pub tokens: i32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_kernels() {
        assert_eq!(size_of::<Activations>(), 32);
        assert_eq!(size_of::<NormRows>(), 4 * 8 + 32 + 16);
        assert_eq!(size_of::<MapRows>(), 2 * 8 + 32 + 2 * 8 + 8);
        assert_eq!(size_of::<Gemm>(), 32 + 32 + 16 + 8);
        assert_eq!(size_of::<RopeRows>(), 80 + 7 * 8 + 6 * 4);
        assert_eq!(size_of::<Attend>(), 80 + 24 + 16);
        assert_eq!(size_of::<Commit>(), 88);
    }
}
