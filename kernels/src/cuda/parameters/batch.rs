//! Parameters of the kernels that take one token each of several sequences.

use super::token::TILE;
use super::{Matrix, PRODUCT_THREADS, STATIC_SHARED, Span, TokenLaunch, TokenResult, row_shape};
use crate::cuda::Address;

/// Tokens that go through the layers together at most.
pub const BATCH_TOKENS: usize = 16;

/// Tokens whose digits lie side by side: columns of one tensor-core product.
const EIGHT: usize = 8;

/// Bytes of the kernels' `Slot`: words and steps of a task.
const SLOT: usize = 2 * 3 * 8 * 4 * 16 + 2 * 3 * 8 * 4 * 2;

/// Bytes of one slot of every warp.
const RING: usize = PRODUCT_THREADS as usize / 32 * SLOT;

/// Shared memory that leaves room for a second block on a large card.
const HALF: usize = 113 << 10;

/// Columns of the products for this many tokens: 8 or 16.
pub fn batch_columns(tokens: usize) -> usize {
    tokens.next_multiple_of(EIGHT)
}

/// Bytes of the digits of vectors of this length, for as many tokens as there may be.
pub fn batch_digit_bytes(columns: usize) -> usize {
    BATCH_TOKENS / EIGHT * (columns / 32) * (3 * EIGHT * 32 + EIGHT * 8)
}

/// A matrix times the activations of several tokens.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct BatchProduct {
    /// Up to three matrices, rows after rows; with [`TokenResult::Geglu`] gate and up.
    pub part: [Matrix; 3],
    /// Of all tokens.
    pub digits: Address,
    /// `[tokens]`, what products are multiplied by; 0: nothing.
    pub factors: Address,
    /// `[tokens, rows]`.
    pub out: Address,
    /// Digits of `[tokens, rows]`, with [`TokenResult::Geglu`] and [`TokenResult::Gated`].
    pub digits_out: Address,
    /// With [`TokenResult::Gated`].
    pub gate_with: Address,
    /// `[tokens]` of [`super::Step`], with [`TokenResult::Logits`].
    pub steps: Address,
    /// What later kernels read.
    pub ahead: [Span; 2],
    /// Numbers from a token's `gate_with` to the next one's.
    pub gate_stride: u64,
    /// Softcap; 0: none.
    pub cap: f32,
    /// Matrices in `part`.
    pub parts: i32,
    /// Rows of the result.
    pub rows: i32,
    /// Columns of every part.
    pub columns: i32,
    /// Lanes of a row.
    pub lanes: i32,
    /// Slices of a row.
    pub slices: i32,
    /// Tiles of a block.
    pub tiles_per_block: i32,
    /// Tasks of a warp whose weights are under way, 1 to 3.
    pub slots: i32,
    /// Tokens.
    pub tokens: i32,
    /// None.
    pub padding: i32,
}

impl BatchProduct {
    /// A product with nothing but its matrices, for a card with this many multiprocessors, whose blocks
    /// may have this much shared memory. With one slot it may still not fit.
    pub fn new(
        result: TokenResult,
        parts: &[Matrix],
        tokens: usize,
        multiprocessors: usize,
        shared_memory: usize,
    ) -> Self {
        let mut part = [Matrix::NONE; 3];
        part[..parts.len()].copy_from_slice(parts);
        let rows = match result {
            TokenResult::Geglu => part[0].rows,
            _ => parts.iter().map(|part| part.rows).sum(),
        };
        let columns = part[0].columns as usize;
        let (lanes, slices) = row_shape(columns);
        // Sums of a tile's rows lie in shared memory until all tasks are done.
        let sums_of_tile = TILE * (lanes / 4 * slices) as usize * batch_columns(tokens) * 4;
        let most = (32 << 10) / sums_of_tile;
        let is_large = matches!(result, TokenResult::Logits | TokenResult::Geglu);
        let blocks = if is_large { 2 } else { 1 } * multiprocessors;
        let together = result.tiles_together();
        let units = rows as usize / result.rows_of_tile() / together;
        let units_per_block = units.div_ceil(blocks).min(most / together).max(1);
        let sums = units_per_block * together * sums_of_tile;
        let ring = |slots: usize| slots * RING;
        let room = shared_memory.min(HALF);
        let fits = |slots: &usize| sums + ring(*slots) + STATIC_SHARED <= room;
        let slots = (1..=3).rev().find(fits).unwrap_or(1);
        Self {
            part,
            digits: 0,
            factors: 0,
            out: 0,
            digits_out: 0,
            gate_with: 0,
            steps: 0,
            ahead: [Span::default(); 2],
            gate_stride: 0,
            cap: 0.0,
            parts: parts.len() as i32,
            rows,
            columns: columns as i32,
            lanes,
            slices,
            tiles_per_block: (units_per_block * together) as i32,
            slots: slots as i32,
            tokens: tokens as i32,
            padding: 0,
        }
    }

    /// How it is launched.
    pub fn launch(&self, result: TokenResult) -> TokenLaunch {
        let tiles = self.tiles_per_block as usize;
        let tasks_of_tile = (self.lanes / 4 * self.slices) as usize;
        let sums = tiles * TILE * tasks_of_tile * batch_columns(self.tokens as usize) * 4;
        TokenLaunch {
            blocks: (self.rows as usize / result.rows_of_tile()).div_ceil(tiles),
            shared: sums + self.slots as usize * RING,
        }
    }

    /// The kernel for these columns and tokens: one that was compiled for the groups that every lane
    /// has in a slice, or the one that asks.
    pub fn kernel(&self, result: TokenResult) -> String {
        let groups = self.columns / 32;
        let shared_by = self.lanes * self.slices;
        let count = if groups % shared_by == 0 { groups / shared_by } else { 0 };
        let (name, compiled): (_, &[i32]) = match result {
            TokenResult::Normed | TokenResult::Plain => ("store", &[1, 2, 3]),
            TokenResult::Geglu => ("geglu", &[3]),
            TokenResult::Gated => ("gated", &[3]),
            TokenResult::Logits => ("logits", &[3]),
        };
        let count = if compiled.contains(&count) { count } else { 0 };
        format!("batch_{name}_{}_{count}", batch_columns(self.tokens as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::parameters::Step;

    const ALL: [TokenResult; 5] = [
        TokenResult::Normed,
        TokenResult::Plain,
        TokenResult::Geglu,
        TokenResult::Gated,
        TokenResult::Logits,
    ];

    #[test]
    fn sizes_are_those_of_the_kernels() {
        assert_eq!(size_of::<BatchProduct>(), 3 * 32 + 6 * 8 + 2 * 16 + 8 + 10 * 4);
        assert_eq!(size_of::<Step>(), 16);
    }

    #[test]
    fn every_row_has_a_block_and_the_ring_has_room_for_what_follows() {
        for (rows, columns) in [(32, 256), (1536, 12288), (2560, 1536), (262_144, 1536), (96, 384)]
        {
            for multiprocessors in [1, 16, 132] {
                for tokens in [2, 8, 9, 16] {
                    for result in ALL {
                        // Two tiles of so wide a gate would not fit, and none is: a model's width.
                        if result == TokenResult::Geglu && columns > 6144 {
                            continue;
                        }
                        let part = Matrix { rows, columns, ..Matrix::NONE };
                        let parts = [part, part];
                        let count = if result == TokenResult::Geglu { 2 } else { 1 };
                        let parts = &parts[..count];
                        let product =
                            BatchProduct::new(result, parts, tokens, multiprocessors, 99 << 10);
                        let launch = product.launch(result);
                        let what = format!("{result:?} {rows} x {columns}, {tokens} tokens");
                        let tiles = rows as usize / result.rows_of_tile();
                        let of_block = product.tiles_per_block as usize;
                        assert_eq!(of_block % result.tiles_together(), 0, "{what}");
                        assert_eq!(launch.blocks, tiles.div_ceil(of_block), "{what}");
                        assert!(launch.shared + STATIC_SHARED <= 99 << 10, "{what}");
                        // Activated outputs take the place of the ring.
                        let outputs = of_block * result.rows_of_tile();
                        let ring = product.slots as usize * RING;
                        assert!(outputs * batch_columns(tokens) * 4 <= ring, "{what}");
                    }
                }
            }
        }
    }

    #[test]
    fn rows_of_e2b_have_kernels_of_their_own() {
        for (columns, count) in [(256, 1), (1536, 3), (2048, 2), (4096, 2), (6144, 3), (12288, 3)] {
            let part = Matrix { rows: 64, columns, ..Matrix::NONE };
            let product = BatchProduct::new(TokenResult::Plain, &[part], 5, 132, 227 << 10);
            assert_eq!(product.kernel(TokenResult::Plain), format!("batch_store_8_{count}"));
        }
        let part = Matrix { rows: 64, columns: 384, ..Matrix::NONE };
        let product = BatchProduct::new(TokenResult::Gated, &[part], 9, 132, 227 << 10);
        assert_eq!(product.kernel(TokenResult::Gated), "batch_gated_16_0");
    }
}
