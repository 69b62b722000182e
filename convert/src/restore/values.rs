//! bf16(code·step): the value that a code stands for, rounded once.

use w4pack_format::group::NIBBLE_OFFSET;

/// The bf16 bit patterns of the 16 codes under a step, by nibble (code + 8). Code 0 gives +0.0.
pub(super) fn by_nibble(step: f32) -> [u16; 16] {
    std::array::from_fn(|nibble| match nibble as i8 - NIBBLE_OFFSET {
        0 => 0,
        code => rounded(f64::from(code) * f64::from(step)),
    })
}

/// The bf16 number nearest to `product`, half to even, as its bits.
///
/// A code has 4 bits and a step at most 24, so their product is exact in f64. On its way to bf16's
/// 8 bits it passes f32's 24, and rounding twice would err where the first rounding makes a tie of
/// what was none. So the first one rounds to odd: what is inexact gets a last bit of 1, which is no
/// tie.
fn rounded(product: f64) -> u16 {
    let nearest = product as f32;
    let mut bits = nearest.to_bits();
    if f64::from(nearest) != product {
        if f64::from(nearest).abs() > product.abs() {
            bits -= 1;
        }
        bits |= 1;
    }
    let round_up = 0x7fff + (bits >> 16 & 1);
    ((bits + round_up) >> 16) as u16
}

#[cfg(test)]
mod tests {
    use half::bf16;
    use proptest::prelude::*;

    use super::*;

    /// The nearest of the neighbours, by exact comparison: products and half-way points both fit
    /// f64.
    fn by_definition(product: f64) -> u16 {
        let magnitude = product.abs();
        let truncated = (magnitude as f32).to_bits() >> 16;
        let candidates = [truncated.saturating_sub(1), truncated, truncated + 1];
        let value = |bits: u32| f64::from(bf16::from_bits(bits as u16));
        let nearest = candidates.into_iter().min_by(|&one, &other| {
            let distance = |bits| (value(bits) - magnitude).abs();
            distance(one).total_cmp(&distance(other)).then((one & 1).cmp(&(other & 1)))
        });
        nearest.unwrap() as u16 | if product < 0.0 { 0x8000 } else { 0 }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        #[test]
        fn products_are_rounded_once(bits in 0_u32..0x7e00_0000, code in -8_i8..=7) {
            let step = f32::from_bits(bits);
            let found = by_nibble(step)[(code + 8) as usize];
            let product = f64::from(code) * f64::from(step);
            let expected = if code == 0 { 0 } else { by_definition(product) };
            prop_assert_eq!(found, expected, "{} * {:e}", code, step);
        }

        /// Steps whose threefold lies within f32's last place of a half-way point.
        #[test]
        fn near_ties_are_told_from_ties(significand in 0x80_u32..0x100, off in -2_i32..=2) {
            let half_way = f64::from(2 * significand + 1);
            let step = f32::from_bits(((half_way / 3.0) as f32).to_bits().wrapping_add_signed(off));
            let found = by_nibble(step)[8 + 3];
            prop_assert_eq!(found, by_definition(3.0 * f64::from(step)));
        }
    }
}
