//! How far outputs are from sums in f64.

use crate::support::*;
use w4pack_kernels::cpu::{Kernels, Precision};

/// The largest difference over the root of the mean square of the outputs.
fn error(packed: &Packed, x: &[f32], precision: Precision) -> f64 {
    let expected = in_f64(packed, x);
    let found = product(Kernels::best(), packed, x, precision);
    let squares: f64 = expected.iter().map(|y| y * y).sum();
    let size = (squares / expected.len() as f64).sqrt();
    let difference = |(&found, &y): (&f32, &f64)| (f64::from(found) - y).abs();
    found.iter().zip(&expected).map(difference).fold(0.0, f64::max) / size
}

/// The shapes of E2B's rows; a matrix of the full height would take long in f64.
const GROUPS: [usize; 5] = [8, 48, 64, 192, 384];

#[test]
fn sixteen_bits_are_within_2e4_of_the_outputs() {
    for groups in GROUPS {
        let packed = Packed::even(512, groups, 11);
        // In a row of 256 elements one outlier may be all there is.
        let with_outliers = if groups == 8 { 3e-4 } else { 2e-4 };
        for (kind, allowed) in [(Kind::Normal, 1e-4), (Kind::Outliers, with_outliers)] {
            let x = activations(kind, 2, packed.columns(), 12);
            let error = error(&packed, &x, Precision::Bits16);
            println!("{groups} groups, {kind:?}: {error:.1e}");
            assert!(error > 0.0 && error <= allowed, "{groups} groups, {kind:?}: {error}");
        }
    }
}

#[test]
fn tiny_and_huge_activations_keep_their_accuracy() {
    for scale in [1e-27f32, 1e27] {
        let packed = Packed::even(64, 48, 11);
        let mut x = activations(Kind::Normal, 1, packed.columns(), 12);
        x.iter_mut().for_each(|x| *x *= scale);
        let error = error(&packed, &x, Precision::Bits16);
        assert!(error <= 1e-4, "{scale}: {error}");
    }
}
