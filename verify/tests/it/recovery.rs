//! Codes and step intervals against the word-by-word rule and against every code vector.

use crate::oracle::{self, round_to_bf16};
use proptest::prelude::*;
use std::cmp::Ordering;
use w4pack_verify::arithmetic::confirm::confirm;
use w4pack_verify::arithmetic::interval::Interval;
use w4pack_verify::arithmetic::ratio::Ratio;
use w4pack_verify::arithmetic::recover::{Recovery, recover};

/// Groups on a grid, made the way a checkpoint's maker makes them: bf16(code * step), some with
/// one value moved by a last place, some with a step whose products fall half-way between numbers.
pub fn groups(exponents: std::ops::Range<i32>) -> impl Strategy<Value = [u16; 32]> {
    let bound =
        prop_oneof![Just((-8i8, 7i8)), Just((-7, 7)), Just((-3, 5)), Just((-8, -1)), Just((-1, 1))];
    let codes = bound.prop_flat_map(|(low, high)| proptest::array::uniform32(low..=high));
    let sparse = (0usize..32, prop_oneof![-8i8..=-1, 1i8..=7]).prop_map(|(place, code)| {
        let mut codes = [0; 32];
        codes[place] = code;
        codes
    });
    let equal = prop_oneof![-8i8..=-1, 1i8..=7].prop_map(|code| [code; 32]);
    let codes = prop_oneof![8 => codes, 1 => sparse, 1 => equal];
    let significand = prop_oneof![
        4 => 1u32 << 23..1 << 24,
        // Nine significant bits: products with powers of two are ties.
        1 => (128u32..256).prop_map(|half| (2 * half + 1) << 15),
        // Products with 3 and with 5 are ties: the interval can be a single point.
        1 => (43u32..51).prop_map(|half| (2 * half + 1) << 17),
    ];
    let nudge = prop_oneof![4 => Just(None), 1 => (0usize..32, any::<bool>()).prop_map(Some)];
    (codes, significand, exponents, any::<bool>(), nudge).prop_map(
        |(codes, significand, exponent, negative, nudge)| {
            let size = f64::from(significand) * 2f64.powi(exponent - 23);
            let step = if negative { -size } else { size };
            let mut values = codes.map(|code| round_to_bf16(f64::from(code) * step));
            if let Some((place, up)) = nudge {
                let moved =
                    if up { values[place].wrapping_add(1) } else { values[place].wrapping_sub(1) };
                if values[place] & 0x7FFF != 0 && moved & 0x7F80 != 0x7F80 {
                    values[place] = moved;
                }
            }
            values
        },
    )
}

/// The same number as a fraction in 840ths of the oracle's unit.
fn in_oracle_units(ratio: &Ratio, exponent: i32) -> Option<i128> {
    let shift = ratio.exponent - (exponent - 2);
    let numerator = (i128::from(ratio.numerator) * 840) << shift.max(0);
    let denominator = i128::from(ratio.denominator) << (-shift).max(0);
    (numerator % denominator == 0).then_some(numerator / denominator)
}

fn agrees_with_the_rule(values: &[u16; 32]) -> Result<(), TestCaseError> {
    let expected = oracle::recover(values);
    match recover(values) {
        Recovery::OnGrid(grid) => {
            let expected = expected.expect("the oracle found no grid");
            let exponent = oracle::ends(values).exponent;
            prop_assert_eq!(grid.codes, expected.codes);
            prop_assert_eq!(grid.negative, expected.negative);
            prop_assert_eq!(in_oracle_units(&grid.steps.low, exponent), Some(expected.low));
            prop_assert_eq!(in_oracle_units(&grid.steps.high, exponent), Some(expected.high));
            prop_assert_eq!(grid.steps.low_closed, expected.low_closed);
            prop_assert_eq!(grid.steps.high_closed, expected.high_closed);
        }
        Recovery::OffGrid => prop_assert_eq!(expected, None),
        Recovery::Zero => prop_assert!(values.iter().all(|bits| bits & 0x7FFF == 0)),
        Recovery::NotFinite { .. } => prop_assert!(false, "all values are finite"),
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn equals_the_rule_written_down_word_by_word(values in groups(-60..20)) {
        agrees_with_the_rule(&values)?;
    }

    #[test]
    fn equals_the_rule_among_subnormals(values in groups(-140..-115)) {
        agrees_with_the_rule(&values)?;
    }

    #[test]
    fn equals_the_rule_close_to_the_largest_number(values in groups(110..123)) {
        agrees_with_the_rule(&values)?;
    }

    #[test]
    fn arbitrary_numbers_are_judged_like_the_rule(
        values in proptest::array::uniform32((0x3F00u16..0x4100, any::<bool>()).prop_map(|(bits, negative)| bits | u16::from(negative) << 15))
    ) {
        agrees_with_the_rule(&values)?;
    }
}

/// Confirming says the same as recovering, or nothing at all.
fn confirms_only_what_is_recovered(
    values: &[u16; 32],
    codes: &[i8; 32],
    negative: bool,
) -> Result<(), TestCaseError> {
    let Some(confirmed) = confirm(values, codes, negative) else { return Ok(()) };
    let Recovery::OnGrid(grid) = recover(values) else {
        return Err(TestCaseError::fail("confirmed, but not on the grid"));
    };
    prop_assert_eq!(confirmed.codes, grid.codes);
    prop_assert_eq!((confirmed.negative, confirmed.peaks), (grid.negative, grid.peaks));
    let ends = |steps: &Interval| {
        (steps.low.compare(&grid.steps.low), steps.high.compare(&grid.steps.high))
    };
    prop_assert_eq!(ends(&confirmed.steps), (Ordering::Equal, Ordering::Equal));
    prop_assert_eq!(confirmed.steps.low_closed, grid.steps.low_closed);
    prop_assert_eq!(confirmed.steps.high_closed, grid.steps.high_closed);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn codes_are_confirmed_exactly_where_they_are_recovered(
        values in prop_oneof![8 => groups(-60..20), 1 => groups(-140..-115), 1 => groups(110..123)],
        place in 0usize..32,
        code in -8i8..=7,
    ) {
        if let Recovery::OnGrid(grid) = recover(&values) {
            confirms_only_what_is_recovered(&values, &grid.codes, grid.negative)?;
            // Turned, halved, doubled, and with one code changed.
            let turned = grid.codes.map(|code| code.saturating_neg().min(7));
            let halved = grid.codes.map(|code| code / 2);
            let doubled = grid.codes.map(|code| (2 * code).clamp(-8, 7));
            let mut changed = grid.codes;
            changed[place] = code;
            for codes in [grid.codes, turned, halved, doubled, changed] {
                confirms_only_what_is_recovered(&values, &codes, false)?;
                confirms_only_what_is_recovered(&values, &codes, true)?;
            }
        }
    }
}

/// Below the smallest normal number lies a number as near as the one above it, unlike below any
/// other power of two.
#[test]
fn the_smallest_normal_number_is_not_confirmed_by_the_rule_of_powers_of_two() {
    for sign in [0, 0x8000] {
        for place in [0, 31] {
            let mut values = [0; 32];
            values[place] = 0x0080 | sign;
            let Recovery::OnGrid(grid) = recover(&values) else { panic!("it is on the grid") };
            confirms_only_what_is_recovered(&values, &grid.codes, grid.negative).unwrap();
        }
    }
}

/// Not by saying nothing: ordinary groups, whose codes reach far and share no factor, are confirmed.
#[test]
fn ordinary_groups_are_confirmed() {
    for (codes, negative) in [
        (std::array::from_fn(|i| (i % 16) as i8 - 8), false),
        (std::array::from_fn(|i| (i % 16) as i8 - 8), true),
        (std::array::from_fn(|i| (i % 15) as i8 - 7), false),
        (std::array::from_fn(|i| (i % 11) as i8 - 5), false),
    ] {
        let step = if negative { -0.0137 } else { 0.0137 };
        let values = codes.map(|code: i8| round_to_bf16(f64::from(code) * step));
        assert!(confirm(&values, &codes, negative).is_some());
        assert!(confirm(&values, &codes, !negative).is_none());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn of_every_possible_code_vector_the_smallest_positive_one_is_chosen(values in groups(-20..10)) {
        let all = oracle::every_code_vector(&values);
        let peak = |codes: &[i8; 32]| codes.iter().map(|code| code.unsigned_abs()).max();
        let chosen = all
            .iter()
            .filter(|(_, negative)| !negative)
            .min_by_key(|(codes, _)| peak(codes))
            .or_else(|| all.iter().min_by_key(|(codes, _)| peak(codes)));
        match recover(&values) {
            Recovery::OnGrid(grid) => {
                prop_assert_eq!(chosen, Some(&(grid.codes, grid.negative)));
                let same_sign = all.iter().filter(|(_, negative)| *negative == grid.negative);
                let peaks = same_sign.fold(0u8, |bits, (codes, _)| bits | 1 << (peak(codes).unwrap() - 1));
                prop_assert_eq!(grid.peaks, peaks);
            }
            Recovery::Zero => prop_assert!(values.iter().all(|bits| bits & 0x7FFF == 0)),
            Recovery::OffGrid => prop_assert_eq!(chosen, None),
            Recovery::NotFinite { .. } => prop_assert!(false, "all values are finite"),
        }
    }
}

#[test]
fn infinite_values_and_not_a_number_are_named_by_their_place() {
    for bits in [0x7F80, 0xFF80, 0x7FC0, 0xFF81] {
        let mut values = [0x3F80; 32];
        values[17] = bits;
        assert!(matches!(recover(&values), Recovery::NotFinite { element: 17 }));
    }
}

/// Groups whose codes stay inside -3..=5, inside -8..=-1, a single one, all equal.
#[test]
fn field_case_02_groups_that_never_reach_minus_eight() {
    for step in [2f64.powi(-14), 0.0137, 0.5].map(|step| oracle::value(round_to_bf16(step))) {
        let patterns: [&dyn Fn(usize) -> i8; 4] =
            [&|i| i as i8 % 9 - 3, &|i| -(i as i8 % 8) - 1, &|i| i8::from(i == 11), &|_| 5];
        for (number, pattern) in patterns.iter().enumerate() {
            let codes: [i8; 32] = std::array::from_fn(pattern);
            let values = codes.map(|code| round_to_bf16(f64::from(code) * step));
            let Recovery::OnGrid(grid) = recover(&values) else { panic!("off the grid") };
            let expected = if number == 3 { [1; 32] } else { codes };
            assert_eq!(grid.codes, expected, "pattern {number}, step {step}");
            assert!(!grid.negative);
            // A single level and equal values say nothing about the peak.
            assert_eq!(grid.peaks.count_ones() > 1, number >= 2, "pattern {number}, step {step}");
        }
    }
}
