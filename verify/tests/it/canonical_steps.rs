//! Canonical steps against every number of f16 and bf16, and products against plain f64.

use crate::oracle::{self, round_to_bf16, value};
use crate::recovery::groups;
use proptest::prelude::*;
use w4pack_format::scale::ScaleDtype;
use w4pack_verify::arithmetic::canonical::canonical_step;
use w4pack_verify::arithmetic::judge::product;
use w4pack_verify::arithmetic::numbers::Number;
use w4pack_verify::arithmetic::recover::{Grid, Recovery, recover};

/// All finite non-negative numbers of a 16-bit dtype, ascending.
fn every_number(dtype: ScaleDtype) -> Vec<f32> {
    let end = if dtype == ScaleDtype::F16 { 0x7C00u16 } else { 0x7F80 };
    (0..end).map(|bits| dtype.read(&bits.to_le_bytes())).collect()
}

fn reproduced(grid: &Grid, values: &[u16; 32], step: f32) -> usize {
    let signed = f64::from(if grid.negative { -step } else { step });
    let same = |i: &usize| {
        let product = round_to_bf16(f64::from(grid.codes[*i]) * signed);
        product == values[*i] || (product | values[*i]) & 0x7FFF == 0
    };
    (0..32).filter(same).count()
}

/// `number` as an integer in units of `2^exponent`.
fn whole(number: f32, exponent: i32) -> i128 {
    let scaled = f64::from(number) * 2f64.powi(-exponent);
    assert!(scaled.fract() == 0.0 && scaled.abs() < 2f64.powi(100));
    scaled as i128
}

/// The rule by trying every number.
fn best_of_all(grid: &Grid, values: &[u16; 32], dtype: ScaleDtype) -> f32 {
    let numbers = every_number(dtype);
    let counts: Vec<usize> =
        numbers.iter().map(|&number| reproduced(grid, values, number)).collect();
    let most = *counts.iter().max().unwrap();
    let best = numbers.iter().zip(&counts).filter(|(_, count)| **count == most).map(|(n, _)| *n);
    let exponent = oracle::ends(values).exponent - 40;
    if most == 32 {
        let interval = oracle::recover(values).unwrap();
        // Distance to the middle, times 1680 and in units of 2^exponent / 4.
        let middle = (interval.low + interval.high) << 40;
        best.min_by_key(|&step| (whole(step, exponent - 2) * 1680 - middle).abs()).unwrap()
    } else {
        let error = |step: f32| -> i128 {
            let step = whole(step, exponent);
            (0..32)
                .map(|i| {
                    let size = f32::from_bits(u32::from(values[i] & 0x7FFF) << 16);
                    let code = i128::from(grid.codes[i].unsigned_abs());
                    (code * step - whole(size, exponent)).saturating_pow(2)
                })
                .fold(0, |sum: i128, error| sum.saturating_add(error))
        };
        // min_by_key keeps the first, which is the smallest, of equals.
        best.min_by_key(|&step| error(step)).unwrap()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn of_all_numbers_of_a_dtype_the_right_one_is_chosen(values in groups(-36..18)) {
        if let Recovery::OnGrid(grid) = recover(&values) {
            for dtype in [ScaleDtype::F16, ScaleDtype::BF16] {
                let found = canonical_step(&grid, &values, dtype).to_f32();
                prop_assert_eq!(found, best_of_all(&grid, &values, dtype), "{}", dtype);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn an_f32_step_always_gives_every_value(values in groups(-148..125)) {
        if let Recovery::OnGrid(grid) = recover(&values) {
            let step = canonical_step(&grid, &values, ScaleDtype::F32);
            prop_assert_eq!(reproduced(&grid, &values, step.to_f32()), 32);
            prop_assert_eq!(Number::of_f32(step.to_f32()), step);
        }
    }

    #[test]
    fn being_inside_the_interval_and_giving_every_value_are_the_same(values in groups(-60..60), bits in any::<u16>()) {
        if let Recovery::OnGrid(grid) = recover(&values) {
            // A step of up to 2^-7 above or below the canonical one.
            let near = canonical_step(&grid, &values, ScaleDtype::F32).to_f32().to_bits();
            let step = f32::from_bits((near + u32::from(bits)).saturating_sub(1 << 15));
            let inside = grid.steps.contains(&Number::of_f32(step).ratio());
            prop_assert_eq!(inside, reproduced(&grid, &values, step) == 32);
        }
    }

    #[test]
    fn products_round_once_like_plain_f64(code in -8i8..=7, bits in any::<u32>()) {
        let step = f32::from_bits(bits);
        prop_assume!(step.is_finite());
        prop_assert_eq!(product(code, step), round_to_bf16(f64::from(code) * f64::from(step)));
    }
}

#[test]
fn products_of_unusable_steps_are_never_finite_numbers() {
    assert_eq!(product(3, f32::NEG_INFINITY), 0xFF80);
    assert!(value(product(0, f32::INFINITY)).is_nan());
    assert!(value(product(-8, f32::NAN)).is_nan());
}
