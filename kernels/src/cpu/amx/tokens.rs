//! Tokens as the matrix unit takes them: the high and low bytes of their integers, sixteen tokens at
//! a time.

use super::SIDE;
use super::order::Order;
use crate::cpu::activations::{Precision, Scale};
use crate::cpu::numbers::ROUND;
use std::arch::x86_64::*;
use std::cell::Cell;
use w4pack_format::group::GROUP;

/// A group of sixteen tokens: of each token the high bytes of its 16 even elements and of its 16 odd
/// ones, then the low ones.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub struct TokenGroup(pub [[[i8; GROUP]; 2]; SIDE]);

/// The steps of a group of sixteen tokens.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub struct TokenSteps(pub [f32; SIDE]);

/// Activations in tiles of sixteen tokens, of which the last may be filled in part.
#[derive(Debug)]
pub struct TokenTiles {
    /// `[tiles, groups]`, groups in `order`.
    bytes: Vec<TokenGroup>,
    steps: Vec<TokenSteps>,
    order: Order,
    tokens: usize,
}

thread_local! {
    /// Room of the last ones, for the next: as zeroed pages from the system it takes as long as filling.
    static SPARE: Cell<(Vec<TokenGroup>, Vec<TokenSteps>)> =
        const { Cell::new((Vec::new(), Vec::new())) };
}

impl Drop for TokenTiles {
    fn drop(&mut self) {
        SPARE.set((std::mem::take(&mut self.bytes), std::mem::take(&mut self.steps)));
    }
}

/// Sixteen tokens or fewer, numbers `first` and on: `[groups]` of them, in order.
#[derive(Clone, Copy)]
pub struct Tokens<'a> {
    pub first: usize,
    pub count: usize,
    pub bytes: &'a [TokenGroup],
    pub steps: &'a [TokenSteps],
}

/// The place of sixteen tokens, to be filled.
#[derive(Debug)]
pub struct TokenTile<'a> {
    bytes: &'a mut [TokenGroup],
    steps: &'a mut [TokenSteps],
    /// By place, the group.
    groups: &'a [usize],
}

impl TokenTiles {
    /// Room for `tokens` tokens of `groups` groups. Absent ones are any numbers: nothing is made of
    /// their sums.
    pub fn new(tokens: usize, groups: usize) -> Self {
        let room = tokens.div_ceil(SIDE) * groups;
        let (mut bytes, mut steps) = SPARE.take();
        bytes.resize(room, TokenGroup([[[0; GROUP]; 2]; SIDE]));
        steps.resize(room, TokenSteps([0.0; SIDE]));
        Self { bytes, steps, order: Order::of(groups), tokens }
    }

    /// The order of groups, which that of the rows must be.
    pub fn order(&self) -> &Order {
        &self.order
    }

    /// The tokens, sixteen at a time.
    pub fn iter(&self) -> impl Iterator<Item = Tokens<'_>> {
        let groups = self.order.groups.len();
        let tiles = self.bytes.chunks_exact(groups).zip(self.steps.chunks_exact(groups));
        (0..self.tokens).step_by(SIDE).zip(tiles).map(|(first, (bytes, steps))| Tokens {
            first,
            count: (self.tokens - first).min(SIDE),
            bytes,
            steps,
        })
    }

    /// The places of all tiles.
    pub fn places(&mut self) -> impl Iterator<Item = TokenTile<'_>> {
        let groups = &self.order.groups[..];
        let steps = self.steps.chunks_exact_mut(groups.len());
        let places = self.bytes.chunks_exact_mut(groups.len()).zip(steps);
        places.map(move |(bytes, steps)| TokenTile { bytes, steps, groups })
    }
}

/// Fills a tile with `values`, `[tokens, columns]` of at most sixteen tokens: the bits that
/// `activations.rs` gives to a token alone.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx2,fma,f16c")]
pub fn fill(values: &[f32], precision: Precision, tile: &mut TokenTile<'_>) {
    let columns = tile.groups.len() * GROUP;
    for (token, values) in values.chunks_exact(columns).enumerate() {
        let values = values.as_chunks::<GROUP>().0;
        let places = tile.bytes.iter_mut().zip(tile.steps.iter_mut());
        for (&number, (bytes, steps)) in tile.groups.iter().zip(places) {
            steps.0[token] = group(&values[number], precision, &mut bytes.0[token]);
        }
    }
}

/// A group of one token; returns the step.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx2,fma,f16c")]
fn group(values: &[f32; GROUP], precision: Precision, bytes: &mut [[i8; GROUP]; 2]) -> f32 {
    // SAFETY: loads and stores stay inside the references.
    unsafe {
        let first = _mm512_loadu_ps(values.as_ptr());
        let second = _mm512_loadu_ps(values.as_ptr().add(16));
        let sizes = |numbers| {
            _mm512_and_si512(_mm512_castps_si512(numbers), _mm512_set1_epi32(0x7fff_ffff))
        };
        let largest = _mm512_reduce_max_epi32(_mm512_max_epi32(sizes(first), sizes(second)));
        let scale = Scale::of(f32::from_bits(largest as u32), precision);
        let integers = |numbers| {
            let rounded = _mm512_mul_ps(numbers, _mm512_set1_ps(scale.inverse));
            let rounded = _mm512_castps_si512(_mm512_add_ps(rounded, _mm512_set1_ps(ROUND)));
            let integers = _mm512_sub_epi32(rounded, _mm512_castps_si512(_mm512_set1_ps(ROUND)));
            _mm512_and_si512(integers, _mm512_set1_epi32(scale.keep))
        };
        let (first, second) = (integers(first), integers(second));
        let evens = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
        let odds = _mm512_or_si512(evens, _mm512_set1_epi32(1));
        for (half, order) in [evens, odds].into_iter().enumerate() {
            let integers = _mm512_permutex2var_epi32(first, order, second);
            let high = match precision {
                Precision::Bits16 => {
                    _mm512_srai_epi32::<8>(_mm512_add_epi32(integers, _mm512_set1_epi32(128)))
                }
                Precision::Bits8 => integers,
            };
            let place = |part: &mut [i8; GROUP]| part.as_mut_ptr().add(16 * half).cast();
            _mm_storeu_si128(place(&mut bytes[0]), _mm512_cvtepi32_epi8(high));
            if precision == Precision::Bits16 {
                _mm_storeu_si128(place(&mut bytes[1]), _mm512_cvtepi32_epi8(integers));
            }
        }
        scale.step
    }
}
