//! One value at a time, in integers: groups whose values are so large or so small that `lanes.rs`
//! does not judge them. They follow the definition word for word, smallest peak first.
//!
//! With a positive step codes have the signs of their values, with a negative step the opposite
//! ones, and the levels (their magnitudes) are the same. Codes reach from -8 to 7, so the sign of
//! the step is free up to peak level 7 (and positive is tried first); at level 8 the values there
//! decide it. Trying the peaks 1 to 8 once therefore equals trying all of them with a positive step
//! first and then all with a negative one.

use w4pack_format::group::GROUP;

use super::interval::Interval;
use super::lanes::Fit;

/// The codes of a group that holds a nonzero value and no NaN or infinity.
pub(super) fn fit(bits: &[u16; GROUP]) -> Option<Fit> {
    (1..=8).find_map(|peak| fit_peak(bits, peak))
}

fn fit_peak(bits: &[u16; GROUP], peak: u8) -> Option<Fit> {
    let largest = bits.iter().fold(0, |largest, &bits| largest.max(bits & 0x7fff));
    let mut interval: Option<Interval> = None;
    let mut codes = [0_i8; GROUP];
    for (code, &bits) in codes.iter_mut().zip(bits) {
        let magnitude = bits & 0x7fff;
        let level = level_of(magnitude, largest, peak);
        if level == 0 {
            if magnitude != 0 {
                return None;
            }
            continue;
        }
        let steps = Interval::of_level(usize::from(level), magnitude);
        match &mut interval {
            Some(interval) => interval.intersect(steps),
            None => interval = Some(steps),
        }
        *code = if bits >> 15 == 1 { -(level as i8) } else { level as i8 };
    }
    let interval = interval.filter(|interval| !interval.is_empty())?;
    let negative = codes.contains(&8);
    if negative && codes.contains(&-8) {
        return None;
    }
    if negative {
        codes = codes.map(|code| -code);
    }
    Some(Fit { codes, peak, negative, interval })
}

/// magnitude·peak/largest, rounded half to even.
fn level_of(magnitude: u16, largest: u16, peak: u8) -> u8 {
    let (significand, exponent) = split(magnitude);
    let (largest_significand, largest_exponent) = split(largest);
    // The exponents of bf16 are at most 253 apart; beyond 12 the ratio is below 8·2·2^-12 < 1/2
    // (a significand is below 2^8, and above 2^7 - 1 unless both are subnormal: no gap).
    let gap = largest_exponent - exponent;
    if gap > 12 {
        return 0;
    }
    // 8 + 4 bits above, 8 + 12 + 1 bits below: far from overflow.
    let numerator = u64::from(significand) * u64::from(peak);
    let denominator = u64::from(largest_significand) << gap;
    let (whole, rest) = (numerator / denominator, numerator % denominator);
    let up = match (2 * rest).cmp(&denominator) {
        std::cmp::Ordering::Less => 0,
        std::cmp::Ordering::Equal => whole & 1,
        std::cmp::Ordering::Greater => 1,
    };
    // The magnitude is at most the largest, so the level is at most `peak`.
    (whole + up) as u8
}

/// A bf16 magnitude as significand (0 to 255) and biased exponent (subnormals share that of 1).
fn split(magnitude: u16) -> (u16, u32) {
    let exponent = u32::from(magnitude >> 7);
    let fraction = magnitude & 0x7f;
    if exponent == 0 { (fraction, 1) } else { (fraction | 0x80, exponent) }
}

#[cfg(test)]
mod tests {
    use half::bf16;
    use proptest::prelude::*;

    use super::super::lanes::Judged;
    use super::super::leaves::Leaf;
    use super::fit;

    /// Codes over small and large ranges, with common factors, and then perhaps one value moved.
    fn groups() -> impl Strategy<Value = [u16; 32]> {
        let codes = prop_oneof![
            4 => prop::array::uniform32(-8_i32..=8),
            2 => (1_i32..=8).prop_flat_map(|peak| prop::array::uniform32(-peak..=peak)),
            2 => (1_i32..=4).prop_flat_map(|factor| {
                let most = 8 / factor;
                prop::array::uniform32((-most..=most).prop_map(move |code| code * factor))
            }),
            1 => prop::array::uniform32(prop_oneof![9 => Just(0), 1 => -8_i32..=8]),
        ];
        let moved = prop::option::weighted(0.5, (0_usize..32, -2_i16..=2));
        (codes, 0.5_f64..1.0, -90_i32..90, moved).prop_map(|(codes, step, exponent, moved)| {
            let step = step * 2.0_f64.powi(exponent);
            let mut bits = codes.map(|code| bf16::from_f64(f64::from(code) * step).to_bits());
            if let Some((element, by)) = moved.filter(|&(element, _)| bits[element] & 0x7fff > 2) {
                bits[element] = bits[element].wrapping_add_signed(by);
            }
            bits
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        #[test]
        fn every_leaf_agrees_with_one_value_at_a_time(bits in groups()) {
            let expected = if bits.iter().all(|bits| bits & 0x7fff == 0) {
                Judged::Zero
            } else {
                fit(&bits).map_or(Judged::Misfit, Judged::Fits)
            };
            for leaf in Leaf::available() {
                prop_assert_eq!((leaf.judge)(&bits), expected, "{}", leaf.name);
            }
        }
    }

    /// Two values tell everything about a pair of levels: all pairs of significands, in two
    /// neighbouring binades and one further down.
    #[test]
    fn every_leaf_agrees_on_all_pairs_of_magnitudes() {
        for largest in 0x3f80..0x4000_u16 {
            for other in 0x3d00..=largest {
                let mut bits = [0; 32];
                (bits[7], bits[20]) = (largest, other | 0x8000);
                let expected = fit(&bits).map_or(Judged::Misfit, Judged::Fits);
                for leaf in Leaf::available() {
                    assert_eq!(
                        (leaf.judge)(&bits),
                        expected,
                        "{}: {largest:x} {other:x}",
                        leaf.name
                    );
                }
            }
        }
    }
}
