//! Groups of a tensor, looked at one by one.

use serde::Serialize;
use w4pack_format::Result;
use w4pack_format::checkpoint::Checkpoint;
use w4pack_format::group::{GROUP, PACKED_BYTES, unpack, words_from_bytes};
use w4pack_format::scale::ScaleDtype;

use crate::arithmetic::bf16;
use crate::arithmetic::canonical::canonical_step;
use crate::arithmetic::recover::{Recovery, is_on_grid, recover};

/// Stretches of 128 values that are looked at in one tensor; all of them where there are fewer.
const STRETCHES: usize = 4096;

/// Values of a stretch: the largest group size that is tried.
const STRETCH: usize = 128;

/// What the groups are like.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Survey {
    /// Groups of 32 in all tensors.
    pub groups: u64,
    /// Of them those that were looked at, spread evenly over each tensor.
    pub examined: u64,
    /// Groups of 32, 64 and 128 values that were tried, and those on a 4-bit grid.
    pub on_grid: [Share; 3],
    /// Groups of 32 by their peak level: none (all zero), 1 to 8.
    pub peaks: [u64; 9],
    /// Groups with a negative step.
    pub negative_steps: u64,
    /// Groups whose codes reach -8; and +7 but not -8.
    pub reach_minus_eight: u64,
    /// See above.
    pub reach_seven_only: u64,
    /// Groups that some f16, or some bf16, step gives back whole.
    pub f16_steps_fit: u64,
    /// See above.
    pub bf16_steps_fit: u64,
    /// Steps by their power of two, from 2^-40 up; the first and the last take what lies beyond.
    pub step_exponents: Vec<u64>,
    /// The smallest and the largest step, without their signs.
    pub smallest_step: Option<f32>,
    /// See above.
    pub largest_step: Option<f32>,
    /// Values (or codes) that are zero; and among them -0.0.
    pub zeros: u64,
    /// See above.
    pub negative_zeros: u64,
    /// Values or steps that are infinite or no number; packed steps of zero too.
    pub unusable: u64,
    /// Element types of the scales.
    pub scale_dtypes: Vec<String>,
}

/// How many of how many.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Share {
    /// Values in a group.
    pub group_size: usize,
    /// Tried.
    pub tried: u64,
    /// On a grid.
    pub on_grid: u64,
}

/// The power of two of the first counter of [`Survey::step_exponents`].
pub const FIRST_EXPONENT: i32 = -40;
/// How many there are.
const EXPONENTS: usize = 64;

impl Survey {
    /// Looks at the values of a matrix whose rows are whole groups.
    pub fn take_dense(&mut self, checkpoint: &Checkpoint, name: &str) -> Result<()> {
        let Some(found) = checkpoint.tensor(name) else { return Ok(()) };
        let columns = found.info.shape[1];
        if columns == 0 || !columns.is_multiple_of(GROUP) {
            return Ok(());
        }
        self.groups += found.info.elements() / GROUP as u64;
        // A group lies in one row: stretches are cut from rows.
        let in_row = columns.div_ceil(STRETCH);
        let all = found.info.shape[0] * in_row;
        let mut bytes = vec![0; 2 * STRETCH];
        for number in (0..all).step_by(all.div_ceil(STRETCHES).max(1)) {
            let (row, place) = (number / in_row, number % in_row * STRETCH);
            let length = STRETCH.min(columns - place);
            let bytes = &mut bytes[..2 * length];
            checkpoint.read_range(name, 2 * (row * columns + place) as u64, bytes)?;
            let values: Vec<u16> =
                bytes.as_chunks().0.iter().map(|&pair| u16::from_le_bytes(pair)).collect();
            values.as_chunks::<32>().0.iter().for_each(|group| self.take_values(group));
            self.try_size::<32>(0, &values);
            self.try_size::<64>(1, &values);
            self.try_size::<128>(2, &values);
        }
        Ok(())
    }

    fn try_size<const N: usize>(&mut self, place: usize, values: &[u16]) {
        let groups = values.as_chunks::<N>().0;
        let share = &mut self.on_grid[place];
        share.group_size = N;
        share.tried += groups.len() as u64;
        share.on_grid += groups.iter().filter(|group| is_on_grid(group)).count() as u64;
    }

    fn take_values(&mut self, values: &[u16; GROUP]) {
        self.examined += 1;
        for bits in values {
            self.zeros += u64::from(bf16::is_zero(*bits));
            self.negative_zeros += u64::from(*bits == 0x8000);
            self.unusable += u64::from(!bf16::is_finite(*bits));
        }
        match recover(values) {
            Recovery::Zero => self.peaks[0] += 1,
            Recovery::OnGrid(grid) => {
                let step = canonical_step(&grid, values, ScaleDtype::F32).to_f32();
                self.take_group(&grid.codes, if grid.negative { -step } else { step });
                let fits = |dtype| {
                    let step = canonical_step(&grid, values, dtype);
                    u64::from(grid.steps.contains(&step.ratio()))
                };
                self.f16_steps_fit += fits(ScaleDtype::F16);
                self.bf16_steps_fit += fits(ScaleDtype::BF16);
            }
            Recovery::OffGrid | Recovery::NotFinite { .. } => {}
        }
    }

    /// Looks at codes and steps of a packed module.
    pub fn take_packed(&mut self, checkpoint: &Checkpoint, module: &str) -> Result<()> {
        let (words, scales) = (format!("{module}.weight_packed"), format!("{module}.weight_scale"));
        let (Some(found), Some(steps)) = (checkpoint.tensor(&words), checkpoint.tensor(&scales))
        else {
            return Ok(());
        };
        let Some(dtype) = ScaleDtype::from_dtype(steps.info.dtype) else { return Ok(()) };
        if !self.scale_dtypes.iter().any(|known| known == dtype.name()) {
            self.scale_dtypes.push(dtype.name().into());
        }
        let all = found.info.bytes() / PACKED_BYTES as u64;
        if steps.info.elements() != all {
            return Ok(());
        }
        self.groups += all;
        let mut bytes = [0; PACKED_BYTES];
        let mut scale = [0; 4];
        let scale = &mut scale[..dtype.bytes()];
        for number in (0..all).step_by(all.div_ceil(4 * STRETCHES as u64).max(1) as usize) {
            checkpoint.read_range(&words, number * PACKED_BYTES as u64, &mut bytes)?;
            checkpoint.read_range(&scales, number * dtype.bytes() as u64, scale)?;
            let (codes, step) = (unpack(&words_from_bytes(&bytes)), dtype.read(scale));
            self.examined += 1;
            self.zeros += codes.iter().filter(|code| **code == 0).count() as u64;
            if !step.is_finite() || step == 0.0 {
                self.unusable += 1;
            } else if codes.iter().all(|code| *code == 0) {
                self.peaks[0] += 1;
            } else {
                self.take_group(&codes, step);
            }
        }
        Ok(())
    }

    fn take_group(&mut self, codes: &[i8; GROUP], step: f32) {
        let peak = codes.iter().map(|code| code.unsigned_abs()).max().unwrap_or(0);
        self.peaks[usize::from(peak)] += 1;
        self.negative_steps += u64::from(step < 0.0);
        let reaches = codes.contains(&-8);
        self.reach_minus_eight += u64::from(reaches);
        self.reach_seven_only += u64::from(!reaches && peak == 7);
        let size = step.abs();
        self.smallest_step = Some(self.smallest_step.map_or(size, |least| least.min(size)));
        self.largest_step = Some(self.largest_step.map_or(size, |most| most.max(size)));
        self.step_exponents.resize(EXPONENTS, 0);
        let exponent = size.log2().floor() as i32 - FIRST_EXPONENT;
        self.step_exponents[exponent.clamp(0, EXPONENTS as i32 - 1) as usize] += 1;
    }

    /// Groups with codes and a step.
    pub fn with_step(&self) -> u64 {
        self.peaks[1..].iter().sum()
    }

    /// Which convention the bf16 values follow; `None` when they are on no grid.
    pub fn grid(&self) -> Option<String> {
        let with_step = self.with_step();
        if with_step == 0 || (with_step + self.peaks[0]) * 100 < self.examined * 99 {
            return None;
        }
        // Which steps give all groups back tells what they were rounded to.
        let all = |count: u64| count * 1000 >= with_step * 999;
        let steps = match (all(self.bf16_steps_fit), all(self.f16_steps_fit)) {
            (true, _) => "bf16 steps",
            (false, true) => "f16 steps",
            (false, false) => "steps of more than 11 bits (f32)",
        };
        Some(if self.negative_steps > 0 {
            format!("signed steps (Q4_0: largest value / -8), {steps}")
        } else {
            format!("positive steps, {steps}")
        })
    }

    /// Which convention packed codes follow; `None` without packed groups.
    pub fn packed_rule(&self) -> Option<String> {
        let with_step = self.with_step();
        if with_step == 0 {
            return None;
        }
        let most = |count: u64| count * 100 >= with_step * 99;
        let both_signs = self.negative_steps > 0 && self.negative_steps < with_step;
        Some(
            match (most(self.reach_minus_eight), most(self.reach_seven_only), both_signs) {
                (true, _, true) => {
                    "signed steps, every group reaches -8 (Q4_0: largest value / -8)"
                }
                (true, _, false) => "every group reaches -8",
                (_, true, _) => "every group reaches 7 and none -8 (largest value / 7)",
                (_, _, false) => {
                    "positive steps, peaks of 7 and 8 (the trained grid, or largest value / 7.5)"
                }
                (_, _, true) => "positive steps first, negative ones where only these fit",
            }
            .into(),
        )
    }
}
