//! Parameters of the kernel that takes several products of one token, one after another, in one launch.

use super::{Matrix, PRODUCT_THREADS, TokenLaunch, TokenProduct, TokenResult, digit_bytes};
use crate::cuda::Address;

/// Products in a launch at most.
pub const MOST_CHAINED: usize = 6;

/// Warps of a block.
const WARPS: usize = PRODUCT_THREADS as usize / 32;

/// Blocks of the kernel that a multiprocessor holds at once.
const BLOCKS_TOGETHER: usize = 2;

/// What a product of the chain is made for; see `token_chain.cu`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
enum ChainKind {
    Store1536 = 0,
    Geglu1536 = 1,
    Gated1536 = 2,
    Logits1536 = 3,
    Plain256 = 4,
    PlainTwo = 5,
    PlainThree = 6,
}

impl ChainKind {
    fn of(result: TokenResult, columns: usize) -> Option<Self> {
        match result.kernel(columns) {
            "token_normed_1536" => Some(ChainKind::Store1536),
            "token_geglu_1536" => Some(ChainKind::Geglu1536),
            "token_gated_1536" => Some(ChainKind::Gated1536),
            "token_logits_1536" => Some(ChainKind::Logits1536),
            "token_plain_256" => Some(ChainKind::Plain256),
            "token_plain_two" => Some(ChainKind::PlainTwo),
            "token_plain_three" => Some(ChainKind::PlainThree),
            _ => None,
        }
    }
}

/// A product of a chain, and how many blocks take it.
#[derive(Debug, Clone, Copy)]
pub struct ChainProduct {
    /// The product itself; `slots` and `ahead` are not read.
    pub product: TokenProduct,
    kind: ChainKind,
    /// Of rows that a block takes.
    pairs: usize,
    launch: TokenLaunch,
}

impl ChainProduct {
    /// A product with nothing but its matrices, if the kernel takes it, on a card with this many
    /// multiprocessors.
    pub fn new(result: TokenResult, parts: &[Matrix], multiprocessors: usize) -> Option<Self> {
        let columns = parts[0].columns as usize;
        let kind = ChainKind::of(result, columns).filter(|_| result.takes(parts))?;
        let (product, _) = TokenProduct::new(result, parts, multiprocessors, 0);
        let (lanes, slices) = (product.lanes as usize, product.slices as usize);
        let (pairs, outputs) = match result {
            TokenResult::Geglu => (product.rows as usize, 1),
            _ => (product.rows as usize / 2, 2),
        };
        // Whole groups of outputs, or a task for every warp where a row is short; a pair at least.
        let together = match result {
            TokenResult::Geglu | TokenResult::Gated => 32 / outputs,
            _ if lanes == 32 => 1,
            _ => WARPS * 32 / lanes,
        };
        // Of what the digits are fetched for, fewer blocks fetch less.
        let blocks = match result {
            TokenResult::Plain => multiprocessors,
            _ => BLOCKS_TOGETHER * multiprocessors,
        };
        let of_pair = (2 * slices + 1) * 4;
        // What is activated takes the place of the digits.
        let most = ((32 << 10) / of_pair).min(digit_bytes(columns) / 4 / outputs);
        let most = (most / together).max(1);
        let units_per_block = pairs.div_ceil(together).div_ceil(blocks).clamp(1, most);
        let pairs_of_block = units_per_block * together;
        let launch = TokenLaunch {
            blocks: pairs.div_ceil(pairs_of_block),
            shared: digit_bytes(columns) + (pairs_of_block * of_pair).next_multiple_of(16),
        };
        Some(Self { product, kind, pairs: pairs_of_block, launch })
    }

    /// How it is launched alone.
    pub fn launch(&self) -> TokenLaunch {
        self.launch
    }
}

/// Products of which each takes what the one before gives.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct TokenChain {
    product: [TokenProduct; MOST_CHAINED],
    kind: [i32; MOST_CHAINED],
    blocks: [i32; MOST_CHAINED],
    pairs: [i32; MOST_CHAINED],
    done: Address,
    count: i32,
    prefetch: i32,
}

impl TokenChain {
    /// The kernel's name.
    pub const KERNEL: &str = "token_chain";

    /// Up to [`MOST_CHAINED`] products and their launch. `done` is the address of as many u32, 0 between
    /// launches. With `prefetch` blocks ask for all their weights before they wait, which a small
    /// second-level cache has no room for.
    ///
    /// # Panics
    /// Without a product, or with too many.
    pub fn new(products: &[ChainProduct], done: Address, prefetch: bool) -> (Self, TokenLaunch) {
        let last = products.last().expect("a chain has a product");
        let mut chain = Self {
            product: [last.product; MOST_CHAINED],
            kind: [0; MOST_CHAINED],
            blocks: [0; MOST_CHAINED],
            pairs: [0; MOST_CHAINED],
            done,
            count: products.len() as i32,
            prefetch: i32::from(prefetch),
        };
        for (i, product) in products.iter().enumerate() {
            chain.product[i] = product.product;
            chain.kind[i] = product.kind as i32;
            chain.blocks[i] = product.launch.blocks as i32;
            chain.pairs[i] = product.pairs as i32;
        }
        let launches = || products.iter().map(|product| product.launch);
        let blocks = launches().map(|launch| launch.blocks).sum();
        let shared = launches().map(|launch| launch.shared).max().unwrap_or(0);
        (chain, TokenLaunch { blocks, shared })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::parameters::Kind;

    #[test]
    fn sizes_are_those_of_the_kernel() {
        assert_eq!(size_of::<TokenChain>(), MOST_CHAINED * (size_of::<TokenProduct>() + 12) + 16);
        assert!(size_of::<TokenChain>() <= 4096, "a kernel's parameters");
    }

    /// What attention, MLP and gate give comes in whole groups, and lies in the place of the digits.
    #[test]
    fn every_row_has_a_block_with_room_for_its_sums() {
        let shapes = [
            (TokenResult::Normed, 2560, 1536),
            (TokenResult::Geglu, 12_288, 1536),
            (TokenResult::Geglu, 32, 1536),
            (TokenResult::Gated, 256, 1536),
            (TokenResult::Logits, 262_144, 1536),
            (TokenResult::Plain, 1536, 256),
            (TokenResult::Plain, 1536, 2048),
            (TokenResult::Plain, 1536, 4096),
            (TokenResult::Plain, 1536, 12_288),
            (TokenResult::Plain, 16, 9216),
        ];
        for (result, rows, columns) in shapes {
            for multiprocessors in [1, 14, 132] {
                let kind = Kind::PackedF16 as i32;
                let part = Matrix { rows, columns, kind, ..Matrix::NONE };
                let count = if result == TokenResult::Geglu { 2 } else { 1 };
                let parts = [part; 2];
                let product = ChainProduct::new(result, &parts[..count], multiprocessors);
                let ChainProduct { pairs, launch, .. } = product.expect("it is taken");
                let what = format!("{result:?} {rows} x {columns} on {multiprocessors}");
                let outputs = if result == TokenResult::Geglu { 1 } else { 2 };
                assert_eq!(launch.blocks, (rows as usize / outputs).div_ceil(pairs), "{what}");
                assert!(launch.shared <= 96 << 10, "{what}: {}", launch.shared);
                if result.tiles_together() > 1 {
                    assert_eq!(pairs * outputs % 32, 0, "{what}");
                    assert!(4 * pairs * outputs <= digit_bytes(columns as usize), "{what}");
                }
            }
        }
    }

    #[test]
    fn other_shapes_are_not_taken() {
        let kind = Kind::PackedF16 as i32;
        let part = Matrix { rows: 32, columns: 2560, kind, ..Matrix::NONE };
        assert!(ChainProduct::new(TokenResult::Normed, &[part], 132).is_none());
        let bf16 = Matrix { columns: 1536, kind: Kind::PackedBf16 as i32, ..part };
        assert!(ChainProduct::new(TokenResult::Normed, &[bf16], 132).is_none());
    }
}
