//! The canonical step of a group in a scale dtype: the number that is stored.

use w4pack_format::group::GROUP;
use w4pack_format::scale::ScaleDtype;

use super::Grid;
use super::interval::{Interval, UNITS};
use super::numbers::Numbers;

/// The step stored for a group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// The step, with its sign; a nonzero finite number of the scale dtype.
    pub value: f32,
    /// How many of the 32 values bf16(code·step) misses; 0 if and only if the step is exact.
    pub wrong: u8,
    /// Whether the step misses the exact interval by more than 2^-8 relative: the dtype's range
    /// does not reach, and the tensor needs f32 scales.
    pub out_of_range: bool,
}

/// The canonical step: the number of the dtype inside the interval that is nearest its middle,
/// else the one that reproduces most values (ties: least squared error); in both cases then the
/// smaller magnitude.
///
/// `levels` is asked for only if no number of the dtype lies inside.
#[inline]
pub(super) fn canonical(grid: &Grid, levels: impl FnOnce() -> Levels, dtype: ScaleDtype) -> Step {
    if let Some(value) = clearly_canonical(grid, dtype) {
        return Step { value, wrong: 0, out_of_range: false };
    }
    let sign = if grid.negative { -1.0 } else { 1.0 };
    let numbers = Numbers::of(dtype);
    let (magnitude, wrong) = match nearest_inside(&grid.interval, numbers) {
        Ok(magnitude) => (magnitude, 0),
        Err(around) => most_reproduced(&levels(), numbers, around),
    };
    Step {
        value: sign * magnitude,
        wrong,
        out_of_range: wrong > 0 && grid.interval.missed_widely(magnitude),
    }
}

/// [`canonical`] where an estimate leaves no doubt and the step gives all values; `None` says nothing.
#[inline(always)]
pub(super) fn clearly_canonical(grid: &Grid, dtype: ScaleDtype) -> Option<f32> {
    let magnitude = Numbers::of(dtype).clearly_nearest(grid.interval.middle())?;
    let sign = if grid.negative { -1.0 } else { 1.0 };
    grid.interval.contains(magnitude).then_some(sign * magnitude)
}

/// The neighbours of the interval's middle in a dtype: the last number at or below it (ordinal 0:
/// none but zero) and the next one above.
struct Around {
    down: u32,
    up: u32,
}

/// The magnitude inside the interval nearest its middle. The interval is symmetric about its
/// middle, so if it holds any number of the dtype it holds the nearer neighbour of the middle; only
/// when both are equally near can one sit on an open end and the other on a closed one.
fn nearest_inside(interval: &Interval, numbers: Numbers) -> Result<f32, Around> {
    let middle = interval.middle();
    let down = numbers.floor((middle / UNITS) as f32, |value| UNITS * f64::from(value) <= middle);
    let up = down + 1;
    let down_nearer = numbers.contains(down)
        && (!numbers.contains(up) || {
            // 34-bit numbers around one middle: the differences are exact.
            let below = middle - UNITS * f64::from(numbers.value(down));
            let above = UNITS * f64::from(numbers.value(up)) - middle;
            below <= above
        });
    let order = if down_nearer { [down, up] } else { [up, down] };
    order
        .into_iter()
        .filter(|&ordinal| numbers.contains(ordinal))
        .map(|ordinal| numbers.value(ordinal))
        .find(|&value| interval.contains(value))
        .ok_or(Around { down, up })
}

/// The best magnitude when none lies inside, and how many values it misses.
///
/// Every single value's interval contains the group's, so going away from it on either side only
/// loses values. The best count is therefore reached next to the interval; further out equal counts
/// can only win by squared error, which falls towards the vertex of its parabola and rises after
/// it. So each side is walked while the count stays and the vertex comes nearer.
///
/// Negative numbers of the dtype (positive for a negative step) reproduce only the zeros and lie
/// further from the vertex, which has the step's sign; they never win.
fn most_reproduced(levels: &Levels, numbers: Numbers, around: Around) -> (f32, u8) {
    let errors = SquaredError::of(levels);
    let wrong = |ordinal: u32| levels.wrong(numbers.value(ordinal));
    let nearer_low =
        |low: u32, high: u32| errors.low_at_most_high(numbers.value(low), numbers.value(high));

    let mut low = numbers.contains(around.down).then(|| (around.down, wrong(around.down)));
    while let Some((at, missed)) = low {
        let next = at - 1;
        if !numbers.contains(next) || wrong(next) > missed || !nearer_low(next, at) {
            break;
        }
        low = Some((next, missed));
    }
    let mut high = numbers.contains(around.up).then(|| (around.up, wrong(around.up)));
    while let Some((at, missed)) = high {
        let next = at + 1;
        if !numbers.contains(next) || wrong(next) > missed || nearer_low(at, next) {
            break;
        }
        high = Some((next, missed));
    }
    let (ordinal, missed) = match (low, high) {
        (Some(low), Some(high)) if low.1 != high.1 => {
            if low.1 < high.1 {
                low
            } else {
                high
            }
        }
        (Some(low), Some(high)) => {
            if nearer_low(low.0, high.0) {
                low
            } else {
                high
            }
        }
        (Some(only), None) | (None, Some(only)) => only,
        // One of two neighbouring ordinals, 0 to the last, is always a number of the dtype.
        (None, None) => unreachable!("a dtype without numbers"),
    };
    (numbers.value(ordinal), missed)
}

/// The values of a group by level: one product has one rounding, so all values at a level have one
/// magnitude.
pub(super) struct Levels {
    /// The bf16 magnitude at each level; 0 where the level does not occur, and at level 0.
    magnitudes: [u16; 9],
    /// How many of the 32 values are there.
    pub(super) counts: [u8; 9],
}

impl Levels {
    pub(super) fn of(bits: &[u16; GROUP], codes: &[i8; GROUP]) -> Self {
        let mut levels = Levels { magnitudes: [0; 9], counts: [0; 9] };
        for (bits, code) in bits.iter().zip(codes) {
            let level = usize::from(code.unsigned_abs());
            levels.magnitudes[level] = bits & 0x7fff;
            levels.counts[level] += 1;
        }
        levels
    }

    /// How many of the 32 values this step magnitude does not reproduce. Zeros (code 0) always are.
    pub(super) fn wrong(&self, magnitude: f32) -> u8 {
        (1..=8)
            .filter(|&level| self.counts[level] != 0)
            .filter(|&level| !Interval::of_level(level, self.magnitudes[level]).contains(magnitude))
            .map(|level| self.counts[level])
            .sum()
    }
}

/// The sum of (level·s - magnitude)² over the group as a function of s: a parabola with its
/// vertex at s = products/squares.
struct SquaredError {
    /// Sum of level·magnitude.
    products: f64,
    /// Sum of level².
    squares: f64,
}

impl SquaredError {
    fn of(levels: &Levels) -> Self {
        let mut errors = SquaredError { products: 0.0, squares: 0.0 };
        for level in 1..=8 {
            let count = f64::from(levels.counts[level]);
            let magnitude = f32::from_bits(u32::from(levels.magnitudes[level]) << 16);
            // 5 + 3 + 8 bits, and all magnitudes lie within a factor 16: exact, as is the sum.
            errors.products += count * level as f64 * f64::from(magnitude);
            errors.squares += count * (level * level) as f64;
        }
        errors
    }

    /// Whether the smaller of two numbers has at most the error of the larger, that is, whether
    /// their mean is not below the vertex: squares·(low + high) ≥ 2·products. At most 12 bits
    /// times 25 (two f32 near each other): exact.
    fn low_at_most_high(&self, low: f32, high: f32) -> bool {
        self.squares * (f64::from(low) + f64::from(high)) >= 2.0 * self.products
    }
}
