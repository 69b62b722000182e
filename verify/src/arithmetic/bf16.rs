//! bf16 numbers taken apart: which reals round to one, and which one a product rounds to.

use super::ratio::Ratio;

/// Exponent of the last place of bf16's subnormal numbers.
pub const LAST_PLACE: i32 = -133;

/// The magnitude of a finite bf16 number: `significand * 2^exponent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Magnitude {
    /// 0..=255; below 128 only for subnormals and zero.
    pub significand: u32,
    /// At least [`LAST_PLACE`].
    pub exponent: i32,
}

/// Whether these bf16 bits are neither infinite nor not-a-number.
pub fn is_finite(bits: u16) -> bool {
    bits & 0x7F80 != 0x7F80
}

/// Whether the number is +0.0 or -0.0.
pub fn is_zero(bits: u16) -> bool {
    bits & 0x7FFF == 0
}

/// Whether the sign bit is set (also for -0.0).
pub fn is_negative(bits: u16) -> bool {
    bits & 0x8000 != 0
}

/// Takes a finite number apart.
pub fn magnitude(bits: u16) -> Magnitude {
    let field = i32::from(bits >> 7 & 0xFF);
    let fraction = u32::from(bits & 0x7F);
    let hidden = if field == 0 { 0 } else { 128 };
    Magnitude { significand: fraction + hidden, exponent: field.max(1) - 1 + LAST_PLACE }
}

/// The reals that round to a magnitude under round-half-even, from the half-way point below it to
/// the one above it.
pub struct RoundingRange {
    /// Half-way point to the next smaller number; 0 for zero itself.
    pub low: Ratio,
    /// Half-way point to the next larger number.
    pub high: Ratio,
    /// Whether the half-way points themselves round here: they go to the even significand.
    pub closed: bool,
}

/// The range of reals that round to `value`.
pub fn rounding_range(value: Magnitude) -> RoundingRange {
    let significand = u64::from(value.significand);
    let high = Ratio::binary(2 * significand + 1, value.exponent - 1);
    let low = if significand == 0 {
        Ratio::binary(0, value.exponent)
    } else if significand == 128 && value.exponent > LAST_PLACE {
        // Below a power of two the numbers lie twice as dense.
        Ratio::binary(4 * significand - 1, value.exponent - 2)
    } else {
        Ratio::binary(2 * significand - 1, value.exponent - 1)
    };
    RoundingRange { low, high, closed: significand.is_multiple_of(2) }
}

/// Rounds `mantissa * 2^exponent` (mantissa below 2^40) to bf16, half to even, once. Beyond the
/// largest number the answer is infinity, as in any IEEE conversion.
pub fn round(negative: bool, mantissa: u64, exponent: i32) -> u16 {
    let sign = if negative { 0x8000 } else { 0 };
    if mantissa == 0 {
        return sign;
    }
    let bits = 64 - mantissa.leading_zeros() as i32;
    // The exponent of the result's last place: 8 significant bits, but never below the subnormals'.
    let mut place = (exponent + bits - 8).max(LAST_PLACE);
    let dropped = place - exponent;
    let mut significand = if dropped <= 0 {
        mantissa << -dropped
    } else if dropped > 48 {
        0
    } else {
        let kept = mantissa >> dropped;
        let rest = mantissa & ((1 << dropped) - 1);
        let half = 1 << (dropped - 1);
        kept + u64::from(rest > half || (rest == half && kept & 1 == 1))
    };
    if significand == 256 {
        significand = 128;
        place += 1;
    }
    if significand < 128 {
        // Subnormal or zero: the exponent field is 0.
        return sign | significand as u16;
    }
    let field = place - LAST_PLACE + 1;
    if field >= 255 {
        sign | 0x7F80
    } else {
        sign | (field as u16) << 7 | (significand as u16 & 0x7F)
    }
}
