//! No instruction set in particular. The compiler makes of it what the target's baseline has.

use super::{Products, RowWords, TileGroup};
use crate::cpu::activations::{Block, EVEN_HIGH, EVEN_LOW, ODD_HIGH, ODD_LOW};
use crate::cpu::numbers::LANES;
use w4pack_format::group::{GROUP, WORDS};

impl Products for [f32; LANES] {
    const TILE_TOKENS: usize = 4;
    const LEAST_TILED: usize = 5;

    #[inline(always)]
    unsafe fn row_sums<const T: usize, const BYTES: usize>(
        words: &RowWords,
        x: [&Block; T],
    ) -> [Self; T] {
        let mut sums = [[0.0; LANES]; T];
        for (group, words) in words.as_chunks::<WORDS>().0.iter().enumerate() {
            let mut nibbles = [[0i16; GROUP / 2]; 2];
            for k in 0..GROUP / 2 {
                let byte = (words[k / 4] >> (8 * (k % 4))) as i16 & 0xff;
                nibbles[0][k] = byte & 15;
                nibbles[1][k] = byte >> 4;
            }
            for t in 0..T {
                let parts = &x[t].bytes[group / 4];
                let part = |part: usize| &parts[part][group % 4];
                let high = dot(&nibbles, [part(EVEN_HIGH), part(ODD_HIGH)]);
                let sum = match BYTES {
                    2 => 256 * high + dot(&nibbles, [part(EVEN_LOW), part(ODD_LOW)]),
                    _ => high,
                };
                sums[t][group] = (sum + x[t].starts[group]) as f32;
            }
        }
        sums
    }

    #[inline(always)]
    unsafe fn tile_sums<const T: usize, const BYTES: usize>(
        codes: &TileGroup,
        group: usize,
        x: [&Block; T],
    ) -> [Self; T] {
        let mut sums = [[0.0; LANES]; T];
        for t in 0..T {
            let parts = &x[t].bytes[group / 4];
            // Even and odd elements by turns, as the tile has them.
            let part = |part: usize| &parts[part][group % 4];
            let mut totals = [x[t].starts[group]; LANES];
            for (k, rows) in codes.iter().enumerate() {
                let byte = 4 * (k / 2);
                let high = part(if k % 2 == 0 { EVEN_HIGH } else { ODD_HIGH });
                let low = part(if k % 2 == 0 { EVEN_LOW } else { ODD_LOW });
                for (total, row) in totals.iter_mut().zip(rows) {
                    for i in 0..4 {
                        let integer = match BYTES {
                            2 => 256 * i32::from(high[byte + i]) + i32::from(low[byte + i]),
                            _ => i32::from(high[byte + i]),
                        };
                        *total = total.wrapping_add(i32::from(row[i]).wrapping_mul(integer));
                    }
                }
            }
            for (sum, total) in sums[t].iter_mut().zip(totals) {
                *sum = total as f32;
            }
        }
        sums
    }
}

/// The sum of nibble·byte over the even and the odd elements of a group. Products of sixteen bits,
/// added in pairs: what the smallest vector unit has an instruction for.
#[inline(always)]
fn dot(nibbles: &[[i16; GROUP / 2]; 2], bytes: [&[i8; GROUP / 2]; 2]) -> i32 {
    let mut sum = 0i32;
    for (nibbles, bytes) in nibbles.iter().zip(bytes) {
        for k in 0..GROUP / 2 {
            let product = i32::from(nibbles[k]).wrapping_mul(i32::from(bytes[k]));
            sum = sum.wrapping_add(product);
        }
    }
    sum
}
