//! Groups that cannot be packed, and how near to the grid they come.

use std::fmt;

use half::bf16;
use w4pack_format::group::GROUP;

/// Why a group has no codes.
#[derive(Clone, Debug, PartialEq)]
pub enum Misfit {
    /// A value is NaN or infinite.
    NotFinite {
        /// Its place in the group, 0 to 31.
        element: usize,
        /// What stands there.
        value: f32,
    },
    /// No step, of either sign, reproduces all 32 values.
    OffGrid(NearestFit),
}

/// The peak level and sign whose grid comes nearest to an off-grid group.
///
/// Computed in f64 for the message alone; no decision rests on it.
#[derive(Clone, Debug, PartialEq)]
pub struct NearestFit {
    /// The step: the group's largest magnitude over the peak level, with its sign.
    pub step: f64,
    /// The value that lies furthest from this grid, as its place in the group.
    pub element: usize,
    /// That value.
    pub value: f32,
    /// The nearest code to it on this grid.
    pub code: i8,
    /// How far the value is from code·step, in steps.
    pub distance: f64,
}

impl NearestFit {
    /// Tries all peak levels and both signs; the group holds a nonzero value and no NaN.
    pub(super) fn of(bits: &[u16; GROUP]) -> NearestFit {
        let values = bits.map(|bits| bf16::from_bits(bits).to_f32());
        let largest = values.iter().fold(0.0_f32, |peak, value| peak.max(value.abs()));
        let grids = [1.0, -1.0]
            .into_iter()
            .flat_map(|sign| (1..=8).map(move |peak| sign * f64::from(largest) / f64::from(peak)));
        grids
            .map(|step| Self::worst_value(&values, step))
            .min_by(|one, other| one.distance.total_cmp(&other.distance))
            .expect("sixteen grids were tried")
    }

    fn worst_value(values: &[f32; GROUP], step: f64) -> NearestFit {
        values
            .iter()
            .enumerate()
            .map(|(element, &value)| {
                let in_steps = f64::from(value) / step;
                let code = in_steps.round_ties_even().clamp(-8.0, 7.0);
                let distance = (in_steps - code).abs();
                NearestFit { step, element, value, code: code as i8, distance }
            })
            .max_by(|one, other| one.distance.total_cmp(&other.distance))
            .expect("a group has 32 values")
    }
}

impl fmt::Display for Misfit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Misfit::NotFinite { element, value } => {
                write!(formatter, "element {element} is {value}")
            }
            Misfit::OffGrid(fit) => write!(
                formatter,
                "no step reproduces its 32 values; the nearest grid has step {:e}, where element \
                 {} ({:e}) lies {:.3} steps from code {}",
                fit.step, fit.element, fit.value, fit.distance, fit.code
            ),
        }
    }
}
