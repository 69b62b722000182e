//! Parameters of the kernels that take one token on tensor cores.

use super::{Input, Kind, KvLayer, Matrix, row_shape};
use crate::cuda::Address;

/// Bytes that a later kernel of the chain reads; see `ahead.cuh`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Span {
    /// A multiple of 16.
    pub address: Address,
    /// A multiple of 16.
    pub bytes: u64,
}

/// Threads of a block of the `token_*` products.
pub const PRODUCT_THREADS: u32 = 256;

/// Threads of a block of the `token_attention_*` kernels and of `token_join`.
pub const ATTENTION_THREADS: u32 = 128;

/// Query heads that share keys and values in the `token_attention_*` kernels.
pub const ATTENTION_HEADS: usize = 8;

/// Pieces of a sliding layer, which are one cluster where there are clusters.
pub const SLIDING_PIECES: usize = 8;

/// Pieces that `token_join` has room for.
pub const MOST_PIECES: usize = 512;

/// Rows of one tensor-core product.
pub(super) const TILE: usize = 16;

/// Bytes of the kernels' `Slot`: words and steps of a task.
const SLOT: usize = 2 * 3 * 32 * 16 + 2 * 3 * 32 * 2;

/// More than the kernels' static shared memory.
pub const STATIC_SHARED: usize = 2048;

/// What becomes of a product of one token; each a kernel of `token_product.cu`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenResult {
    /// Behind a norm, stored.
    Normed,
    /// Of a producer's digits, stored.
    Plain,
    /// Digits of `gelu(gate) * up`.
    Geglu,
    /// Digits of `gelu(y) * gate_with`.
    Gated,
    /// Softcap and argmax.
    Logits,
}

impl TokenResult {
    /// The kernel that takes any shape.
    fn name(self) -> &'static str {
        match self {
            TokenResult::Normed => "token_normed",
            TokenResult::Plain => "token_plain",
            TokenResult::Geglu => "token_geglu",
            TokenResult::Gated => "token_gated",
            TokenResult::Logits => "token_logits",
        }
    }

    /// The kernel for rows of this length: one that was compiled for it, or the one for any.
    pub fn kernel(self, columns: usize) -> &'static str {
        let (lanes, slices) = row_shape(columns);
        let of_slice = (lanes * slices) as usize * 32;
        match self {
            TokenResult::Normed if columns == 1536 => "token_normed_1536",
            TokenResult::Geglu if columns == 1536 => "token_geglu_1536",
            TokenResult::Gated if columns == 1536 => "token_gated_1536",
            TokenResult::Logits if columns == 1536 => "token_logits_1536",
            TokenResult::Plain if columns == 1536 => "token_plain_1536",
            TokenResult::Plain if columns == 256 => "token_plain_256",
            TokenResult::Plain if lanes == 32 && columns == 2 * of_slice => "token_plain_two",
            TokenResult::Plain if lanes == 32 && columns == 3 * of_slice => "token_plain_three",
            _ => self.name(),
        }
    }

    /// Rows of a matrix in a tile: gate and up share one.
    pub(super) fn rows_of_tile(self) -> usize {
        if self == TokenResult::Geglu { TILE / 2 } else { TILE }
    }

    /// Tiles that must lie in one block, so that it has whole groups of 32 outputs.
    pub(super) fn tiles_together(self) -> usize {
        match self {
            TokenResult::Geglu => 32 / (TILE / 2),
            TokenResult::Gated => 32 / TILE,
            _ => 1,
        }
    }

    /// Whether there is a kernel for these matrices.
    pub fn takes(self, parts: &[Matrix]) -> bool {
        let rows = match self {
            TokenResult::Geglu | TokenResult::Gated => 32,
            _ => TILE as i32,
        };
        let takes = |part: &Matrix| {
            part.kind == Kind::PackedF16 as i32 && part.rows % rows == 0 && part.columns % 128 == 0
        };
        parts.iter().all(takes)
    }
}

/// A matrix times the activations of one token.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct TokenProduct {
    /// Up to three matrices, rows after rows; with [`TokenResult::Geglu`] gate and up.
    pub part: [Matrix; 3],
    /// Of all kernels but `token_plain`; with a delta or a norm.
    pub input: Input,
    /// Of `token_plain`.
    pub digits: Address,
    /// `[rows]`.
    pub out: Address,
    /// Digits of `[rows]`, with [`TokenResult::Geglu`] and [`TokenResult::Gated`].
    pub digits_out: Address,
    /// `[rows]`, with [`TokenResult::Gated`].
    pub gate_with: Address,
    /// A u64, with [`TokenResult::Logits`].
    pub best: Address,
    /// What later kernels read.
    pub ahead: [Span; 2],
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
}

/// How a product of one token is launched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenLaunch {
    /// Blocks.
    pub blocks: usize,
    /// Bytes of dynamic shared memory.
    pub shared: usize,
}

impl TokenProduct {
    /// A product with nothing but its matrices; and how it is launched on a card with this many
    /// multiprocessors, whose blocks may have this much shared memory. With one slot it may still
    /// not fit.
    pub fn new(
        result: TokenResult,
        parts: &[Matrix],
        multiprocessors: usize,
        shared_memory: usize,
    ) -> (Self, TokenLaunch) {
        let mut part = [Matrix::NONE; 3];
        part[..parts.len()].copy_from_slice(parts);
        let rows = match result {
            TokenResult::Geglu => part[0].rows,
            _ => parts.iter().map(|part| part.rows).sum(),
        };
        let columns = part[0].columns as usize;
        let (lanes, slices) = row_shape(columns);
        let tasks_of_tile = (lanes / 4 * slices) as usize;
        // Sums of a block's rows lie in shared memory until all are there.
        let most = (32 << 10) / (TILE * 4 * tasks_of_tile);
        // One block a multiprocessor, so that the next kernel's blocks find room beside them; two
        // where there is much to read, or digits to be made first.
        let blocks = if result == TokenResult::Plain { 1 } else { 2 } * multiprocessors;
        let together = result.tiles_together();
        let units = rows as usize / result.rows_of_tile() / together;
        let units_per_block = units.div_ceil(blocks).min(most / together).max(1);
        let sums = units_per_block * together * TILE * tasks_of_tile * 4;
        let fixed = super::digit_bytes(columns).next_multiple_of(16) + sums;
        let ring = |slots: usize| slots * PRODUCT_THREADS as usize / 32 * SLOT;
        let fits = |slots: &usize| fixed + ring(*slots) + STATIC_SHARED <= shared_memory;
        // No more than a warp has tasks; of the largest product two, so that the next one finds room.
        let tasks = units_per_block * together * tasks_of_tile;
        let most_slots = if result == TokenResult::Geglu { 2 } else { 3 };
        let most_slots = most_slots.min(tasks.div_ceil(PRODUCT_THREADS as usize / 32));
        let slots = (1..=most_slots).rev().find(fits).unwrap_or(1);
        let product = Self {
            part,
            input: Input::plain(0),
            digits: 0,
            out: 0,
            digits_out: 0,
            gate_with: 0,
            best: 0,
            ahead: [Span::default(); 2],
            cap: 0.0,
            parts: parts.len() as i32,
            rows,
            columns: columns as i32,
            lanes,
            slices,
            tiles_per_block: (units_per_block * together) as i32,
            slots: slots as i32,
        };
        let blocks = units.div_ceil(units_per_block);
        (product, TokenLaunch { blocks, shared: fixed + ring(slots) })
    }
}

/// Attention of one token for eight query heads a key head, f16 keys and values.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct TokenAttention {
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
    /// Digits of `[heads * head_dim]`.
    pub digits_out: Address,
    /// `[heads, max_pieces, head_dim]`.
    pub pieces: Address,
    /// `[heads, max_pieces]` of two f32.
    pub piece_state: Address,
    /// The [`super::Step`].
    pub step: Address,
    /// What later kernels read.
    pub ahead: [Span; 2],
    /// Of the norms.
    pub epsilon: f32,
    /// That turn.
    pub pairs: i32,
    /// Query heads.
    pub heads: i32,
    /// Pieces there may be.
    pub max_pieces: i32,
    /// Of several tokens: an i32 each, the slot; 0: one token, of the slot that `cache` is.
    pub slots: Address,
    /// From a slot's rows to the next one's.
    pub slot_bytes: u64,
    /// Numbers from a token's q, k and v to the next one's.
    pub qkv_stride: i32,
    /// Pairs from a token's turns to the next one's.
    pub turns_stride: i32,
    /// Whether the tokens are of one sequence, at neighbouring positions from the first one's on.
    pub is_draft: i32,
    /// None.
    pub padding: i32,
}

/// Keys and values of tokens that one sequence tries; see `token_keys.cu`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct TokenKeys {
    /// The layer's.
    pub cache: KvLayer,
    /// `[kv_heads, head_dim]`, raw, of the first token.
    pub k: Address,
    /// The same.
    pub v: Address,
    /// `[head_dim]`.
    pub k_norm: Address,
    /// `[pairs]` of cosine and sine, of the first token.
    pub turns: Address,
    /// The [`super::Step`] of each token.
    pub step: Address,
    /// An i32 each, the slot.
    pub slots: Address,
    /// From a slot's rows to the next one's.
    pub slot_bytes: u64,
    /// Of the norms.
    pub epsilon: f32,
    /// That turn.
    pub pairs: i32,
    /// Numbers from a token's q, k and v to the next one's.
    pub qkv_stride: i32,
    /// Pairs from a token's turns to the next one's.
    pub turns_stride: i32,
}

/// Threads of a block of the `token_keys_*` kernels.
pub const KEYS_THREADS: u32 = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_kernels() {
        assert_eq!(size_of::<Span>(), 16);
        assert_eq!(size_of::<TokenProduct>(), 3 * 32 + 48 + 5 * 8 + 2 * 16 + 8 * 4);
        assert_eq!(size_of::<TokenAttention>(), 80 + 10 * 8 + 2 * 16 + 4 * 4 + 2 * 8 + 4 * 4);
        assert_eq!(size_of::<TokenKeys>(), 80 + 7 * 8 + 4 * 4);
    }

    #[test]
    fn every_row_has_a_block_and_no_block_is_empty() {
        let all = [
            TokenResult::Normed,
            TokenResult::Plain,
            TokenResult::Geglu,
            TokenResult::Gated,
            TokenResult::Logits,
        ];
        for result in all {
            for (rows, columns) in [(32, 256), (1536, 12288), (2560, 1536), (262_144, 1536)] {
                for multiprocessors in [1, 16, 132] {
                    let part = Matrix { rows, columns, ..Matrix::NONE };
                    let parts = [part, part];
                    let count = if result == TokenResult::Geglu { 2 } else { 1 };
                    let (product, launch) =
                        TokenProduct::new(result, &parts[..count], multiprocessors, 227 << 10);
                    let tiles = rows as usize / result.rows_of_tile();
                    let of_block = product.tiles_per_block as usize;
                    assert_eq!(of_block % result.tiles_together(), 0);
                    let tasks = of_block * (product.lanes / 4 * product.slices) as usize;
                    let most = if result == TokenResult::Geglu { 2 } else { 3 };
                    let slots = tasks.div_ceil(8).min(most) as i32;
                    assert_eq!(product.slots, slots, "{result:?} {rows} x {columns}");
                    assert_eq!(launch.blocks, tiles.div_ceil(of_block), "{result:?} {rows}");
                }
            }
        }
    }
}
