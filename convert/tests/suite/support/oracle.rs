//! The definition of the grid, spelled out in integers: slow and meant to be obviously right.
//!
//! All numbers of one [`Oracle`] are whole multiples of 2^unit; half-way points are compared with
//! both sides doubled. Numbers too large for the unit are left out and must be far away.

use half::{bf16, f16};
use w4pack_format::scale::ScaleDtype;

/// 2^100.
const LIMIT: f64 = 1_267_650_600_228_229_401_496_703_205_376.0;

/// A fraction with a positive denominator.
#[derive(Clone, Copy, Debug)]
pub struct Fraction(pub i128, pub i128);

/// What the definition says about a group.
#[derive(Debug)]
pub struct Grid {
    pub codes: [i8; 32],
    pub negative: bool,
    pub low: Fraction,
    pub high: Fraction,
}

#[derive(Debug, PartialEq)]
pub struct BestStep {
    pub value: f32,
    pub wrong: u8,
}

pub struct Oracle {
    /// 2^-unit.
    units_in_one: f64,
}

impl Oracle {
    pub fn new(unit: i32) -> Self {
        Oracle { units_in_one: 2.0_f64.powi(-unit) }
    }

    /// `value` in units, if it is a whole number of them below 2^100.
    fn whole(&self, value: f32) -> Option<i128> {
        let scaled = f64::from(value) * self.units_in_one;
        (scaled.fract() == 0.0 && scaled.abs() < LIMIT).then_some(scaled as i128)
    }

    fn bf16(&self, bits: u16) -> i128 {
        self.whole(bf16::from_bits(bits).to_f32()).expect("the group fits the unit")
    }

    /// Twice the half-way points around a magnitude, and whether they round to it.
    fn around(&self, magnitude: u16) -> (i128, i128, bool) {
        let (below, at, above) =
            (self.bf16(magnitude - 1), self.bf16(magnitude), self.bf16(magnitude + 1));
        (below + at, at + above, magnitude & 1 == 0)
    }

    /// Whether bf16(code·step) is the value of these bits; zeros of both signs are equal.
    fn reproduces(&self, code: i8, step: i128, bits: u16) -> bool {
        let product = 2 * i128::from(code) * step;
        let magnitude = bits & 0x7fff;
        if magnitude == 0 {
            return product == 0 || (product.abs() <= self.bf16(1));
        }
        let (low, high, closed) = self.around(magnitude);
        let same_sign = (product < 0) == (bits >> 15 == 1);
        let size = product.abs();
        same_sign && (if closed { low <= size && size <= high } else { low < size && size < high })
    }

    /// Positive step first, the smallest peak level that works; then the negative step.
    pub fn recover(&self, bits: &[u16; 32]) -> Option<Grid> {
        let largest = bits.iter().map(|bits| self.bf16(bits & 0x7fff)).max()?;
        for negative in [false, true] {
            for peak in 1..=8 {
                let sign = if negative { -1 } else { 1 };
                let codes = bits.map(|bits| {
                    let value = self.bf16(bits & 0x7fff) * if bits >> 15 == 1 { -1 } else { 1 };
                    round_half_even(value * peak * sign, largest)
                });
                if let Some((low, high)) = self.interval(bits, &codes, negative) {
                    return Some(Grid { codes: codes.map(|code| code as i8), negative, low, high });
                }
            }
        }
        None
    }

    fn interval(
        &self,
        bits: &[u16; 32],
        codes: &[i128; 32],
        negative: bool,
    ) -> Option<(Fraction, Fraction)> {
        let mut low = (Fraction(0, 1), true);
        let mut high: Option<(Fraction, bool)> = None;
        for (&bits, &code) in bits.iter().zip(codes) {
            if !(-8..=7).contains(&code) {
                return None;
            }
            let magnitude = bits & 0x7fff;
            if code == 0 || magnitude == 0 {
                if code != 0 || magnitude != 0 {
                    return None;
                }
                continue;
            }
            if ((code < 0) != negative) != (bits >> 15 == 1) {
                return None;
            }
            let (below, above, closed) = self.around(magnitude);
            let ends = [below, above].map(|end| Fraction(end, 2 * code.abs()));
            match compare(ends[0], low.0) {
                std::cmp::Ordering::Greater => low = (ends[0], closed),
                std::cmp::Ordering::Equal => low.1 &= closed,
                std::cmp::Ordering::Less => {}
            }
            match high.map(|high| compare(ends[1], high.0)) {
                None | Some(std::cmp::Ordering::Less) => high = Some((ends[1], closed)),
                Some(std::cmp::Ordering::Equal) => {
                    high = high.map(|high| (high.0, high.1 && closed))
                }
                Some(std::cmp::Ordering::Greater) => {}
            }
        }
        let (high, high_closed) = high?;
        let works = match compare(low.0, high) {
            std::cmp::Ordering::Less => true,
            std::cmp::Ordering::Equal => low.1 && high_closed,
            std::cmp::Ordering::Greater => false,
        };
        works.then_some((low.0, high))
    }

    /// The canonical step by trying every number of a 16-bit dtype, both signs.
    pub fn best_step(&self, bits: &[u16; 32], grid: &Grid, dtype: ScaleDtype) -> BestStep {
        let numbers = (1..=0x7fff_u16).filter_map(|ordinal| match dtype {
            ScaleDtype::F16 => Some(f16::from_bits(ordinal).to_f32()),
            ScaleDtype::BF16 => Some(bf16::from_bits(ordinal).to_f32()),
            ScaleDtype::F32 => None,
        });
        let numbers = numbers.filter(|number| number.is_finite());
        let counted: Vec<(u8, i128, f32)> = numbers
            .flat_map(|number| [number, -number])
            .filter_map(|number| Some((self.whole(number)?, number)))
            .map(|(step, number)| (self.wrong(bits, grid, step), step, number))
            .collect();
        let fewest = counted.iter().map(|&(wrong, ..)| wrong).min();
        let (wrong, _, value) = counted
            .into_iter()
            .filter(|&(wrong, ..)| Some(wrong) == fewest)
            .min_by_key(|&(wrong, step, _)| (self.distance(bits, grid, step, wrong), step.abs()))
            .expect("some number of the dtype fits the unit");
        BestStep { value, wrong }
    }

    pub fn values_wrong(&self, bits: &[u16; 32], grid: &Grid, step: f32) -> u8 {
        self.wrong(bits, grid, self.whole(step).expect("the step fits the unit"))
    }

    fn wrong(&self, bits: &[u16; 32], grid: &Grid, step: i128) -> u8 {
        let pairs = grid.codes.iter().zip(bits);
        pairs.filter(|&(&code, &bits)| !self.reproduces(code, step, bits)).count() as u8
    }

    /// What decides among equally many wrong values: the distance from the interval's middle if
    /// none is wrong, else the squared error.
    fn distance(&self, bits: &[u16; 32], grid: &Grid, step: i128, wrong: u8) -> i128 {
        if wrong == 0 {
            return self.off_middle(grid, step);
        }
        let squares = grid.codes.iter().zip(bits).map(|(&code, &bits)| {
            let value = self.bf16(bits & 0x7fff) * if bits >> 15 == 1 { -1 } else { 1 };
            let error = i128::from(code) * step - value;
            error.checked_mul(error).unwrap_or(i128::MAX)
        });
        squares.fold(0, i128::saturating_add)
    }

    fn off_middle(&self, grid: &Grid, step: i128) -> i128 {
        let (low, high) = (grid.low, grid.high);
        (2 * step.abs() * low.1 * high.1 - low.0 * high.1 - high.0 * low.1).abs()
    }

    /// Distance of a step from the interval's middle, in a unit of the grid's own.
    pub fn distance_from_middle(&self, grid: &Grid, step: f32) -> i128 {
        self.off_middle(grid, self.whole(step).expect("the step fits the unit"))
    }
}

fn compare(one: Fraction, other: Fraction) -> std::cmp::Ordering {
    (one.0 * other.1).cmp(&(other.0 * one.1))
}

fn round_half_even(numerator: i128, denominator: i128) -> i128 {
    let floor = numerator.div_euclid(denominator);
    let rest = 2 * numerator.rem_euclid(denominator);
    match rest.cmp(&denominator) {
        std::cmp::Ordering::Less => floor,
        std::cmp::Ordering::Equal => floor + (floor & 1),
        std::cmp::Ordering::Greater => floor + 1,
    }
}
