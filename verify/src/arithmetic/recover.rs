//! Recovering a group's codes from its 32 bf16 values.

use super::bf16::{self, Magnitude};
use super::interval::Interval;

/// Values of a group.
pub const GROUP: usize = w4pack_format::group::GROUP;

/// What the 32 values of a group turn out to be.
#[derive(Clone, Debug)]
pub enum Recovery {
    /// Every value is +0.0 or -0.0: all codes are 0 and the step is 1.0 by convention.
    Zero,
    /// The values are a step times integers in -8..=7, each product rounded once to bf16.
    OnGrid(Grid),
    /// No step and no codes give these values.
    OffGrid,
    /// A value is infinite or not a number.
    NotFinite {
        /// Its place in the group, 0..32.
        element: usize,
    },
}

/// The codes of a group and every step that reproduces its values with them.
#[derive(Clone, Debug)]
pub struct Grid {
    /// In -8..=7.
    pub codes: [i8; GROUP],
    /// Whether the step is negative.
    pub negative: bool,
    /// The exact step interval, as magnitudes.
    pub steps: Interval,
    /// Bit `m - 1` is set when peak level `m` reproduces the values with a step of this sign. The
    /// codes are those of the lowest bit.
    pub peaks: u8,
}

/// Recovers codes by the rule of the grid: the smallest peak level `m` in 1..=8 for which a
/// positive step reproduces all values; only if there is none, the same with a negative step.
///
/// With a negative step the codes only turn their signs, so the magnitudes of the codes and the
/// step interval of a peak level are those of the positive step. Both signs differ in one thing:
/// -8 is a code and +8 is not. A peak level below 8 therefore works for both signs or for neither,
/// and the negative step is needed exactly when the values reach level 8 on the positive side only.
pub fn recover(values: &[u16; GROUP]) -> Recovery {
    if let Some(element) = values.iter().position(|&bits| !bf16::is_finite(bits)) {
        return Recovery::NotFinite { element };
    }
    let peak = values.iter().map(|bits| bits & 0x7FFF).max().unwrap_or(0);
    if peak == 0 {
        return Recovery::Zero;
    }
    let mut found: Option<Grid> = None;
    for level in 1..=8 {
        let Some((sizes, steps)) = levels(values, bf16::magnitude(peak), level) else { continue };
        let reaches_eight = |negative_side: bool| {
            (0..GROUP).any(|i| sizes[i] == 8 && bf16::is_negative(values[i]) == negative_side)
        };
        let negative = match (reaches_eight(false), reaches_eight(true)) {
            (false, _) => false,
            (true, false) => true,
            (true, true) => continue,
        };
        match &mut found {
            Some(grid) if grid.negative == negative => grid.peaks |= 1 << (level - 1),
            Some(_) => {}
            None => {
                let codes = std::array::from_fn(|i| {
                    let down = bf16::is_negative(values[i]) != negative;
                    if down { -(sizes[i] as i8) } else { sizes[i] as i8 }
                });
                found = Some(Grid { codes, negative, steps, peaks: 1 << (level - 1) });
            }
        }
    }
    found.map_or(Recovery::OffGrid, Recovery::OnGrid)
}

/// Whether a group of any size lies on a 4-bit grid, under a step of either sign.
pub fn is_on_grid<const N: usize>(values: &[u16; N]) -> bool {
    if values.iter().any(|&bits| !bf16::is_finite(bits)) {
        return false;
    }
    let peak = values.iter().map(|bits| bits & 0x7FFF).max().unwrap_or(0);
    let works = |level| {
        levels(values, bf16::magnitude(peak), level).is_some_and(|(sizes, _)| {
            let reaches_eight = |negative: bool| {
                let pairs = sizes.iter().zip(values);
                pairs
                    .into_iter()
                    .any(|(size, &bits)| *size == 8 && bf16::is_negative(bits) == negative)
            };
            !(reaches_eight(false) && reaches_eight(true))
        })
    };
    peak == 0 || (1..=8).any(works)
}

/// The code sizes `round(|w| / (peak / level))` and the steps that reproduce every value with them,
/// or `None` when no step does.
fn levels<const N: usize>(
    values: &[u16; N],
    peak: Magnitude,
    level: u32,
) -> Option<([u8; N], Interval)> {
    let mut sizes = [0; N];
    // A size times a step rounds to one value only: two values of one size rule the level out,
    // and equal values narrow the steps once.
    let mut value_of_size = [0u16; 9];
    let mut steps: Option<Interval> = None;
    for (size, &bits) in sizes.iter_mut().zip(values) {
        let bits = bits & 0x7FFF;
        if bits == 0 {
            continue;
        }
        let value = bf16::magnitude(bits);
        *size = nearest_level(value, peak, level);
        if *size == 0 {
            // Nothing but zero has code 0.
            return None;
        }
        let known = &mut value_of_size[usize::from(*size)];
        if *known == bits {
            continue;
        }
        if *known != 0 {
            return None;
        }
        *known = bits;
        let own = Interval::of_value(value, *size);
        steps = Some(match steps {
            Some(so_far) => so_far.intersect(own)?,
            None => own,
        });
    }
    steps.map(|steps| (sizes, steps))
}

/// `value * level / peak` rounded to an integer, half to even; at most `level`.
fn nearest_level(value: Magnitude, peak: Magnitude, level: u32) -> u8 {
    let binades = peak.exponent - value.exponent;
    if binades > 12 {
        // Below 8 * 255 / (128 * 2^12), far from a half.
        return 0;
    }
    let dividend = value.significand * level;
    let divisor = peak.significand << binades;
    let (quotient, rest) = (dividend / divisor, dividend % divisor);
    let up = 2 * rest > divisor || (2 * rest == divisor && quotient % 2 == 1);
    (quotient + u32::from(up)) as u8
}
