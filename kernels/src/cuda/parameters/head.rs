//! Parameters of the kernel that takes the head of one token.

use super::token::TILE;
use super::{Input, Kind, Matrix, TokenLaunch};
use crate::cuda::Address;

/// The head of one token; see `token_head.cu`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct TokenHead {
    /// With a delta or a norm.
    pub input: Input,
    /// `[rows, 1536]`.
    pub matrix: Matrix,
    /// `[rows]`.
    pub out: Address,
    /// A u64, as [`super::Step`] has it.
    pub best: Address,
    /// Softcap; 0: none.
    pub cap: f32,
    /// Of sixteen rows.
    pub tiles_per_block: i32,
}

/// Bytes of the kernel's `Memory`, as the source asserts.
const MEMORY: usize = 87_984;

/// Tiles of a block at most: sums of all its rows lie in shared memory.
const MOST_TILES: usize = 80;

impl TokenHead {
    /// The kernel's name.
    pub const KERNEL: &str = "token_head";

    /// Whether the kernel was made for this matrix.
    pub fn takes(matrix: &Matrix) -> bool {
        matrix.kind == Kind::PackedF16 as i32
            && matrix.columns == 1536
            && matrix.rows % TILE as i32 == 0
    }

    /// A head with nothing but its matrix; and how it is launched on a card with this many multiprocessors.
    pub fn new(matrix: Matrix, multiprocessors: usize) -> (Self, TokenLaunch) {
        let tiles = matrix.rows as usize / TILE;
        let of_block = tiles.div_ceil(2 * multiprocessors).clamp(1, MOST_TILES);
        let head = Self {
            input: Input::plain(0),
            matrix,
            out: 0,
            best: 0,
            cap: 0.0,
            tiles_per_block: of_block as i32,
        };
        let shared = MEMORY + of_block * TILE * 4 * 4;
        (head, TokenLaunch { blocks: tiles.div_ceil(of_block), shared })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_kernel() {
        assert_eq!(size_of::<TokenHead>(), 48 + 32 + 2 * 8 + 8);
    }

    #[test]
    fn every_row_has_a_block_and_two_blocks_have_room() {
        let kind = Kind::PackedF16 as i32;
        for rows in [16, 4_000, 262_144, 1_000_000] {
            let matrix = Matrix { rows, columns: 1536, kind, ..Matrix::NONE };
            assert!(TokenHead::takes(&matrix));
            for multiprocessors in [1, 114, 132] {
                let (head, launch) = TokenHead::new(matrix, multiprocessors);
                let tiles = rows as usize / TILE;
                assert_eq!(launch.blocks, tiles.div_ceil(head.tiles_per_block as usize));
                assert!(2 * (launch.shared + 2048) <= 228 << 10);
            }
        }
        let matrix = Matrix { rows: 32, columns: 1024, kind, ..Matrix::NONE };
        assert!(!TokenHead::takes(&matrix));
    }
}
