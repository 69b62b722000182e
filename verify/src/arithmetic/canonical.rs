//! The canonical step of a group in a dtype, found by walking the dtype's numbers.

use std::cell::LazyCell;
use std::cmp::Ordering;

use w4pack_format::scale::ScaleDtype;

use super::bf16;
use super::interval::Interval;
use super::numbers::{Number, Numbers};
use super::ratio::Ratio;
use super::recover::{GROUP, Grid};

/// The step of `dtype` that a group must store, as a magnitude.
///
/// If the exact step interval holds numbers of the dtype, the one nearest its middle (ties: the
/// smaller). Else the number that reproduces most values (ties: least squared error, then the
/// smaller), zero included: a caller must treat zero as "this dtype cannot serve".
pub fn canonical_step(grid: &Grid, values: &[u16; GROUP], dtype: ScaleDtype) -> Number {
    let numbers = Numbers::of(dtype);
    nearest_middle(&grid.steps, &numbers).unwrap_or_else(|| best_outside(grid, values, &numbers))
}

/// The number inside `steps` nearest its middle. It is one of the two numbers around the middle:
/// whatever lies further out on one side is farther away.
fn nearest_middle(steps: &Interval, numbers: &Numbers) -> Option<Number> {
    let middle = steps.middle();
    let below = numbers.floor(&middle);
    let above = numbers.next(below);
    let inside = |number: &Number| steps.contains(&number.ratio());
    match (Some(below).filter(inside), above.filter(inside)) {
        (Some(below), Some(above)) => {
            let nearer = nearer_to(&middle, below, above);
            Some(nearer)
        }
        (below, above) => below.or(above),
    }
}

/// Of two numbers the one nearer to `target`; the smaller one when both are equally near.
pub(super) fn nearer_to(target: &Ratio, smaller: Number, larger: Number) -> Number {
    // smaller is at least as near exactly when 2 * target <= smaller + larger.
    let exponent = smaller.exponent.min(larger.exponent);
    let aligned = |n: Number| u64::from(n.mantissa) << (n.exponent - exponent);
    let sum = Ratio::binary(aligned(smaller) + aligned(larger), exponent - 1);
    if target.compare(&sum) == Ordering::Greater { larger } else { smaller }
}

/// The number that reproduces most values when none reproduces all.
///
/// Only numbers from just below the lowest end of any value's own step interval to just above the
/// highest one can win: further out nothing is reproduced, and the squared error grows, because the
/// least-squares step is a weighted mean of `w / code`, which all lie between those ends. Since all
/// those intervals share the group's exact step interval, they span a few binades at most, and
/// few numbers of f16 or bf16. An f32 number lies in every exact step interval (its ends are
/// quotients of 10-bit integers by 1..=8), so this search never walks f32.
fn best_outside(grid: &Grid, values: &[u16; GROUP], numbers: &Numbers) -> Number {
    // A size of code stands for one value, so that the values of one size share an interval.
    let mut of_size: [Option<(Interval, u32)>; 9] = [None; 9];
    for (&bits, code) in values.iter().zip(&grid.codes).filter(|(_, code)| **code != 0) {
        let size = code.unsigned_abs();
        match &mut of_size[usize::from(size)] {
            Some((_, count)) => *count += 1,
            none => *none = Some((Interval::of_value(bf16::magnitude(bits), size), 1)),
        }
    }
    let coded = || of_size.iter().flatten();
    let lowest = extreme(coded().map(|(steps, _)| steps.low), Ordering::Less);
    let highest = extreme(coded().map(|(steps, _)| steps.high), Ordering::Greater);
    let least_squares = LazyCell::new(|| least_squares_step(&grid.codes, values));

    let mut candidate = numbers.floor(&lowest);
    let whole = WholeEnds::of(&of_size, candidate);
    let mut best = candidate;
    let mut most = 0;
    loop {
        let reproduced = match &whole {
            Some(ends) => ends.holding(candidate),
            None => {
                let step = candidate.ratio();
                coded().filter(|(steps, _)| steps.contains(&step)).map(|(_, n)| n).sum()
            }
        };
        // The squared error is a parabola in the step: less error means nearer to its vertex.
        if reproduced > most
            || (reproduced == most && nearer_to(&least_squares, best, candidate) == candidate)
        {
            (best, most) = (candidate, reproduced);
        }
        if candidate.ratio().compare(&highest) == Ordering::Greater {
            return best;
        }
        match numbers.next(candidate) {
            Some(next) => candidate = next,
            None => return best,
        }
    }
}

/// The ends of some step intervals as integers in one unit, to be compared with many candidates.
struct WholeEnds {
    /// By size of code: smallest and largest integer inside, and how many values the interval stands
    /// for; where the size does not occur, an interval that holds nothing.
    ends: [(i64, i64, u32); 9],
    /// The unit is an 840th of `2^exponent`.
    exponent: i32,
}

/// A multiple of every code size.
const COMMON: i64 = 840;

impl WholeEnds {
    /// In a unit of which `smallest`, the first candidate, and all ends are multiples; `None` where
    /// the numbers would grow too long.
    fn of(of_size: &[Option<(Interval, u32)>; 9], smallest: Number) -> Option<WholeEnds> {
        let exponents =
            of_size.iter().flatten().flat_map(|(s, _)| [s.low.exponent, s.high.exponent]);
        let exponent = exponents.min()?.min(smallest.exponent);
        // A dtype too coarse for these ends has its candidates far above them.
        if smallest.exponent - exponent > 20 {
            return None;
        }
        let whole = |end: &Ratio| {
            let shift = end.exponent - exponent;
            // Numerators below 2^11 times 840 below 2^21.
            let fits = end.numerator < 1 << 11 && shift <= 30;
            fits.then(|| (end.numerator as i64 * (COMMON / end.denominator as i64)) << shift)
        };
        let mut ends = [(1, 0, 0); 9];
        for (ends, size) in ends.iter_mut().zip(of_size) {
            let Some((steps, count)) = size else { continue };
            let low = whole(&steps.low)? + i64::from(!steps.low_closed);
            let high = whole(&steps.high)? - i64::from(!steps.high_closed);
            *ends = (low, high, *count);
        }
        Some(WholeEnds { ends, exponent })
    }

    /// How many values a step gives.
    fn holding(&self, step: Number) -> u32 {
        // Candidates lie within a few binades of the ends: at most 24 + 10 + some bits.
        let at = (i64::from(step.mantissa) * COMMON) << (step.exponent - self.exponent);
        let inside = self.ends.iter().filter(|(low, high, _)| *low <= at && at <= *high);
        inside.map(|(.., count)| count).sum()
    }
}

/// The smallest (`Less`) or largest (`Greater`) of some ratios; zero if there are none.
fn extreme(ratios: impl Iterator<Item = Ratio>, wanted: Ordering) -> Ratio {
    ratios
        .reduce(|best, next| if next.compare(&best) == wanted { next } else { best })
        .unwrap_or(Ratio::binary(0, 0))
}

/// `sum(code * w) / sum(code^2)` with magnitudes: the step with the least squared error.
pub(super) fn least_squares_step(codes: &[i8; GROUP], values: &[u16; GROUP]) -> Ratio {
    let coded = || {
        let pairs = values.iter().zip(codes).filter(|(_, code)| **code != 0);
        pairs.map(|(&bits, code)| (bf16::magnitude(bits), u64::from(code.unsigned_abs())))
    };
    // Values with nonzero codes lie within a factor of 16 of each other, give or take a rounding.
    let exponent = coded().map(|(value, _)| value.exponent).min().unwrap_or(0);
    let product = |(value, code): (bf16::Magnitude, u64)| {
        (u64::from(value.significand) * code) << (value.exponent - exponent)
    };
    let numerator = coded().map(product).sum();
    let denominator = coded().map(|(_, code)| code * code).sum();
    Ratio { numerator, denominator, exponent }
}
