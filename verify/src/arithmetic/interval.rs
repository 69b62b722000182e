//! The steps that reproduce a set of values: an interval with exact ends.

use std::cmp::Ordering;

use super::bf16::{Magnitude, rounding_range};
use super::ratio::Ratio;

/// Step magnitudes between two exact ends, each of which may belong to the interval or not.
#[derive(Clone, Copy, Debug)]
pub struct Interval {
    /// Smallest step.
    pub low: Ratio,
    /// Whether `low` itself belongs to it.
    pub low_closed: bool,
    /// Largest step.
    pub high: Ratio,
    /// Whether `high` itself belongs to it.
    pub high_closed: bool,
}

impl Interval {
    /// The steps `s` for which `code * s` rounds to `value`; `code` is a magnitude of 1..=8.
    pub fn of_value(value: Magnitude, code: u8) -> Interval {
        let range = rounding_range(value);
        Interval {
            low: range.low.divided_by(u64::from(code)),
            low_closed: range.closed,
            high: range.high.divided_by(u64::from(code)),
            high_closed: range.closed,
        }
    }

    /// The steps in both intervals, or `None` when there are none.
    pub fn intersect(self, other: Interval) -> Option<Interval> {
        let (low, low_closed) = match self.low.compare(&other.low) {
            Ordering::Greater => (self.low, self.low_closed),
            Ordering::Less => (other.low, other.low_closed),
            Ordering::Equal => (self.low, self.low_closed && other.low_closed),
        };
        let (high, high_closed) = match self.high.compare(&other.high) {
            Ordering::Less => (self.high, self.high_closed),
            Ordering::Greater => (other.high, other.high_closed),
            Ordering::Equal => (self.high, self.high_closed && other.high_closed),
        };
        let holds_something = match low.compare(&high) {
            Ordering::Less => true,
            Ordering::Equal => low_closed && high_closed,
            Ordering::Greater => false,
        };
        holds_something.then_some(Interval { low, low_closed, high, high_closed })
    }

    /// Whether a step belongs to the interval.
    pub fn contains(&self, step: &Ratio) -> bool {
        let above_low = match step.compare(&self.low) {
            Ordering::Greater => true,
            Ordering::Equal => self.low_closed,
            Ordering::Less => false,
        };
        let below_high = match step.compare(&self.high) {
            Ordering::Less => true,
            Ordering::Equal => self.high_closed,
            Ordering::Greater => false,
        };
        above_low && below_high
    }

    /// The point half-way between the ends.
    pub fn middle(&self) -> Ratio {
        let (low, high) = (self.low, self.high);
        if (low.denominator, low.exponent) == (high.denominator, high.exponent) {
            let numerator = low.numerator + high.numerator;
            return Ratio { numerator, exponent: low.exponent - 1, ..low };
        }
        // The ends of one group's interval lie within a few binades of each other, so that putting
        // both on the smaller exponent keeps the sum far below 2^40.
        let exponent = low.exponent.min(high.exponent);
        let low_numerator = low.numerator << (low.exponent - exponent);
        let high_numerator = high.numerator << (high.exponent - exponent);
        Ratio {
            numerator: low_numerator * high.denominator + high_numerator * low.denominator,
            denominator: low.denominator * high.denominator,
            exponent: exponent - 1,
        }
    }
}
