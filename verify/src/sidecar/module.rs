//! The sidecar's lists of one module, walked group by group beside the source's values.

use super::gaps::Gaps;

/// What the sidecar must say about a group, as the source has it.
#[derive(Clone, Copy, Debug)]
pub struct Evidence {
    /// Bit `i` set: source element `i` is a zero, so that its code is 0.
    pub zeros: u32,
    /// Bit `i` set: it is -0.0.
    pub negative_zeros: u32,
    /// Whether the stored step is negative.
    pub step_is_negative: bool,
    /// The canonical f32 step, where the stored one lies outside the exact step interval.
    pub finer: Option<f32>,
    /// False when the group has a fault of its own, so that its step entry is moot.
    pub decided: bool,
}

/// The tensors of a module as they lie in the file.
pub(super) struct Parts {
    pub step_gaps: Option<Vec<u8>>,
    pub step_values: Option<Vec<u8>>,
    pub verbatim_gaps: Option<Vec<u8>>,
    pub verbatim_values: Option<Vec<u8>>,
    pub zero_rule: Option<Vec<u8>>,
    pub zero_gaps: Option<Vec<u8>>,
    pub zero_masks: Option<Vec<u8>>,
    pub zero_bits: Option<Vec<u8>>,
}

/// How the signs of zeros are told.
enum Zeros {
    /// A default for each group (+0.0, or the sign of the step) and exceptions.
    Default { of_step: bool, gaps: Gaps, masks: Vec<u32>, taken: usize },
    /// One bit for each zero.
    Bits { bits: Vec<u8>, taken: u64 },
}

/// What the sidecar says about one module; groups must be asked for in their order.
pub struct ModuleSidecar {
    steps: Gaps,
    step_values: Vec<f32>,
    steps_taken: usize,
    verbatim: Gaps,
    zeros: Zeros,
}

impl ModuleSidecar {
    /// Decodes the lists; errors say what does not fit together.
    pub(super) fn new(parts: Parts) -> Result<ModuleSidecar, String> {
        let steps = Gaps::new(parts.step_gaps)?;
        let step_values: Vec<f32> = words(&parts.step_values).map(f32::from_le_bytes).collect();
        if steps.len() != step_values.len() {
            return Err(format!(
                "it lists {} groups with a finer step, but {} steps",
                steps.len(),
                step_values.len()
            ));
        }
        let verbatim = Gaps::new(parts.verbatim_gaps)?;
        let verbatim_bytes = parts.verbatim_values.as_ref().map_or(0, Vec::len);
        if verbatim.len() * 64 != verbatim_bytes {
            return Err(format!(
                "it lists {} verbatim groups, but holds {verbatim_bytes} bytes of values",
                verbatim.len()
            ));
        }
        let rule = match parts.zero_rule.as_deref() {
            None => 0,
            Some([rule]) => *rule,
            Some(_) => return Err("its zero rule is more than one byte".into()),
        };
        let has_exceptions = parts.zero_gaps.is_some() || parts.zero_masks.is_some();
        let zeros = match rule {
            0 | 1 if parts.zero_bits.is_none() => {
                let gaps = Gaps::new(parts.zero_gaps)?;
                let masks: Vec<u32> = words(&parts.zero_masks).map(u32::from_le_bytes).collect();
                if gaps.len() != masks.len() {
                    return Err(format!(
                        "it lists {} groups with exceptional zeros, but {} masks",
                        gaps.len(),
                        masks.len()
                    ));
                }
                Zeros::Default { of_step: rule == 1, gaps, masks, taken: 0 }
            }
            2 if !has_exceptions => {
                Zeros::Bits { bits: parts.zero_bits.unwrap_or_default(), taken: 0 }
            }
            0..=2 => return Err(format!("zero rule {rule} goes with other lists than these")),
            _ => return Err(format!("zero rule {rule} is not known")),
        };
        Ok(ModuleSidecar { steps, step_values, steps_taken: 0, verbatim, zeros })
    }

    /// What is wrong with the sidecar's word on a group, if anything.
    pub fn check_group(&mut self, group: u64, evidence: &Evidence) -> Option<String> {
        if self.verbatim.take(group) {
            return evidence.decided.then(|| {
                "it gives this group's values verbatim, though codes and a step give them".into()
            });
        }
        let step = self.check_step(group, evidence);
        let zeros = self.check_zeros(group, evidence);
        step.or(zeros)
    }

    fn check_step(&mut self, group: u64, evidence: &Evidence) -> Option<String> {
        let listed = self.steps.take(group).then(|| {
            self.steps_taken += 1;
            self.step_values[self.steps_taken - 1]
        });
        if !evidence.decided {
            return None;
        }
        match (listed, evidence.finer) {
            (None, None) => None,
            (Some(step), Some(finer)) if step == finer => None,
            (Some(step), Some(finer)) => {
                Some(format!("its step {step:e} is not the canonical f32 step {finer:e}"))
            }
            (Some(step), None) => {
                Some(format!("it gives the step {step:e}, though the stored step is exact"))
            }
            (None, Some(finer)) => {
                Some(format!("it lacks the step {finer:e}, without which values are lost"))
            }
        }
    }

    fn check_zeros(&mut self, group: u64, evidence: &Evidence) -> Option<String> {
        let said = match &mut self.zeros {
            Zeros::Default { of_step, gaps, masks, taken } => {
                let negative = *of_step && evidence.step_is_negative;
                let default = if negative { evidence.zeros } else { 0 };
                if gaps.take(group) {
                    *taken += 1;
                    let mask = masks[*taken - 1];
                    if mask == 0 || mask & !evidence.zeros != 0 {
                        return Some(format!(
                            "its mask {mask:#010x} does not name zeros of this group"
                        ));
                    }
                    default ^ mask
                } else {
                    default
                }
            }
            Zeros::Bits { bits, taken } => {
                let mut said = 0;
                let mut open = evidence.zeros;
                while open != 0 {
                    let bit = bits.get((*taken / 8) as usize).map(|byte| byte >> (*taken % 8) & 1);
                    let Some(bit) = bit else {
                        return Some("its bits end before the last zero".into());
                    };
                    said |= u32::from(bit) << open.trailing_zeros();
                    open &= open - 1;
                    *taken += 1;
                }
                said
            }
        };
        (said != evidence.negative_zeros).then(|| {
            format!(
                "the signs of zeros are {said:#010x}, in the source {:#010x}",
                evidence.negative_zeros
            )
        })
    }

    /// What is left in the lists after the last group, if anything.
    pub fn leftover(&self) -> Option<String> {
        let lists = [
            ("finer steps", self.steps.next()),
            ("verbatim groups", self.verbatim.next()),
            (
                "exceptional zeros",
                match &self.zeros {
                    Zeros::Default { gaps, .. } => gaps.next(),
                    Zeros::Bits { .. } => None,
                },
            ),
        ];
        for (what, next) in lists {
            if let Some(group) = next {
                return Some(format!("its list of {what} names group {group}, which is not there"));
            }
        }
        match &self.zeros {
            Zeros::Bits { bits, taken } => {
                let whole = taken.div_ceil(8) as usize;
                let spare = bits.get(whole.saturating_sub(1)).copied().unwrap_or(0);
                let padding = if taken % 8 == 0 { 0 } else { spare >> (taken % 8) };
                (bits.len() != whole || padding != 0)
                    .then(|| format!("its bits go on after the last of {taken} zeros"))
            }
            Zeros::Default { .. } => None,
        }
    }
}

/// The 4-byte words of a list; an absent list has none.
fn words(bytes: &Option<Vec<u8>>) -> impl Iterator<Item = [u8; 4]> {
    bytes.as_deref().unwrap_or_default().as_chunks().0.iter().copied()
}

#[cfg(test)]
mod tests;
