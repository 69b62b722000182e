//! Parameters of the kernels that take a matrix of long rows, its slices in the blocks of a cluster.

use super::token::TILE;
use super::{Kind, Matrix, Span, TokenLaunch, row_shape};
use crate::cuda::Address;

/// A matrix of long rows times the digits of one token; see `token_long.cu`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct TokenLong {
    /// Its rows have two or four slices.
    pub matrix: Matrix,
    /// Of `[columns]`.
    pub digits: Address,
    /// `[rows]`.
    pub out: Address,
    /// What the next kernel reads.
    pub ahead: [Span; 4],
}

impl TokenLong {
    /// The kernel for a matrix and how it is launched, if there is one: whole slices of three groups a lane,
    /// and as many tiles in a cluster as there are slices.
    pub fn launch(matrix: &Matrix) -> Option<(&'static str, TokenLaunch)> {
        let (lanes, slices) = row_shape(matrix.columns as usize);
        let is_whole = lanes == 32 && matrix.columns == 3 * 32 * lanes * slices;
        let is_taken =
            matrix.kind == Kind::PackedF16 as i32 && matrix.rows % (TILE as i32 * slices) == 0;
        let blocks = matrix.rows as usize / TILE;
        // Bytes of the kernels' `Memory`; the source asserts them.
        let (kernel, shared) = match slices {
            2 => ("token_long_two", 66_448),
            4 => ("token_long_four", 122_896),
            _ => return None,
        };
        (is_whole && is_taken).then_some((kernel, TokenLaunch { blocks, shared }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_kernels() {
        assert_eq!(size_of::<TokenLong>(), 32 + 2 * 8 + 4 * 16);
    }

    #[test]
    fn rows_of_two_and_four_slices_have_a_kernel() {
        let kernel = |rows, columns| {
            let kind = Kind::PackedF16 as i32;
            let matrix = Matrix { rows, columns, kind, ..Matrix::NONE };
            TokenLong::launch(&matrix).map(|(kernel, launch)| (kernel, launch.blocks))
        };
        assert_eq!(kernel(1536, 12288), Some(("token_long_four", 96)));
        assert_eq!(kernel(1536, 6144), Some(("token_long_two", 96)));
        assert_eq!(kernel(32, 6144), Some(("token_long_two", 2)));
        assert_eq!(kernel(16, 6144), None, "a cluster has two tiles");
        assert_eq!(kernel(1536, 3072), None);
        assert_eq!(kernel(2560, 10240), None);
    }
}
