//! Parameters of the kernel that takes the per-layer block of one token in one cluster.

use super::{Input, Kind, Matrix, TokenLaunch};
use crate::cuda::Address;

/// The per-layer block of one token; see `token_block.cu`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct TokenBlock {
    /// With a delta, without a norm.
    pub input: Input,
    /// `[width, hidden]`.
    pub gate: Matrix,
    /// `[hidden, width]`.
    pub projection: Matrix,
    /// `[width]`.
    pub gate_with: Address,
    /// `[hidden]`.
    pub out: Address,
}

impl TokenBlock {
    /// The kernel's name.
    pub const KERNEL: &str = "token_block";

    /// The cluster, which is the whole launch; the shared memory is the kernel's `Memory`, as the source asserts.
    pub const LAUNCH: TokenLaunch = TokenLaunch { blocks: 16, shared: 35_408 };

    /// Whether the kernel was made for these matrices.
    pub fn takes(gate: &Matrix, projection: &Matrix) -> bool {
        let is = |matrix: &Matrix, rows, columns| {
            matrix.kind == Kind::PackedF16 as i32
                && (matrix.rows, matrix.columns) == (rows, columns)
        };
        is(gate, 256, 1536) && is(projection, 1536, 256)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_kernel() {
        assert_eq!(size_of::<TokenBlock>(), 48 + 2 * 32 + 2 * 8);
    }
}
