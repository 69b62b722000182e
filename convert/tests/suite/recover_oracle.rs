//! Recovery against the definition: an exhaustive oracle in plain integers.

use crate::support::oracle::{Grid, Oracle};
use half::bf16;
use proptest::prelude::*;
use w4pack_convert::recover::{Misfit, Recovered, recover};
use w4pack_format::scale::ScaleDtype;

/// All f16 numbers, and all f32 steps from 2^-20 up, fit multiples of 2^-44.
const ORDINARY: i32 = -44;
/// For f32 steps down to 2^-28, below f16's smallest number.
const SMALL: i32 = -60;
/// For squared errors of groups beyond f16's largest number.
const LARGE: i32 = -24;
/// For groups around bf16's subnormals: multiples of 2^-150, half of f32's smallest number.
const TINY: i32 = -150;
/// For groups near bf16's largest number.
const HUGE: i32 = 60;

fn group(codes: &[i8; 32], step: f64) -> [u16; 32] {
    codes.map(|code| bf16::from_f64(f64::from(code) * step).to_bits())
}

/// Codes as real groups have them, and the awkward ones: few levels, narrow peaks, many zeros.
fn codes() -> impl Strategy<Value = [i8; 32]> {
    prop_oneof![
        4 => prop::array::uniform32(-8_i8..=7),
        1 => prop::array::uniform32(-1_i8..=1),
        1 => prop::array::uniform32(prop_oneof![5 => Just(0_i8), 1 => -8_i8..=7]),
        1 => prop::array::uniform32((-4_i8..=3).prop_map(|code| 2 * code)),
        1 => prop::array::uniform32(-7_i8..=7),
        1 => (1_i8..=8).prop_flat_map(|peak| prop::array::uniform32(-peak..=(peak - 1))),
    ]
}

/// Steps of either sign with all of f32's bits, in a range of binary exponents.
fn step(exponents: std::ops::Range<i32>) -> impl Strategy<Value = f64> {
    let significand = prop_oneof![
        (1_u32 << 23)..(1 << 24),
        ((1_u32 << 8)..(1 << 9)).prop_map(|significand| significand << 15),
    ];
    (significand, exponents, any::<bool>()).prop_map(|(significand, exponent, negative)| {
        let magnitude = f64::from(significand) * 2.0_f64.powi(exponent - 23);
        if negative { -magnitude } else { magnitude }
    })
}

fn on_grid(exponents: std::ops::Range<i32>) -> impl Strategy<Value = [u16; 32]> {
    (codes(), step(exponents)).prop_map(|(codes, step)| group(&codes, step))
}

/// A group on the grid with one value moved to a neighbouring bf16 number (a zero stays).
fn nudged(exponents: std::ops::Range<i32>) -> impl Strategy<Value = [u16; 32]> {
    (on_grid(exponents), 0_usize..32, any::<bool>()).prop_map(|(mut bits, element, up)| {
        if bits[element] & 0x7fff != 0 {
            bits[element] = if up { bits[element] + 1 } else { bits[element] - 1 };
        }
        bits
    })
}

fn agrees(oracle: &Oracle, bits: &[u16; 32], dtypes: &[ScaleDtype]) -> Result<(), TestCaseError> {
    if bits.iter().all(|bits| bits & 0x7fff == 0) {
        let recovered = recover(bits).unwrap();
        prop_assert_eq!(recovered.codes, [0; 32]);
        prop_assert_eq!(recovered.step(ScaleDtype::F16).value, 1.0);
        return Ok(());
    }
    match (oracle.recover(bits), recover(bits)) {
        (None, Err(Misfit::OffGrid(fit))) => prop_assert!(fit.distance > 0.0),
        (Some(grid), Ok(recovered)) => {
            prop_assert_eq!(recovered.codes, grid.codes);
            prop_assert_eq!(recovered.grid.unwrap().negative, grid.negative);
            steps_agree(oracle, bits, &grid, &recovered, dtypes)?;
        }
        (expected, found) => prop_assert!(false, "expected {expected:?}, found {found:?}"),
    }
    Ok(())
}

fn steps_agree(
    oracle: &Oracle,
    bits: &[u16; 32],
    grid: &Grid,
    recovered: &Recovered,
    dtypes: &[ScaleDtype],
) -> Result<(), TestCaseError> {
    for &dtype in dtypes {
        let best = oracle.best_step(bits, grid, dtype);
        let step = recovered.step(dtype);
        prop_assert_eq!((step.value, step.wrong), (best.value, best.wrong), "{}", dtype);
        prop_assert_eq!(recovered.reproduced_by(step.value), step.wrong == 0);
        prop_assert_eq!(recovered.values_wrong(step.value), step.wrong);
    }
    // f32 has too many numbers to try: it always reproduces all values, and no neighbour of the
    // chosen one is nearer to the middle.
    let step = recovered.step(ScaleDtype::F32);
    prop_assert_eq!(step.wrong, 0);
    prop_assert!(!step.out_of_range);
    prop_assert_eq!(oracle.values_wrong(bits, grid, step.value), 0);
    let distance = oracle.distance_from_middle(grid, step.value);
    for neighbour in [step.value.next_up(), step.value.next_down()] {
        if neighbour != 0.0 {
            prop_assert!(oracle.distance_from_middle(grid, neighbour) >= distance);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn ordinary_groups_have_the_codes_and_steps_of_the_definition(bits in on_grid(-16..12)) {
        agrees(&Oracle::new(ORDINARY), &bits, &[ScaleDtype::F16, ScaleDtype::BF16])?;
    }

    #[test]
    fn steps_at_the_edges_of_f16_follow_the_definition(
        small in on_grid(-28..-13),
        large in on_grid(13..18),
    ) {
        agrees(&Oracle::new(SMALL), &small, &[ScaleDtype::F16, ScaleDtype::BF16])?;
        agrees(&Oracle::new(LARGE), &large, &[ScaleDtype::F16, ScaleDtype::BF16])?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]

    #[test]
    fn groups_beside_the_grid_are_judged_as_the_definition_does(bits in nudged(-16..12)) {
        agrees(&Oracle::new(ORDINARY), &bits, &[])?;
    }

    #[test]
    fn groups_among_bf16_subnormals_follow_the_definition(
        bits in prop_oneof![
            on_grid(-140..-120),
            nudged(-138..-120),
            prop::array::uniform32(0_u16..12),
            prop::array::uniform32(prop_oneof![0_u16..9, 0x8000_u16..0x8009]),
        ],
    ) {
        agrees(&Oracle::new(TINY), &bits, &[])?;
    }

    #[test]
    fn groups_near_the_largest_bf16_follow_the_definition(bits in on_grid(99..124)) {
        agrees(&Oracle::new(HUGE), &bits, &[])?;
    }

    #[test]
    fn any_bits_at_all_are_packed_exactly_or_refused(
        bits in prop::array::uniform32(any::<u16>()),
    ) {
        let finite = bits.iter().all(|&bits| bf16::from_bits(bits).is_finite());
        match recover(&bits) {
            Err(Misfit::NotFinite { element, value }) => {
                prop_assert!(!finite && !value.is_finite());
                prop_assert!(!bf16::from_bits(bits[element]).is_finite());
            }
            Err(Misfit::OffGrid(_)) => prop_assert!(finite),
            Ok(recovered) => {
                let step = f64::from(recovered.step(ScaleDtype::F32).value);
                for (&code, bits) in recovered.codes.iter().zip(bits) {
                    let value = bf16::from_f64(f64::from(code) * step);
                    prop_assert_eq!(value, bf16::from_bits(bits));
                }
            }
        }
    }
}

#[test]
fn a_minus_is_taken_only_when_no_positive_step_works() {
    let mut codes = [0_i8; 32];
    codes[..3].copy_from_slice(&[-8, 3, 5]);
    let recovered = recover(&group(&codes, -0.37)).unwrap();
    assert_eq!(recovered.codes, codes, "+8·0.37 cannot be said with a positive step");
    assert!(recovered.step(ScaleDtype::F16).value < 0.0);

    codes[0] = -7;
    let recovered = recover(&group(&codes, -0.37)).unwrap();
    assert_eq!(recovered.codes[..3], [7, -3, -5]);
    assert!(recovered.step(ScaleDtype::F16).value > 0.0);
}
