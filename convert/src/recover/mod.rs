//! The grid of a group: from 32 bf16 values to codes and step, exactly.
//!
//! Google stored bf16(code·step) with codes in -8..=7 and one step for 32 neighbours of a row.
//! [`recover`] finds the codes and the interval of all real steps that give these very values;
//! [`Recovered::step`] picks the canonical number of a dtype from it. The convention: a positive
//! step and the smallest peak level (largest code magnitude) that works; only if none does, a
//! negative step.
//!
//! Read in this order: [`interval`](self) arithmetic in `interval.rs` (why everything is exact),
//! `exactly.rs` (the definition, value by value), `lanes.rs` (the same for 32 values at once, and
//! why four peaks are enough), `step.rs` (which number is stored), `settle.rs` (all of it at a stroke,
//! for the usual group), `avx2.rs` (that again, by hand).

#[cfg(target_arch = "x86_64")]
mod avx2;
mod exactly;
mod interval;
mod lanes;
mod leaves;
mod misfit;
mod numbers;
mod readers;
mod settle;
mod step;

pub use interval::{End, Interval};
pub use leaves::Leaf;
pub use misfit::{Misfit, NearestFit};
pub use readers::Differing;
pub use settle::Settled;
pub use step::Step;

use lanes::{Fit, Judged};
use w4pack_format::group::GROUP;
use w4pack_format::scale::ScaleDtype;

/// Codes of a group and all steps that go with them.
#[derive(Clone, Debug)]
pub struct Recovered {
    /// The codes, each in -8..=7, free of common factors.
    pub codes: [i8; GROUP],
    /// The grid they lie on. `None`: all values are zero, every step is right and 1.0 is stored.
    pub grid: Option<Grid>,
    bits: [u16; GROUP],
}

/// The peak level and the step of a group that is not all zero.
#[derive(Clone, Copy, Debug)]
pub struct Grid {
    /// The largest code magnitude, 1 to 8.
    pub peak: u8,
    /// Whether the step is negative.
    pub negative: bool,
    /// The exact interval of the step's magnitude.
    pub interval: Interval,
}

/// First bf16 magnitude that is no finite number.
const INFINITE: u16 = 0x7f80;

/// Finds the codes of a group of bf16 bit patterns, by the processor's best means.
///
/// Zeros of both signs have code 0. Errors: a NaN or infinity; a group off the grid.
pub fn recover(bits: &[u16; GROUP]) -> Result<Recovered, Misfit> {
    Leaf::best().recover(bits)
}

impl Leaf {
    /// What [`recover`] does, by these means.
    pub fn recover(self, bits: &[u16; GROUP]) -> Result<Recovered, Misfit> {
        Recovered::of((self.judge)(bits), bits)
    }
}

impl Recovered {
    #[inline]
    fn of(judged: Judged, bits: &[u16; GROUP]) -> Result<Recovered, Misfit> {
        let fit = match judged {
            Judged::Fits(fit) => fit,
            Judged::Zero => return Ok(Recovered { codes: [0; GROUP], grid: None, bits: *bits }),
            Judged::Misfit => return Err(misfit(bits)),
            Judged::Unusual if not_finite(bits).is_some() => return Err(misfit(bits)),
            Judged::Unusual => exactly::fit(bits).ok_or_else(|| misfit(bits))?,
        };
        let Fit { codes, peak, negative, interval } = fit;
        Ok(Recovered { codes, grid: Some(Grid { peak, negative, interval }), bits: *bits })
    }
}

/// The first value that is no number.
fn not_finite(bits: &[u16; GROUP]) -> Option<usize> {
    bits.iter().position(|bits| bits & 0x7fff >= INFINITE)
}

fn misfit(bits: &[u16; GROUP]) -> Misfit {
    match not_finite(bits) {
        Some(element) => {
            let value = half::bf16::from_bits(bits[element]).to_f32();
            Misfit::NotFinite { element, value }
        }
        None => Misfit::OffGrid(NearestFit::of(bits)),
    }
}

impl Recovered {
    /// The canonical step in a dtype; 1.0 for an all-zero group.
    pub fn step(&self, dtype: ScaleDtype) -> Step {
        match &self.grid {
            Some(grid) => step::canonical(grid, || self.levels(), dtype),
            None => Step { value: 1.0, wrong: 0, out_of_range: false },
        }
    }

    /// Whether this step, sign included, reproduces all 32 values.
    pub fn reproduced_by(&self, step: f32) -> bool {
        match &self.grid {
            Some(grid) => grid.negative == (step < 0.0) && grid.interval.contains(step.abs()),
            None => step.is_finite(),
        }
    }

    /// How many of the 32 values bf16(code·step) misses, for a finite step.
    pub fn values_wrong(&self, step: f32) -> u8 {
        match &self.grid {
            Some(grid) if grid.negative == (step < 0.0) => self.levels().wrong(step.abs()),
            Some(_) => GROUP as u8 - self.levels().counts[0],
            None => 0,
        }
    }

    /// How many of the 32 values other readers miss, for the stored step of a dtype.
    pub fn differing(&self, step: &Step, dtype: ScaleDtype) -> Differing {
        (Leaf::best().differing)(&self.bits, &self.codes, step.value, dtype, step.wrong == 0)
    }

    /// The peak level: the largest code magnitude, 0 to 8.
    pub fn peak(&self) -> usize {
        self.grid.map_or(0, |grid| usize::from(grid.peak))
    }

    fn levels(&self) -> step::Levels {
        step::Levels::of(&self.bits, &self.codes)
    }
}
