//! The grid of a group: from 32 bf16 values to codes and step, exactly.
//!
//! Google stored bf16(code·step) with codes in -8..=7 and one step for 32 neighbours of a row.
//! [`recover`] finds the codes and the interval of all real steps that give these very values;
//! [`Recovered::step`] picks the canonical number of a dtype from it. The convention: a positive
//! step and the smallest peak level (largest code magnitude) that works; only if none does, a
//! negative step.
//!
//! Read in this order: [`interval`](self) arithmetic in `interval.rs` (why everything is exact),
//! `levels.rs` (which value has which code), `step.rs` (which number is stored).

mod interval;
mod levels;
mod misfit;
mod numbers;
mod step;

pub use interval::{End, Interval};
pub use levels::Levels;
pub use misfit::{Misfit, NearestFit};
pub use step::Step;

use levels::Candidate;
use w4pack_format::group::GROUP;
use w4pack_format::scale::ScaleDtype;

/// Codes of a group and all steps that go with them.
#[derive(Clone, Debug)]
pub struct Recovered {
    /// The codes, each in -8..=7, free of common factors.
    pub codes: [i8; GROUP],
    /// Which value is at which level, and the exact interval of the step. `None`: all values are
    /// zero, every step is right and 1.0 is stored.
    pub levels: Option<Levels>,
}

/// First bf16 magnitude that is no finite number.
const INFINITE: u16 = 0x7f80;

/// Finds the codes of a group of bf16 bit patterns.
///
/// Zeros of both signs have code 0. Errors: a NaN or infinity; a group off the grid.
pub fn recover(bits: &[u16; GROUP]) -> Result<Recovered, Misfit> {
    let candidate = Candidate::new(bits);
    if candidate.peak_magnitude() == 0 {
        return Ok(Recovered { codes: [0; GROUP], levels: None });
    }
    if candidate.peak_magnitude() >= INFINITE {
        return Err(not_finite(bits));
    }
    (1..=8)
        .find_map(|peak| {
            let of_values = candidate.levels_of(peak)?;
            let levels = candidate.settle(&of_values, peak)?;
            Some(Recovered {
                codes: codes(bits, &of_values, levels.negative),
                levels: Some(levels),
            })
        })
        .ok_or_else(|| Misfit::OffGrid(NearestFit::of(bits)))
}

/// Levels with signs: that of the value, turned round under a negative step.
fn codes(bits: &[u16; GROUP], levels: &[u8; GROUP], negative_step: bool) -> [i8; GROUP] {
    let turned = i8::from(negative_step);
    std::array::from_fn(|i| {
        let negative = ((bits[i] >> 15) as i8) ^ turned;
        // -x = !x + 1 without a branch: xor with -1 and subtract -1.
        ((levels[i] as i8) ^ -negative) + negative
    })
}

fn not_finite(bits: &[u16; GROUP]) -> Misfit {
    let element = bits.iter().position(|bits| bits & 0x7fff >= INFINITE).unwrap_or_default();
    Misfit::NotFinite { element, value: half::bf16::from_bits(bits[element]).to_f32() }
}

impl Recovered {
    /// The canonical step in a dtype; 1.0 for an all-zero group.
    pub fn step(&self, dtype: ScaleDtype) -> Step {
        match &self.levels {
            Some(levels) => step::canonical(levels, || self.counts(), dtype),
            None => Step { value: 1.0, wrong: 0, out_of_range: false },
        }
    }

    /// Whether this step, sign included, reproduces all 32 values.
    pub fn reproduced_by(&self, step: f32) -> bool {
        match &self.levels {
            Some(levels) => levels.negative == (step < 0.0) && levels.interval.contains(step.abs()),
            None => step.is_finite(),
        }
    }

    /// How many of the 32 values bf16(code·step) misses, for a finite step.
    pub fn values_wrong(&self, step: f32) -> u8 {
        match &self.levels {
            Some(levels) if levels.negative == (step < 0.0) => {
                step::values_wrong(levels, &self.counts(), step.abs())
            }
            Some(_) => GROUP as u8 - self.counts()[0],
            None => 0,
        }
    }

    /// The peak level: the largest code magnitude, 0 to 8.
    pub fn peak(&self) -> usize {
        let present = |levels: &Levels| levels.magnitudes.iter().rposition(|&bits| bits != 0);
        self.levels.as_ref().and_then(present).unwrap_or_default()
    }

    /// How many of the 32 values are at each level.
    fn counts(&self) -> [u8; 9] {
        let mut counts = [0; 9];
        for code in self.codes {
            counts[usize::from(code.unsigned_abs())] += 1;
        }
        counts
    }
}
