//! The usual group at a stroke: on the grid, with a number of the scale dtype clearly nearest the
//! middle of its interval and inside it. From the source's bytes to packed words, stored step and
//! counts, without leaving the vector registers for more than a few numbers.
//!
//! What is not so usual is nothing here: all-zero groups, steps that miss the interval, estimates
//! in doubt. [`recover`](super::recover) has the last word on those, and gives the same for these.

use w4pack_format::group::{GROUP, NIBBLE_OFFSET, PACKED_BYTES};
use w4pack_format::scale::ScaleDtype;

use super::Grid;
use super::lanes::{Fit, Judged, bits_of, judge};
use super::readers::{self, Differing};
use super::step;

/// What a conversion writes and counts of a group whose stored step is exact.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settled {
    /// The codes, packed as they lie in the file.
    pub words: [u8; PACKED_BYTES],
    /// The canonical step: nonzero, finite, gives all 32 values.
    pub step: f32,
    /// The largest magnitude of a code, 1 to 8.
    pub peak: u8,
    /// How many codes are 0.
    pub zeros: u8,
    /// How many zeros are -0.0.
    pub negative_zeros: u8,
    /// What other readers make of it.
    pub differing: Differing,
}

/// Settles groups as they lie in a file, one behind the other; `None` where it takes more.
#[inline(always)]
pub(super) fn settle_all(
    groups: &[[u8; 2 * GROUP]],
    dtype: ScaleDtype,
    settled: &mut [Option<Settled>],
) {
    for (bytes, settled) in groups.iter().zip(settled) {
        *settled = settle(&bits_of(bytes), dtype);
    }
}

#[inline(always)]
pub(super) fn settle(bits: &[u16; GROUP], dtype: ScaleDtype) -> Option<Settled> {
    let Judged::Fits(Fit { codes, peak, negative, interval }) = judge(bits) else { return None };
    let step = step::clearly_canonical(&Grid { peak, negative, interval }, dtype)?;
    let (mut zeros, mut negative_zeros) = (0, 0);
    // As narrow as the elements, each in a loop of its own: so the lanes stay together.
    for code in codes {
        zeros += u8::from(code == 0);
    }
    for &bits in bits {
        negative_zeros += u16::from(bits == 0x8000);
    }
    Some(Settled {
        words: packed(&codes),
        step,
        peak,
        zeros,
        negative_zeros: negative_zeros as u8,
        differing: readers::differing(bits, &codes, step, dtype, true),
    })
}

/// Codes as nibbles, the first in the lower half of its byte: what
/// [`pack`](w4pack_format::group::pack) gives, in lanes of 16 bits.
#[inline(always)]
fn packed(codes: &[i8; GROUP]) -> [u8; PACKED_BYTES] {
    let mut words = [0; PACKED_BYTES];
    let (pairs, _) = codes.as_chunks::<2>();
    for (byte, [low, high]) in words.iter_mut().zip(pairs) {
        // Adding 8 to four bits turns the highest one round.
        let pair = u16::from_le_bytes([*low as u8, *high as u8]);
        let nibbles = (pair & 0x0f0f) ^ (0x0101 * NIBBLE_OFFSET as u16);
        *byte = (nibbles | nibbles >> 4) as u8;
    }
    words
}

#[cfg(test)]
mod tests {
    use half::bf16;
    use proptest::prelude::*;
    use w4pack_format::group::{pack, words_to_bytes};

    use super::super::leaves::Leaf;
    use super::*;

    fn groups() -> impl Strategy<Value = [u16; GROUP]> {
        let codes = prop_oneof![
            4 => prop::array::uniform32(-8_i32..=7),
            2 => (1_i32..=7).prop_flat_map(|peak| prop::array::uniform32(-peak..=peak)),
            1 => prop::array::uniform32(prop_oneof![9 => Just(0), 1 => -8_i32..=7]),
        ];
        let signs = prop_oneof![3 => Just(0_u32), 1 => any::<u32>()];
        (codes, 0.5_f64..1.0, -40_i32..20, any::<bool>(), signs).prop_map(
            |(codes, step, exponent, short, signs)| {
                let step = step * 2.0_f64.powi(exponent);
                let step = if short { f64::from(half::f16::from_f64(step)) } else { step };
                let mut bits = codes.map(|code| bf16::from_f64(f64::from(code) * step).to_bits());
                for (place, bits) in bits.iter_mut().enumerate() {
                    if *bits & 0x7fff == 0 {
                        *bits = (signs >> place & 1) as u16 * 0x8000;
                    }
                }
                bits
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        #[test]
        fn what_is_settled_is_what_recovery_says(
            bits in groups(),
            dtype in prop::sample::select(ScaleDtype::ALL.to_vec()),
        ) {
            let mut bytes = [0; 2 * GROUP];
            for (bytes, bits) in bytes.chunks_exact_mut(2).zip(bits) {
                bytes.copy_from_slice(&bits.to_le_bytes());
            }
            for leaf in Leaf::available() {
                let mut settled = [None];
                leaf.settle(&[bytes], dtype, &mut settled);
                let by_definition = settle(&bits, dtype);
                let [Some(settled)] = settled else {
                    // By hand only codes with 1 or -1 among them are settled, unless reduced.
                    let usual = |settled: Settled| {
                        let nibbles = settled.words.iter().flat_map(|byte| [byte & 15, byte >> 4]);
                        settled.peak > 4 && nibbles.into_iter().any(|code| [7, 9].contains(&code))
                    };
                    prop_assert!(!by_definition.is_some_and(usual), "{} leaves it", leaf.name);
                    continue;
                };
                prop_assert_eq!(Some(settled), by_definition);
                let recovered = leaf.recover(&bits).unwrap();
                let step = recovered.step(dtype);
                prop_assert_eq!((step.value, step.wrong), (settled.step, 0));
                prop_assert_eq!(words_to_bytes(&pack(&recovered.codes)), settled.words);
                prop_assert_eq!(recovered.peak(), usize::from(settled.peak));
                prop_assert_eq!(recovered.differing(&step, dtype), settled.differing);
                let zeros = recovered.codes.iter().filter(|code| **code == 0).count();
                prop_assert_eq!(zeros, usize::from(settled.zeros));
                let negative = bits.iter().filter(|bits| **bits == 0x8000).count();
                prop_assert_eq!(negative, usize::from(settled.negative_zeros));
            }
        }
    }

    /// Otherwise the test above would hold of nothing.
    #[test]
    fn nearly_every_usual_group_is_settled() {
        let mut settled = 0;
        for number in 0..1000_u32 {
            let step = 0.01 + f32::from(number as u16) * 1e-5;
            let step = half::f16::from_f32(step).to_f32();
            let bits = std::array::from_fn(|place| {
                let code = (place as i32 * 5 + number as i32) % 16 - 8;
                bf16::from_f32(code as f32 * step).to_bits()
            });
            settled += u32::from(settle(&bits, ScaleDtype::F16).is_some());
        }
        assert!(settled > 900, "{settled}");
    }
}
