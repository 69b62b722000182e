//! Exact positive rationals with a binary exponent, compared by cross multiplication.

use std::cmp::Ordering;

/// `numerator / denominator * 2^exponent`, exactly. Zero is allowed, negative numbers are not.
///
/// `numerator` stays below 2^40 and `denominator` below 2^20 everywhere in this crate, so that a
/// cross product fits 60 bits and comparing never rounds and never overflows.
#[derive(Clone, Copy, Debug)]
pub struct Ratio {
    /// Below 2^40.
    pub numerator: u64,
    /// At least 1, below 2^20.
    pub denominator: u64,
    /// Power of two that multiplies the quotient.
    pub exponent: i32,
}

impl Ratio {
    /// `mantissa * 2^exponent`.
    pub fn binary(mantissa: u64, exponent: i32) -> Ratio {
        Ratio { numerator: mantissa, denominator: 1, exponent }
    }

    /// This number divided by `divisor` (at least 1).
    pub fn divided_by(self, divisor: u64) -> Ratio {
        Ratio { denominator: self.denominator * divisor, ..self }
    }

    /// Compares two exact numbers.
    pub fn compare(&self, other: &Ratio) -> Ordering {
        let left = self.numerator * other.denominator;
        let right = other.numerator * self.denominator;
        compare_binary(left, self.exponent, right, other.exponent)
    }
}

/// Compares `left * 2^left_exponent` with `right * 2^right_exponent`; both mantissas are below 2^63.
fn compare_binary(left: u64, left_exponent: i32, right: u64, right_exponent: i32) -> Ordering {
    let shift = left_exponent - right_exponent;
    if shift < 0 {
        return compare_binary(right, right_exponent, left, left_exponent).reverse();
    }
    if left == 0 || right == 0 {
        return left.cmp(&right);
    }
    if left.leading_zeros() as i32 > shift {
        // The usual case, in machine words.
        return (left << shift).cmp(&right);
    }
    // A nonzero number shifted this far is larger than anything below 2^63.
    if shift >= 64 {
        return Ordering::Greater;
    }
    (u128::from(left) << shift).cmp(&u128::from(right))
}
