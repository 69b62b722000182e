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
pub(super) const PLAIN_F16: std::ops::RangeInclusive<f32> = 6.103_515_6e-5..=8188.0;

/// Counts for a group of bf16 bit patterns, its codes and its stored step; `exact` says that this
/// step gives all 32 values.
#[inline(always)]
pub(super) fn differing(
    bits: &[u16; GROUP],
    codes: &[i8; GROUP],
    step: f32,
    dtype: ScaleDtype,
    exact: bool,
) -> Differing {
    let narrow = f32::from_bits(to_bf16(step.to_bits()) & 0xffff_0000);
    let is_plain = PLAIN_F16.contains(&step.abs());
    match dtype {
        ScaleDtype::F16 if exact && is_plain => by_level(codes, step.abs(), narrow.abs()),
        ScaleDtype::F16 if is_plain => count(bits, codes, step, narrow, plain_f16),
        ScaleDtype::F16 => {
            let by_half = |product: f32| f16::from_f32(product).to_f32().to_bits();
            count(bits, codes, step, narrow, by_half)
        }
        // Eleven bits are enough for a code times such a step.
        ScaleDtype::BF16 if exact => Differing::default(),
        ScaleDtype::BF16 => count(bits, codes, narrow, narrow, f32::to_bits),
        ScaleDtype::F32 => count(bits, codes, step, narrow, f32::to_bits),
    }
}

/// The bit pattern of the f16 number nearest a product that f16 holds as a normal number: rounding
/// leaves it the last bits that f32 has more.
#[inline(always)]
fn plain_f16(product: f32) -> u32 {
    let product = product.to_bits();
    (product + 0xfff + (product >> 13 & 1)) & !0x1fff
}

/// [`count`] for an f16 step that gives all values. Then a level (a code's magnitude) has one value,
/// bf16(level·step), whose product has 15 bits and is exact in f32: the eight levels are judged, and
/// the codes say how often each occurs.
#[inline(always)]
fn by_level(codes: &[i8; GROUP], step: f32, narrow: f32) -> Differing {
    // Bit `level` of the lower half: the product in f16 misses; of the upper half: that of bf16.
    // Sixteen lanes, of which nine are asked for: eight the compiler would take apart one by one.
    let mut lanes = [0_u32; 16];
    for (level, lane) in lanes.iter_mut().enumerate() {
        let level = level as u32;
        let product = level as f32 * step;
        let value = to_bf16(product.to_bits());
        let differs = |found: u32| u32::from((found ^ value) & 0x7fff_0000 != 0);
        let in_f16 = differs(to_bf16(plain_f16(product)));
        let in_bf16 = differs(to_bf16((level as f32 * narrow).to_bits()));
        *lane = (in_f16 | in_bf16 << 16) << level;
    }
    let mut missed = 0;
    for lane in lanes {
        missed |= lane;
    }
    let mut both = 0;
    for &code in codes {
        both += missed >> (code.unsigned_abs() & 15) & 0x0001_0001;
    }
    Differing { product_in_scale_dtype: both as u8, scale_in_bf16: (both >> 16) as u8 }
}

/// Every value in its lane, where nothing is known of the step.
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
            stored_exactly: bool,
            dtype in prop::sample::select(ScaleDtype::ALL.to_vec()),
        ) {
            let mut true_step = fraction * 2.0_f32.powi(exponent) * if negative { -1.0 } else { 1.0 };
            if stored_exactly {
                let mut stored = vec![0; dtype.bytes()];
                dtype.write_to(true_step, &mut stored);
                true_step = dtype.read(&stored);
                prop_assume!(true_step.is_finite() && true_step != 0.0);
            }
            let bits = codes.map(|code| bf16::from_f32(f32::from(code) * true_step).to_bits());
            let mut stored = vec![0; dtype.bytes()];
            dtype.write_to(true_step, &mut stored);
            let step = dtype.read(&stored);
            prop_assume!(step.is_finite());
            let expected = by_definition(&bits, &codes, step, dtype);
            // A code times a step of 16 bits is exact in f32; of f32 steps nothing is concluded.
            let gives = |(&code, &bits): (&i8, &u16)| {
                bf16::from_f32(f32::from(code) * step) == bf16::from_bits(bits)
            };
            let is_exact = dtype == ScaleDtype::F32 || codes.iter().zip(&bits).all(gives);
            for leaf in Leaf::available() {
                let found = (leaf.differing)(&bits, &codes, step, dtype, false);
                prop_assert_eq!(found, expected, "{}: {} {:e}", leaf.name, dtype, step);
                if is_exact {
                    let found = (leaf.differing)(&bits, &codes, step, dtype, true);
                    prop_assert_eq!(found, expected, "{}, exact: {} {:e}", leaf.name, dtype, step);
                }
            }
        }
    }
}
