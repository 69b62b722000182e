//! What readers that round on their way make of a group.
//!
//! w4pack multiplies code and step without rounding, so only the stored step decides how many
//! values bf16(code·step) misses; that count comes with the step. Others round more often:
//! - transformers' `dequantize` multiplies in the step's dtype and casts the product to bf16;
//! - readers that work in bf16 (vLLM, transformers' default path) cast the step first.

use half::f16;
use w4pack_format::group::GROUP;
use w4pack_format::scale::ScaleDtype;

/// How many of a group's values a reader gives back as another number than the source's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Differing {
    /// Multiplying in the step's dtype.
    pub product_in_scale_dtype: u8,
    /// Casting the step to bf16.
    pub scale_in_bf16: u8,
}

/// Between these magnitudes of a step all products with codes are normal f16 numbers.
const PLAIN_F16: std::ops::RangeInclusive<f32> = 6.103_515_6e-5..=8188.0;

/// Counts for a group of bf16 bit patterns, its codes and its stored step.
///
/// Every value in its lane: a table of the eight levels, looked up by code, took twice as long.
#[inline(always)]
pub(super) fn differing(
    bits: &[u16; GROUP],
    codes: &[i8; GROUP],
    step: f32,
    dtype: ScaleDtype,
) -> Differing {
    let narrow = f32::from_bits(to_bf16(step.to_bits()) & 0xffff_0000);
    let step = if dtype == ScaleDtype::BF16 { narrow } else { step };
    if dtype == ScaleDtype::F16 && !PLAIN_F16.contains(&step.abs()) {
        let by_half = |product: f32| f16::from_f32(product).to_f32().to_bits();
        return count(bits, codes, step, narrow, by_half);
    }
    // Rounding to f16 leaves its last bits of f32's; the other dtypes' products stay as they are.
    let cut = if dtype == ScaleDtype::F16 { 0x1fff } else { 0 };
    count(bits, codes, step, narrow, |product| {
        let product = product.to_bits();
        (product + (cut >> 1) + (product >> 13 & cut & 1)) & !cut
    })
}

#[inline(always)]
fn count(
    bits: &[u16; GROUP],
    codes: &[i8; GROUP],
    step: f32,
    narrow: f32,
    rounded: impl Fn(f32) -> u32,
) -> Differing {
    let (mut in_dtype, mut in_bf16) = (0_u32, 0_u32);
    for lane in 0..GROUP {
        let code = f32::from(codes[lane]);
        // Magnitudes tell: a code has the sign that its value has, and zeros are equal.
        let value = u32::from(bits[lane]) << 16;
        let differs = |found: u32| u32::from((found ^ value) & 0x7fff_0000 != 0);
        in_dtype += differs(to_bf16(rounded(code * step)));
        in_bf16 += differs(to_bf16((code * narrow).to_bits()));
    }
    Differing { product_in_scale_dtype: in_dtype as u8, scale_in_bf16: in_bf16 as u8 }
}

/// The nearest bf16 number, half to even, of f32's bit pattern: the upper half of what it gives.
#[inline(always)]
fn to_bf16(bits: u32) -> u32 {
    bits + 0x7fff + (bits >> 16 & 1)
}

#[cfg(test)]
mod tests {
    use half::bf16;
    use proptest::prelude::*;

    use super::super::leaves::Leaf;
    use super::*;

    /// By the half crate's conversions, one value at a time.
    fn by_definition(
        bits: &[u16; GROUP],
        codes: &[i8; GROUP],
        step: f32,
        dtype: ScaleDtype,
    ) -> Differing {
        let wrong = |value: &dyn Fn(f32) -> f32| {
            let pairs = codes.iter().zip(bits);
            let differs = |&(&code, &bits): &(&i8, &u16)| {
                bf16::from_f32(value(f32::from(code))) != bf16::from_bits(bits)
            };
            pairs.filter(differs).count() as u8
        };
        let narrow = bf16::from_f32(step).to_f32();
        Differing {
            product_in_scale_dtype: match dtype {
                ScaleDtype::F16 => wrong(&|code| f16::from_f32(code * step).to_f32()),
                ScaleDtype::F32 => wrong(&|code| code * step),
                ScaleDtype::BF16 => wrong(&|code| code * narrow),
            },
            scale_in_bf16: wrong(&|code| code * narrow),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        #[test]
        fn every_leaf_counts_what_the_definition_counts(
            codes in prop::array::uniform32(-8_i8..=7),
            fraction in 1.0_f32..2.0,
            exponent in prop_oneof![4 => -12..10, 1 => -26..17],
            negative: bool,
            dtype in prop::sample::select(ScaleDtype::ALL.to_vec()),
        ) {
            let true_step = fraction * 2.0_f32.powi(exponent) * if negative { -1.0 } else { 1.0 };
            let bits = codes.map(|code| bf16::from_f32(f32::from(code) * true_step).to_bits());
            let mut stored = vec![0; dtype.bytes()];
            dtype.write_to(true_step, &mut stored);
            let step = dtype.read(&stored);
            prop_assume!(step.is_finite());
            let expected = by_definition(&bits, &codes, step, dtype);
            for leaf in Leaf::available() {
                let found = (leaf.differing)(&bits, &codes, step, dtype);
                prop_assert_eq!(found, expected, "{}: {} {:e}", leaf.name, dtype, step);
            }
        }
    }
}
