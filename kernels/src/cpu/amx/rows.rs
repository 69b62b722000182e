//! Rows as the matrix unit takes them: codes as signed bytes, sixteen rows side by side.

use super::SIDE;
use super::order::Order;
use crate::cpu::numbers::{LANES, Stored};
use crate::cpu::packed::Packed;
use std::arch::x86_64::*;
use w4pack_format::group::{GROUP, NIBBLE_OFFSET, WORDS};

/// The codes of a group of sixteen rows: by fours of elements, then by row. Even elements come
/// first, then the odd ones, as in `tokens.rs`.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub struct RowGroup(pub [[[i8; 4]; SIDE]; GROUP / 4]);

/// The steps of a group of sixteen rows.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub struct RowSteps(pub [f32; SIDE]);

/// Sixteen rows: `[groups]` of each, in order.
#[derive(Clone, Copy)]
pub struct RowTile<'a> {
    pub codes: &'a [RowGroup],
    pub steps: &'a [RowSteps],
}

/// Tiles of neighbouring rows.
#[derive(Debug, Default)]
pub struct Panel {
    /// `[tiles, groups]`; there may be more than are in use.
    codes: Vec<RowGroup>,
    steps: Vec<RowSteps>,
    groups: usize,
    tiles: usize,
}

impl Panel {
    /// Bytes of a tile of rows of `groups` groups.
    pub fn tile_bytes(groups: usize) -> usize {
        groups * (size_of::<RowGroup>() + size_of::<RowSteps>())
    }

    /// The tiles in use.
    pub fn iter(&self) -> impl Iterator<Item = RowTile<'_>> {
        let tiles = self.codes.chunks_exact(self.groups).zip(self.steps.chunks_exact(self.groups));
        tiles.take(self.tiles).map(|(codes, steps)| RowTile { codes, steps })
    }

    /// Unpacks `rows`, groups in `order`, in place of what was there. What stands for rows behind the last one of the last
    /// tile is the first one of that tile.
    ///
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx2,fma,f16c")]
    pub fn unpack<S: Stored>(&mut self, rows: &Packed<'_, S>, order: &Order) {
        let groups = rows.groups;
        (self.groups, self.tiles) = (groups, rows.rows().div_ceil(SIDE));
        let room = self.tiles * groups;
        if self.codes.len() < room {
            self.codes.resize(room, RowGroup([[[0; 4]; SIDE]; GROUP / 4]));
            self.steps.resize(room, RowSteps([0.0; SIDE]));
        }
        for tile in 0..self.tiles {
            let (mut words, mut steps): ([&[u32]; SIDE], [&[S]; SIDE]) = ([&[]; SIDE], [&[]; SIDE]);
            for (lane, row) in rows.some(SIDE * tile, SIDE).iter().enumerate() {
                (words[lane], steps[lane]) = row;
            }
            for lane in 1..SIDE {
                if words[lane].is_empty() {
                    (words[lane], steps[lane]) = (words[0], steps[0]);
                }
            }
            let groups = tile * groups..(tile + 1) * groups;
            unpack_codes(words, &order.places, &mut self.codes[groups.clone()]);
            unpack_steps(steps, &order.places, &mut self.steps[groups]);
        }
    }
}

/// The codes of sixteen rows, four groups at a time.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx2,fma,f16c")]
fn unpack_codes(rows: [&[u32]; SIDE], places: &[usize], codes: &mut [RowGroup]) {
    const AT_ONCE: usize = LANES / WORDS;
    // SAFETY: of a row as many words are read as its groups have; what is written is 64 bytes of a group
    // each.
    unsafe {
        let nibble = _mm512_set1_epi8(15);
        let offset = _mm512_set1_epi8(NIBBLE_OFFSET);
        for (number, places) in places.chunks(AT_ONCE).enumerate() {
            let there = (1u32 << (places.len() * WORDS)) - 1;
            let mut columns = [_mm512_setzero_si512(); SIDE];
            for (column, row) in columns.iter_mut().zip(rows) {
                let words = &row[number * LANES..][..places.len() * WORDS];
                *column = _mm512_maskz_loadu_epi32(there as __mmask16, words.as_ptr().cast());
            }
            let columns = transpose(columns);
            for (group, &place) in places.iter().enumerate() {
                let codes = &mut codes[place];
                for word in 0..WORDS {
                    let words = columns[group * WORDS + word];
                    let even = _mm512_and_si512(words, nibble);
                    let odd = _mm512_and_si512(_mm512_srli_epi16::<4>(words), nibble);
                    let even_place = codes.0[word].as_mut_ptr().cast();
                    _mm512_storeu_si512(even_place, _mm512_sub_epi8(even, offset));
                    let odd_place = codes.0[WORDS + word].as_mut_ptr().cast();
                    _mm512_storeu_si512(odd_place, _mm512_sub_epi8(odd, offset));
                }
            }
        }
    }
}

/// The steps of sixteen rows, sixteen groups at a time.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx2,fma,f16c")]
fn unpack_steps<S: Stored>(rows: [&[S]; SIDE], places: &[usize], steps: &mut [RowSteps]) {
    // SAFETY: loads and stores are of sixteen values that are there, by the instructions for which this
    // function is compiled.
    unsafe {
        for (number, places) in places.chunks(LANES).enumerate() {
            let mut columns = [_mm512_setzero_si512(); SIDE];
            for (column, row) in columns.iter_mut().zip(rows) {
                let row = &row[number * LANES..][..places.len()];
                let mut sixteen = [S::default(); LANES];
                let values = match row.first_chunk::<LANES>() {
                    Some(row) => row,
                    None => {
                        for (value, &row) in sixteen.iter_mut().zip(row) {
                            *value = row;
                        }
                        &sixteen
                    }
                };
                *column = _mm512_castps_si512(S::load::<__m512>(values));
            }
            let columns = transpose(columns);
            for (group, &place) in places.iter().enumerate() {
                _mm512_storeu_si512(steps[place].0.as_mut_ptr().cast(), columns[group]);
            }
        }
    }
}

/// Rows and columns changed: by 2, by 4, then by lanes of 128 bits.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx2,fma,f16c")]
fn transpose(rows: [__m512i; SIDE]) -> [__m512i; SIDE] {
    // fours[4·b + j]: in lane l, the elements 4·l + j of rows 4·b to 4·b + 3.
    let mut fours = rows;
    for b in 0..4 {
        let [r0, r1, r2, r3] = [rows[4 * b], rows[4 * b + 1], rows[4 * b + 2], rows[4 * b + 3]];
        let (low01, high01) = (_mm512_unpacklo_epi32(r0, r1), _mm512_unpackhi_epi32(r0, r1));
        let (low23, high23) = (_mm512_unpacklo_epi32(r2, r3), _mm512_unpackhi_epi32(r2, r3));
        fours[4 * b] = _mm512_unpacklo_epi64(low01, low23);
        fours[4 * b + 1] = _mm512_unpackhi_epi64(low01, low23);
        fours[4 * b + 2] = _mm512_unpacklo_epi64(high01, high23);
        fours[4 * b + 3] = _mm512_unpackhi_epi64(high01, high23);
    }
    let mut columns = fours;
    for j in 0..4 {
        let [a, b, c, d] = [fours[j], fours[4 + j], fours[8 + j], fours[12 + j]];
        let ab = [_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0xdd>(a, b)];
        let cd = [_mm512_shuffle_i32x4::<0x88>(c, d), _mm512_shuffle_i32x4::<0xdd>(c, d)];
        columns[j] = _mm512_shuffle_i32x4::<0x88>(ab[0], cd[0]);
        columns[4 + j] = _mm512_shuffle_i32x4::<0x88>(ab[1], cd[1]);
        columns[8 + j] = _mm512_shuffle_i32x4::<0xdd>(ab[0], cd[0]);
        columns[12 + j] = _mm512_shuffle_i32x4::<0xdd>(ab[1], cd[1]);
    }
    columns
}
