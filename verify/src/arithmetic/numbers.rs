//! The numbers of a step dtype, in order: the largest one not above a ratio, and neighbours.

use w4pack_format::scale::ScaleDtype;

use super::ratio::Ratio;

/// The non-negative finite numbers of a binary floating-point dtype.
#[derive(Clone, Copy, Debug)]
pub struct Numbers {
    /// Significant bits, the hidden one included.
    precision: u32,
    /// Exponent of the last place of the subnormals.
    last_place: i32,
    /// The largest finite number.
    largest: Number,
}

/// A non-negative number `mantissa * 2^exponent` of some dtype.
///
/// Numbers made by one [`Numbers`] are canonical: `mantissa` has all its bits or `exponent` is the
/// last place of the subnormals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Number {
    /// At most 24 bits.
    pub mantissa: u32,
    /// Power of two that multiplies the mantissa.
    pub exponent: i32,
}

impl Number {
    /// The magnitude of a finite f32.
    pub fn of_f32(step: f32) -> Number {
        let bits = step.to_bits();
        let field = (bits >> 23 & 0xFF) as i32;
        let fraction = bits & 0x007F_FFFF;
        let hidden = if field == 0 { 0 } else { 1 << 23 };
        Number { mantissa: fraction | hidden, exponent: field.max(1) - 150 }
    }

    /// The same number as an f32; every number of the three step dtypes is one.
    pub fn to_f32(self) -> f32 {
        // Exact in f64: 24 bits, exponents within -149..=104.
        (f64::from(self.mantissa) * 2f64.powi(self.exponent)) as f32
    }

    /// The same number as a ratio.
    pub fn ratio(self) -> Ratio {
        Ratio::binary(u64::from(self.mantissa), self.exponent)
    }
}

impl Numbers {
    /// The numbers of a stored scale's dtype.
    pub fn of(dtype: ScaleDtype) -> Numbers {
        let (precision, last_place, largest_exponent) = match dtype {
            ScaleDtype::F16 => (11, -24, 5),
            ScaleDtype::BF16 => (8, -133, 120),
            ScaleDtype::F32 => (24, -149, 104),
        };
        let largest = Number { mantissa: (1 << precision) - 1, exponent: largest_exponent };
        Numbers { precision, last_place, largest }
    }

    /// How many binades the distance to the next larger number is above `number`'s own last place,
    /// for a number of this dtype as [`Number::of_f32`] gives it.
    pub fn places_to_next(&self, number: Number) -> i32 {
        (24 - self.precision as i32).max(self.last_place - number.exponent)
    }

    /// The largest number that is not above `ratio`.
    pub fn floor(&self, ratio: &Ratio) -> Number {
        // Guess the exponent of the last place from the lengths; the quotient then has one bit
        // more or less than wanted, which the second look settles.
        let length = |x: u64| 64 - x.leading_zeros() as i32;
        let binade = length(ratio.numerator) - length(ratio.denominator) + ratio.exponent;
        let mut exponent = (binade - self.precision as i32).max(self.last_place);
        let mut mantissa = quotient(ratio, exponent);
        if mantissa >> self.precision != 0 {
            exponent += 1;
            mantissa = quotient(ratio, exponent);
        }
        let found = Number { mantissa: mantissa as u32, exponent };
        if exponent > self.largest.exponent { self.largest } else { found }
    }

    /// The next larger number, or `None` after the largest.
    pub fn next(&self, number: Number) -> Option<Number> {
        if number == self.largest {
            return None;
        }
        let mantissa = number.mantissa + 1;
        if mantissa >> self.precision == 0 {
            return Some(Number { mantissa, ..number });
        }
        Some(Number { mantissa: mantissa >> 1, exponent: number.exponent + 1 })
    }
}

/// The integer part of `ratio / 2^exponent`.
fn quotient(ratio: &Ratio, exponent: i32) -> u64 {
    let shift = ratio.exponent - exponent;
    if shift >= 0 && ratio.numerator.leading_zeros() as i32 > shift {
        // The usual case, in machine words.
        return (ratio.numerator << shift) / ratio.denominator;
    }
    let (numerator, denominator) = (u128::from(ratio.numerator), u128::from(ratio.denominator));
    if shift >= 0 {
        // `exponent` lies at most `precision` binades below the quotient's first bit.
        ((numerator << shift) / denominator) as u64
    } else if shift > -100 {
        (numerator / (denominator << -shift)) as u64
    } else {
        0
    }
}
