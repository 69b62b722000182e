//! One stored group against its 32 source values.

use w4pack_format::scale::ScaleDtype;

use super::bf16;
use super::canonical::canonical_step;
use super::confirm::Settled;
use super::interval::Interval;
use super::look::Look;
use super::numbers::Number;
use super::recover::{GROUP, Grid, Recovery, recover};

/// What a group of the result is found to be.
#[derive(Clone, Debug)]
pub struct Judgement {
    /// What the source values are.
    pub source: SourceGroup,
    /// Bit `i` set: the stored code of element `i` is not the recovered one.
    pub codes_disagreeing: u32,
    /// Bit `i` set: bf16(code * step) is not the source value.
    pub elements_differing: u32,
    /// The largest `|bf16(code * step) - w| / |step|`; infinite when a product overflows.
    pub worst: f64,
    /// The stored step.
    pub step: StepFinding,
}

/// What the source values of a group are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SourceGroup {
    /// All 32 values are zero.
    Zero,
    /// On the grid.
    OnGrid {
        /// More than one peak level works with a step of the chosen sign.
        many_peaks: bool,
        /// No code is -8, so that the turned codes with the turned step work as well.
        sign_free: bool,
    },
    /// No codes and no step give the values.
    OffGrid,
    /// A value is infinite or not a number.
    NotFinite {
        /// Its place in the group, 0..32.
        element: usize,
    },
}

/// What a stored step is found to be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum StepFinding {
    /// The canonical step of its dtype.
    Canonical {
        /// `None` when it lies inside the exact step interval; else the canonical f32 step, which
        /// does, so that the group can be restored.
        finer: Option<f32>,
    },
    /// The canonical step of its dtype, but more than 2^-8 off the exact step interval: by the rule
    /// of the grid the whole tensor's scales must then be f32.
    DtypeTooCoarse,
    /// A usable number, but not the canonical step.
    NotCanonical {
        /// The canonical step of its dtype.
        canonical: f32,
        /// Whether it lies inside the exact step interval all the same.
        inside: bool,
    },
    /// Zero, infinite or not a number.
    Unusable,
    /// The source group has no grid, so that there is no canonical step.
    NoGrid,
}

/// Compares stored codes and a stored step (of `dtype`, given exactly as f32) with what the 32
/// source values demand.
pub fn judge(
    values: &[u16; GROUP],
    codes: &[i8; GROUP],
    step: f32,
    dtype: ScaleDtype,
) -> Judgement {
    judge_after(&Look::at(values, codes), values, codes, step, dtype)
}

/// [`judge`] after a look at the group.
pub fn judge_after(
    look: &Look,
    values: &[u16; GROUP],
    codes: &[i8; GROUP],
    step: f32,
    dtype: ScaleDtype,
) -> Judgement {
    if let Some(Settled { many_peaks, sign_free }) = look.settled(step, dtype) {
        let source = SourceGroup::OnGrid { many_peaks, sign_free };
        let step = StepFinding::Canonical { finer: None };
        return Judgement { source, codes_disagreeing: 0, elements_differing: 0, worst: 0.0, step };
    }
    let confirmed = look.confirm(codes, step < 0.0).map(Recovery::OnGrid);
    let (source, expected, finding) = match confirmed.unwrap_or_else(|| recover(values)) {
        Recovery::NotFinite { element } => {
            (SourceGroup::NotFinite { element }, None, StepFinding::NoGrid)
        }
        Recovery::OffGrid => (SourceGroup::OffGrid, None, StepFinding::NoGrid),
        Recovery::Zero => (SourceGroup::Zero, Some([0; GROUP]), zero_group_step(step)),
        Recovery::OnGrid(grid) => {
            let source = SourceGroup::OnGrid {
                many_peaks: grid.peaks.count_ones() > 1,
                sign_free: !grid.codes.contains(&-8),
            };
            (source, Some(grid.codes), step_of_grid(&grid, values, step, dtype))
        }
    };
    let codes_disagreeing = expected.map_or(u32::MAX, |expected| mask(|i| expected[i] != codes[i]));
    // Right codes with a step inside the exact interval give every value: that is what it says.
    let exact = codes_disagreeing == 0
        && matches!(
            finding,
            StepFinding::Canonical { finer: None } | StepFinding::NotCanonical { inside: true, .. }
        );
    let (elements_differing, worst) =
        if exact { (0, 0.0) } else { differences(values, codes, step) };
    Judgement { source, codes_disagreeing, elements_differing, worst, step: finding }
}

fn mask(set: impl Fn(usize) -> bool) -> u32 {
    (0..GROUP).fold(0, |bits, i| bits | u32::from(set(i)) << i)
}

fn is_usable(step: f32) -> bool {
    step.is_finite() && step != 0.0
}

/// An all-zero group stores 1.0; every usable step reproduces it.
fn zero_group_step(step: f32) -> StepFinding {
    if step == 1.0 {
        StepFinding::Canonical { finer: None }
    } else if is_usable(step) {
        StepFinding::NotCanonical { canonical: 1.0, inside: true }
    } else {
        StepFinding::Unusable
    }
}

fn step_of_grid(grid: &Grid, values: &[u16; GROUP], step: f32, dtype: ScaleDtype) -> StepFinding {
    if !is_usable(step) {
        return StepFinding::Unusable;
    }
    let signed = |size: Number| if grid.negative { -size.to_f32() } else { size.to_f32() };
    let canonical = canonical_step(grid, values, dtype);
    let stored = Number::of_f32(step);
    let right_sign = (step < 0.0) == grid.negative;
    let inside = right_sign && grid.steps.contains(&stored.ratio());
    if signed(canonical) != step {
        StepFinding::NotCanonical { canonical: signed(canonical), inside }
    } else if inside {
        StepFinding::Canonical { finer: None }
    } else if is_near(&grid.steps, stored) {
        let finer = canonical_step(grid, values, ScaleDtype::F32);
        StepFinding::Canonical { finer: Some(signed(finer)) }
    } else {
        StepFinding::DtypeTooCoarse
    }
}

/// Whether a step lies in the interval after its ends have moved out by 2^-8 of their size.
fn is_near(steps: &Interval, step: Number) -> bool {
    // 255/256 and 257/256 of the ends; numerators grow by 9 bits from at most 10 or so.
    let mut wider = *steps;
    wider.low.numerator *= 255;
    wider.low.exponent -= 8;
    wider.high.numerator *= 257;
    wider.high.exponent -= 8;
    wider.low_closed = true;
    wider.high_closed = true;
    wider.contains(&step.ratio())
}

/// Which values bf16(code * step) misses, and by how many steps at most.
fn differences(values: &[u16; GROUP], codes: &[i8; GROUP], step: f32) -> (u32, f64) {
    // Codes -8..=7: each product is computed once.
    let products: [u16; 16] = std::array::from_fn(|i| product(i as i8 - 8, step));
    let product = |i: usize| products[usize::from((codes[i] + 8) as u8 & 15)];
    let mut worst = 0f64;
    let differing = mask(|i| {
        let product = product(i);
        product != values[i] && !(bf16::is_zero(product) && bf16::is_zero(values[i]))
            || !bf16::is_finite(product)
    });
    for i in (0..GROUP).filter(|i| differing >> i & 1 == 1) {
        let distance = (to_f64(product(i)) - to_f64(values[i])).abs();
        let in_steps = distance / f64::from(step.abs());
        // A step of zero or not-a-number measures nothing; say so with infinity.
        worst = if in_steps.is_nan() { f64::INFINITY } else { worst.max(in_steps) };
    }
    (differing, worst)
}

/// The exact product of a code and a step, rounded once to bf16.
pub fn product(code: i8, step: f32) -> u16 {
    let negative = (code < 0) != step.is_sign_negative();
    if !step.is_finite() {
        // Infinity keeps its sign; zero times infinity and not-a-number stay not-a-number.
        let number = code != 0 && step.is_infinite();
        return if number { u16::from(negative) << 15 | 0x7F80 } else { 0x7FC0 };
    }
    let size = Number::of_f32(step);
    bf16::round(negative, u64::from(size.mantissa) * u64::from(code.unsigned_abs()), size.exponent)
}

/// A bf16 number as f64, exactly.
fn to_f64(bits: u16) -> f64 {
    f64::from(f32::from_bits(u32::from(bits) << 16))
}
