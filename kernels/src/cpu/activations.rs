//! Activations as the packed kernels take them: integers, with a step for each group of 32.

use super::matrix::Matrix;
use super::numbers::{LANES, ROUND};
use w4pack_format::group::{GROUP, NIBBLE_OFFSET};

/// Groups in a block: as many as there are lanes.
pub(super) const BLOCK_GROUPS: usize = LANES;

/// How many bits of an activation are multiplied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Precision {
    /// Integers up to 32,512 of a step a group: an activation is off by at most 2^-16 of the largest
    /// of its group.
    #[default]
    Bits16,
    /// Integers up to 127: off by at most 1/254 of the largest. Half the multiplications.
    Bits8,
}

/// The integers of four groups, whose words are 64 bytes: high bytes of the even elements, of the odd
/// ones, low bytes of the even, of the odd.
pub(super) type Parts = [[[i8; GROUP / 2]; 4]; 4];

/// The places in [`Parts`].
pub(super) const EVEN_HIGH: usize = 0;
pub(super) const ODD_HIGH: usize = 1;
pub(super) const EVEN_LOW: usize = 2;
pub(super) const ODD_LOW: usize = 3;

/// Sixteen groups of one token.
///
/// The integer of an element is `256·high + low` in 16 bits, and `high` alone in 8 bits, as signed
/// bytes. Words hold element `2k` of a group in the low and `2k + 1` in the high nibble of byte
/// `k`; unpacking them gives the even elements and the odd ones apart, and so they lie here.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Block {
    /// By four groups.
    pub bytes: [Parts; BLOCK_GROUPS / 4],
    /// A nibble is its code + 8: what a sum of nibble·integer has to begin with.
    pub starts: [i32; BLOCK_GROUPS],
    /// What one of the integers stands for. NaN for a group with a number that is not finite.
    pub steps: [f32; BLOCK_GROUPS],
}

/// A block of absent groups: they add 0 to every sum.
const ABSENT: Block = Block {
    bytes: [[[[0; GROUP / 2]; 4]; 4]; BLOCK_GROUPS / 4],
    starts: [0; BLOCK_GROUPS],
    steps: [0.0; BLOCK_GROUPS],
};

/// The activations of some tokens, prepared for one matrix by [`Kernels::prepare`].
///
/// [`Kernels::prepare`]: super::Kernels::prepare
#[derive(Debug)]
pub struct Activations<'a> {
    /// `[tokens, columns]`.
    pub(super) values: &'a [f32],
    pub(super) columns: usize,
    pub(super) precision: Precision,
    pub(super) integers: Integers,
}

/// The integers of activations.
#[derive(Debug)]
pub(super) enum Integers {
    /// None: the matrix is multiplied by values and not by codes.
    None,
    /// `[tokens, blocks]`.
    Blocks(Vec<Block>),
    /// For the matrix unit.
    #[cfg(target_arch = "x86_64")]
    Tiles(super::amx::TokenTiles),
}

/// Some tokens' activations, and where their integers go.
#[derive(Debug)]
pub struct Part<'p> {
    /// `[tokens, columns]`.
    pub(super) values: &'p [f32],
    pub(super) columns: usize,
    pub(super) precision: Precision,
    pub(super) place: Place<'p>,
}

/// The place of a [`Part`]'s integers.
#[derive(Debug)]
pub(super) enum Place<'p> {
    Blocks(&'p mut [Block]),
    #[cfg(target_arch = "x86_64")]
    Tile(super::amx::TokenTile<'p>),
}

/// Tokens of a [`Part`].
const PART: usize = 16;

impl<'a> Activations<'a> {
    /// Room for the activations `values` (`[tokens, columns]`), whose parts are to be filled; in
    /// `tiles` for the matrix unit.
    pub(super) fn new(
        matrix: &Matrix<'_>,
        values: &'a [f32],
        precision: Precision,
        tiles: impl Fn(usize) -> bool,
    ) -> Self {
        let columns = matrix.columns();
        assert!(columns > 0 && !values.is_empty(), "empty operand");
        assert!(values.len().is_multiple_of(columns), "activations");
        let tokens = values.len() / columns;
        let integers = match (matrix.is_read_by_codes(), tiles(tokens)) {
            (false, _) => Integers::None,
            #[cfg(target_arch = "x86_64")]
            (true, true) => Integers::Tiles(super::amx::TokenTiles::new(tokens, columns / GROUP)),
            (true, _) => Integers::Blocks(vec![ABSENT; tokens * blocks_of(columns)]),
        };
        Self { values, columns, precision, integers }
    }

    /// Number of tokens.
    pub fn tokens(&self) -> usize {
        self.values.len() / self.columns
    }

    /// Whether they were prepared for `matrix`, or for one like it.
    pub(super) fn fits(&self, matrix: &Matrix<'_>) -> bool {
        let by_values = matches!(self.integers, Integers::None);
        self.columns == matrix.columns() && by_values != matrix.is_read_by_codes()
    }

    /// Whether they lie as a matrix unit takes them.
    pub(super) fn is_tiled(&self) -> bool {
        match &self.integers {
            #[cfg(target_arch = "x86_64")]
            Integers::Tiles(_) => true,
            _ => false,
        }
    }

    /// Pieces that can be filled by different threads.
    pub(super) fn parts(&mut self) -> Vec<Part<'_>> {
        let Self { values, columns, precision, ref mut integers } = *self;
        let values = values.chunks(PART * columns);
        let part = |(values, place)| Part { values, columns, precision, place };
        match integers {
            Integers::None => Vec::new(),
            Integers::Blocks(blocks) => {
                let blocks = blocks.chunks_mut(PART * blocks_of(columns)).map(Place::Blocks);
                values.zip(blocks).map(part).collect()
            }
            #[cfg(target_arch = "x86_64")]
            Integers::Tiles(tiles) => {
                values.zip(tiles.places().map(Place::Tile)).map(part).collect()
            }
        }
    }

    /// The blocks of a token.
    #[inline(always)]
    pub(super) fn token(&self, token: usize) -> &[Block] {
        let blocks = blocks_of(self.columns);
        match &self.integers {
            Integers::Blocks(all) => &all[token * blocks..][..blocks],
            _ => unreachable!("they lie in blocks where blocks are multiplied"),
        }
    }
}

/// Blocks that hold the groups of `columns` elements, the last one perhaps in part.
pub(super) fn blocks_of(columns: usize) -> usize {
    columns.div_ceil(BLOCK_GROUPS * GROUP)
}

/// Fills blocks with `values`, `[tokens, columns]`. The same bits whatever it is compiled for: every
/// operation is an exact one or one rounding of IEEE 754.
#[inline(always)]
pub(super) fn prepare(values: &[f32], columns: usize, precision: Precision, blocks: &mut [Block]) {
    let blocks = blocks.chunks_exact_mut(blocks_of(columns));
    for (values, blocks) in values.chunks_exact(columns).zip(blocks) {
        for (number, values) in values.as_chunks::<GROUP>().0.iter().enumerate() {
            let block = &mut blocks[number / BLOCK_GROUPS];
            match precision {
                Precision::Bits16 => group::<2>(values, block, number % BLOCK_GROUPS),
                Precision::Bits8 => group::<1>(values, block, number % BLOCK_GROUPS),
            }
        }
    }
}

/// From the numbers of a group to integers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scale {
    /// What one of the integers stands for.
    pub step: f32,
    /// What a number is multiplied by before it is rounded.
    pub inverse: f32,
    /// Bits of an integer to keep: all, or none where infinity times 0 would be one.
    pub keep: i32,
}

impl Scale {
    /// Of a group whose largest number without sign is `largest`.
    #[inline(always)]
    pub fn of(largest: f32, precision: Precision) -> Self {
        let limit = match precision {
            Precision::Bits16 => 32_512.0,
            Precision::Bits8 => 127.0,
        };
        let step = largest / limit;
        if !largest.is_finite() {
            Self { step: f32::NAN, inverse: 0.0, keep: 0 }
        } else if step < f32::MIN_POSITIVE {
            // Its inverse may be no number. All of the group is below 4e-34.
            Self { step: 0.0, inverse: 0.0, keep: -1 }
        } else {
            Self { step, inverse: limit / largest, keep: -1 }
        }
    }
}

/// One group in `BYTES` bytes an element.
#[inline(always)]
fn group<const BYTES: usize>(values: &[f32; GROUP], block: &mut Block, group: usize) {
    // The bits of numbers without sign are in the order of the numbers, infinity and NaN last.
    let mut largest = 0;
    for value in values {
        largest = largest.max(value.to_bits() & 0x7fff_ffff);
    }
    let precision = if BYTES == 2 { Precision::Bits16 } else { Precision::Bits8 };
    let Scale { step, inverse, keep } = Scale::of(f32::from_bits(largest), precision);
    let mut integers = [0i32; GROUP];
    let mut sum = 0i32;
    for (integer, value) in integers.iter_mut().zip(values) {
        let rounded = (value * inverse + ROUND).to_bits();
        *integer = rounded.wrapping_sub(ROUND.to_bits()) as i32 & keep;
        sum = sum.wrapping_add(*integer);
    }
    block.starts[group] = sum.wrapping_mul(-i32::from(NIBBLE_OFFSET));
    block.steps[group] = step;
    let bytes = &mut block.bytes[group / 4];
    let place = group % 4;
    for k in 0..GROUP / 2 {
        let (even, odd) = (integers[2 * k], integers[2 * k + 1]);
        if BYTES == 2 {
            bytes[EVEN_HIGH][place][k] = (even.wrapping_add(128) >> 8) as i8;
            bytes[ODD_HIGH][place][k] = (odd.wrapping_add(128) >> 8) as i8;
            bytes[EVEN_LOW][place][k] = even as i8;
            bytes[ODD_LOW][place][k] = odd as i8;
        } else {
            bytes[EVEN_HIGH][place][k] = even as i8;
            bytes[ODD_HIGH][place][k] = odd as i8;
        }
    }
}
