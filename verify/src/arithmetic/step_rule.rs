//! Which known rule explains steps that are not the canonical ones.

use w4pack_format::scale::ScaleDtype;

use super::bf16;
use super::canonical::nearer_to;
use super::numbers::{Number, Numbers};
use super::ratio::Ratio;
use super::recover::{GROUP, Grid, Recovery, recover};

/// A group's step by one rule, exactly, before it is rounded to the dtype.
type Rule = fn(&Grid, &[u16; GROUP]) -> Ratio;

/// The rules that are tried, with their names.
pub const RULES: [(&str, Rule); 4] = [
    ("least squares", least_squares),
    ("largest value / its code", of_largest),
    ("largest value / 8", of_eight),
    ("largest value / 7.5", of_seven_and_a_half),
];

/// How many steps each rule explains.
#[derive(Debug, Clone, Copy, Default)]
pub struct Votes {
    steps: u64,
    explained: [u64; RULES.len()],
}

impl Votes {
    /// Takes a usable step that is not canonical.
    pub fn take(&mut self, values: &[u16; GROUP], step: f32, dtype: ScaleDtype) {
        self.steps += 1;
        let Recovery::OnGrid(grid) = recover(values) else { return };
        let (numbers, stored) = (Numbers::of(dtype), Number::of_f32(step));
        for (votes, (_, rule)) in self.explained.iter_mut().zip(RULES) {
            let exact = rule(&grid, values);
            let below = numbers.floor(&exact);
            let nearest =
                numbers.next(below).map_or(below, |above| nearer_to(&exact, below, above));
            *votes += u64::from(nearest.to_f32() == stored.to_f32());
        }
    }

    /// Adds another block's or tensor's votes.
    pub fn add(&mut self, other: &Votes) {
        self.steps += other.steps;
        for (mine, theirs) in self.explained.iter_mut().zip(other.explained) {
            *mine += theirs;
        }
    }

    /// The rule's name: `canonical` when there was nothing to explain.
    pub fn name(&self) -> String {
        if self.steps == 0 {
            return "canonical".into();
        }
        let best = (0..RULES.len()).max_by_key(|&rule| (self.explained[rule], RULES.len() - rule));
        match best {
            // One step in a hundred may be off: the writer's own arithmetic rounds as well.
            Some(rule) if self.explained[rule] * 100 >= self.steps * 99 => RULES[rule].0.into(),
            _ => "of no known rule".into(),
        }
    }
}

fn largest(grid: &Grid, values: &[u16; GROUP]) -> (Ratio, u64) {
    let place = (0..GROUP).max_by_key(|&i| values[i] & 0x7FFF).unwrap_or(0);
    let value = bf16::magnitude(values[place]);
    let size = u64::from(grid.codes[place].unsigned_abs()).max(1);
    (Ratio::binary(u64::from(value.significand), value.exponent), size)
}

fn of_largest(grid: &Grid, values: &[u16; GROUP]) -> Ratio {
    let (value, code) = largest(grid, values);
    value.divided_by(code)
}

fn of_eight(grid: &Grid, values: &[u16; GROUP]) -> Ratio {
    largest(grid, values).0.divided_by(8)
}

fn of_seven_and_a_half(grid: &Grid, values: &[u16; GROUP]) -> Ratio {
    let value = largest(grid, values).0;
    Ratio { numerator: 2 * value.numerator, ..value }.divided_by(15)
}

fn least_squares(grid: &Grid, values: &[u16; GROUP]) -> Ratio {
    super::canonical::least_squares_step(&grid.codes, values)
}
