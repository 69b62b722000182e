//! Every table gives the bits of the arithmetic spelled out, for every number of tokens.

use crate::support::*;
use proptest::prelude::*;
use proptest::sample::select;
use w4pack_kernels::cpu::{Kernels, Precision};

/// Rows on both sides of a tile, groups on both sides of a block, tokens on both sides of every way
/// to take them.
const ROWS: [usize; 5] = [1, 3, 16, 17, 35];
const GROUPS: [usize; 8] = [1, 2, 15, 16, 17, 47, 48, 384];
const TOKENS: [usize; 13] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 33, 64];

fn check(packed: &Packed, x: &[f32], context: &dyn std::fmt::Debug) {
    for precision in [Precision::Bits16, Precision::Bits8] {
        let expected = spelled_out(packed, x, precision);
        for kernels in Kernels::available() {
            let found = product(kernels, packed, x, precision);
            assert!(same(&found, &expected), "{}, {precision:?}, {context:?}", kernels.name());
        }
    }
}

/// They are the fastest there are, and all tests here hold them to the same bits; where they are not
/// there, the library's own tests do so with a model of the matrix unit.
#[test]
fn kernels_for_a_matrix_unit_are_there_or_it_is_said_why_not() {
    match Kernels::named("amx") {
        Ok(amx) => assert_eq!(Kernels::best(), amx),
        Err(error) => {
            let why = error.reason.unwrap_or("no x86-64");
            println!("skipped: no AMX here, {why}");
            assert!(!Kernels::available().iter().any(|kernels| kernels.name() == "amx"));
        }
    }
}

#[test]
fn all_shapes_and_numbers_of_tokens() {
    for (number, groups) in GROUPS.into_iter().enumerate() {
        for (other, tokens) in TOKENS.into_iter().enumerate() {
            // The largest operands with few rows: the slow version takes its time.
            let rows = if groups * tokens > 3000 { 3 } else { ROWS[(number + other) % 5] };
            let dtype = DTYPES[(number + other) % 3];
            let kind = [Kind::Normal, Kind::Outliers][other % 2];
            let packed = Packed::random(rows, groups, dtype, (number * 10 + other) as u64);
            let x = activations(kind, tokens, packed.columns(), other as u64);
            check(&packed, &x, &(rows, groups, tokens, dtype, kind));
        }
    }
}

#[test]
fn all_kinds_of_activations_and_dtypes_of_steps() {
    for kind in KINDS {
        for dtype in DTYPES {
            for (rows, groups, tokens) in [(17, 18, 1), (17, 18, 3), (17, 18, 11), (17, 18, 17)] {
                let packed = Packed::random(rows, groups, dtype, 7);
                let x = activations(kind, tokens, packed.columns(), groups as u64 + tokens as u64);
                check(&packed, &x, &(kind, dtype, tokens));
            }
        }
    }
}

#[test]
fn a_number_that_is_not_finite_spoils_its_token_and_no_other() {
    let packed = Packed::random(20, 17, Dtype::F16, 3);
    for seed in 0..3 {
        let x = activations(Kind::NotFinite, 9, packed.columns(), seed);
        for kernels in Kernels::available() {
            let found = product(kernels, &packed, &x, Precision::Bits16);
            for (token, outputs) in found.chunks(packed.rows).enumerate() {
                assert!(outputs.iter().all(|output| output.is_nan() == (token == 1)), "{token}");
            }
        }
    }
}

#[test]
fn the_largest_sums_of_a_group_are_exact() {
    for (code, sign) in [(-8, 1.0f32), (7, 1.0), (-8, -1.0), (7, -1.0)] {
        let packed = Packed::new(17, 17, vec![code; 17 * 17 * 32], vec![1.0; 17 * 17], Dtype::F16);
        for tokens in [1, 9] {
            check(&packed, &vec![sign * 1.5; tokens * packed.columns()], &(code, sign, tokens));
        }
    }
}

#[test]
fn zeros_give_zero_without_a_sign() {
    let packed = Packed::random(17, 19, Dtype::F32, 3);
    for tokens in [1, 2, 9] {
        let x = activations(Kind::NegativeZero, tokens, packed.columns(), 1);
        for kernels in Kernels::available() {
            let found = product(kernels, &packed, &x, Precision::Bits16);
            assert!(found.iter().all(|output| output.to_bits() == 0), "{}", kernels.name());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_shape(
        (rows, groups, tokens) in (1usize..40, 1usize..40, 1usize..20),
        dtype in select(DTYPES.to_vec()),
        kind in select(KINDS.to_vec()),
        seed: u64,
    ) {
        let packed = Packed::random(rows, groups, dtype, seed);
        let x = activations(kind, tokens, packed.columns(), seed);
        check(&packed, &x, &(rows, groups, tokens));
    }
}
