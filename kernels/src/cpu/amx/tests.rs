//! The matrix unit's layouts and order, proved with a model of the unit: on every machine with
//! AVX-512, against the plain arithmetic. On a machine that has the unit, `tests/packed` proves the
//! same of the real one.

use super::model::Model;
use super::{SIDE, TokenTiles, fill};
use crate::cpu::activations::{Activations, Integers, Place};
use crate::cpu::{Kernels, Matrix, Output, Precision, Steps, Values};
use half::{bf16, f16};
use proptest::prelude::*;
use proptest::sample::select;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use w4pack_format::group::{GROUP, WORDS};

/// Whether this machine can run the other half of the arithmetic.
fn there() -> bool {
    let there = Kernels::available().iter().any(|kernels| kernels.name() == "avx512");
    if !there {
        println!("skipped: this processor has no AVX-512 with VNNI");
    }
    there
}

/// Safety: requires AVX-512 F and BW.
unsafe fn fill_tiles(x: &mut Activations<'_>) {
    for part in &mut x.parts() {
        let Place::Tile(tile) = &mut part.place else { panic!("tiles") };
        // SAFETY: the instruction set is the caller's promise.
        unsafe { fill(part.values, part.precision, tile) }
    }
}

struct Operands {
    rows: usize,
    columns: usize,
    words: Vec<u32>,
    steps: Vec<f32>,
    x: Vec<f32>,
}

impl Operands {
    /// All codes, steps and activations of both signs and many sizes; of activations some are 0, and a
    /// group of one token is what `odd` says.
    fn random(rows: usize, groups: usize, tokens: usize, odd: f32, seed: u64) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let columns = groups * GROUP;
        let words = (0..rows * groups * WORDS).map(|_| random.next_u32()).collect();
        let mut number = || {
            let bits = random.next_u32();
            let size = (1.0 + (bits >> 9) as f32 * 2f32.powi(-23)) * 2f32.powi(-(bits as i32 & 15));
            match bits >> 4 & 15 {
                0 => 0.0,
                bits if bits % 2 == 0 => -size,
                _ => size,
            }
        };
        let steps = (0..rows * groups).map(|_| number()).collect();
        let mut x: Vec<f32> = (0..tokens * columns).map(|_| number()).collect();
        if odd != 0.0 {
            x[tokens / 2 * columns + columns / 2..][..16].fill(odd);
        }
        Self { rows, columns, words, steps, x }
    }

    fn check(&self, dtype: usize, precision: Precision) {
        let f16s: Vec<f16> = self.steps.iter().map(|&step| f16::from_f32(step)).collect();
        let bf16s: Vec<bf16> = self.steps.iter().map(|&step| bf16::from_f32(step)).collect();
        let steps = match dtype {
            0 => Steps::F16(&f16s),
            1 => Steps::Bf16(&bf16s),
            _ => Steps::F32(&self.steps),
        };
        let values = Values::Packed { words: &self.words, steps, round_to_bf16: false };
        let matrix = Matrix::new(self.rows, self.columns, values);
        let tokens = self.x.len() / self.columns;
        let plain = Kernels::named("portable").unwrap();
        let x = plain.prepare(&matrix, &self.x, precision);
        let mut expected = vec![0.0; self.rows * tokens];
        plain.multiply(&matrix, 0, &x, Output::whole(&mut expected, tokens));

        let mut x = Activations::new(&matrix, &self.x, precision, |_| true);
        let mut found = vec![f32::from_bits(0x7fab_cdef); self.rows * tokens];
        // In two stripes, as threads would.
        let first = self.rows / 3;
        let (mut above, mut below) = Output::whole(&mut found, tokens).split_at(first);
        // SAFETY: the caller has looked whether the instruction set is there.
        unsafe {
            fill_tiles(&mut x);
            let Integers::Tiles(tiles) = &x.integers else { panic!("tiles") };
            super::multiply::<Model>(&matrix, first, tiles, precision, &mut below);
            if first > 0 {
                super::multiply::<Model>(&matrix, 0, tiles, precision, &mut above);
            }
        }
        for (place, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let same = found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan();
            let shape = (self.rows, self.columns / GROUP, tokens);
            assert!(same, "{shape:?}, {precision:?}, output {place}: {found} for {expected}");
        }
    }
}

#[test]
fn tiles_give_the_bits_of_the_plain_arithmetic() {
    if !there() {
        return;
    }
    // On both sides of a tile and a panel; of a lane and all lanes.
    let rows = [1, 15, 16, 17, 32, 33, 49, 1400];
    let groups = [1, 2, 7, 8, 16, 17, 48, 63, 64, 65, 129, 2];
    for (number, groups) in groups.into_iter().enumerate() {
        for (other, tokens) in [1, 5, 16, 17, 33].into_iter().enumerate() {
            let rows = if groups == 2 { rows[7 - other] } else { rows[(number + other) % 7] };
            let seed = (16 * number + other) as u64;
            let operands = Operands::random(rows, groups, tokens, 0.0, seed);
            operands.check(seed as usize % 3, Precision::Bits16);
            operands.check((seed as usize + 1) % 3, Precision::Bits8);
        }
    }
}

#[test]
fn what_is_no_number_or_too_small_is_as_in_the_plain_arithmetic() {
    if !there() {
        return;
    }
    for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MIN_POSITIVE, 1e-38, 3e38, -0.0] {
        for tokens in [3, 20] {
            let mut operands = Operands::random(18, 19, tokens, odd, 5);
            operands.check(2, Precision::Bits16);
            operands.x.fill(odd);
            operands.check(2, Precision::Bits16);
            operands.check(2, Precision::Bits8);
        }
    }
}

#[test]
fn the_largest_sums_are_exact() {
    if !there() {
        return;
    }
    for word in [0x0000_0000, 0xffff_ffff, 0x0f0f_0f0f] {
        for x in [1.5, -1.5] {
            let mut operands = Operands::random(17, 18, 17, 0.0, 1);
            operands.words.fill(word);
            operands.steps.fill(1.0);
            operands.x.fill(x);
            operands.check(0, Precision::Bits16);
        }
    }
}

#[test]
fn zeros_have_no_sign() {
    if !there() {
        return;
    }
    let mut operands = Operands::random(17, 35, 17, 0.0, 1);
    operands.steps.fill(-1.0);
    operands.x.fill(-0.0);
    operands.check(0, Precision::Bits16);
}

#[test]
fn activations_have_one_integer_each_in_both_layouts() {
    if !there() {
        return;
    }
    let operands = Operands::random(1, 18, 21, 0.0, 9);
    let values = Values::Packed {
        words: &operands.words,
        steps: Steps::F32(&operands.steps),
        round_to_bf16: false,
    };
    let matrix = Matrix::new(1, operands.columns, values);
    let blocks =
        Kernels::named("portable").unwrap().prepare(&matrix, &operands.x, Precision::Bits16);
    let tiles = {
        let mut x = Activations::new(&matrix, &operands.x, Precision::Bits16, |_| true);
        // SAFETY: `there` has looked whether the instruction set is there.
        unsafe { fill_tiles(&mut x) };
        x
    };
    let Integers::Tiles(tiles) = &tiles.integers else { panic!("tiles") };
    check_layouts(&blocks, tiles);
}

fn check_layouts(blocks: &Activations<'_>, tiles: &TokenTiles) {
    use crate::cpu::activations::{EVEN_HIGH, EVEN_LOW, ODD_HIGH, ODD_LOW};
    for token in 0..blocks.tokens() {
        for group in 0..18 {
            let block = &blocks.token(token)[group / 16];
            let tile = tiles.iter().nth(token / SIDE).unwrap();
            let place = tiles.order().places[group];
            let [high, low] = tile.bytes[place].0[token % SIDE];
            assert_eq!(tile.steps[place].0[token % SIDE], block.steps[group % 16]);
            let part = |part: usize| block.bytes[group % 16 / 4][part][group % 4];
            assert_eq!(high, *[part(EVEN_HIGH), part(ODD_HIGH)].as_flattened());
            assert_eq!(low, *[part(EVEN_LOW), part(ODD_LOW)].as_flattened());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_shape(
        (rows, groups, tokens) in (1usize..70, 1usize..70, 1usize..40),
        dtype in 0usize..3,
        precision in select(vec![Precision::Bits16, Precision::Bits8]),
        seed: u64,
    ) {
        if there() {
            Operands::random(rows, groups, tokens, 0.0, seed).check(dtype, precision);
        }
    }
}
