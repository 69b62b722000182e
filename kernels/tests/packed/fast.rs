//! Activations of 8 bits: coarser, and by how much.

use crate::support::*;
use w4pack_kernels::cpu::{Kernels, Precision};

#[test]
fn eight_bits_are_within_5_percent_of_the_outputs_and_much_coarser_than_sixteen() {
    for (kind, allowed) in [(Kind::Normal, 2.5e-2), (Kind::Outliers, 5e-2)] {
        let packed = Packed::even(512, 48, 21);
        let x = activations(kind, 2, packed.columns(), 22);
        let expected = in_f64(&packed, &x);
        let squares: f64 = expected.iter().map(|y| y * y).sum();
        let size = (squares / expected.len() as f64).sqrt();
        let error = |precision| {
            let found = product(Kernels::best(), &packed, &x, precision);
            let differences = found.iter().zip(&expected).map(|(&a, b)| (f64::from(a) - b).abs());
            differences.fold(0.0, f64::max) / size
        };
        let (coarse, fine) = (error(Precision::Bits8), error(Precision::Bits16));
        println!("{kind:?}: {coarse:.1e} for {fine:.1e}");
        assert!(coarse <= allowed && coarse > 50.0 * fine, "{kind:?}: {coarse}, {fine}");
    }
}
