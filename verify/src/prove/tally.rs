//! A module's blocks summed up, in order, with the faults spelled out.

use w4pack_format::checkpoint::Checkpoint;
use w4pack_format::group::GROUP;

use super::block::{FaultyGroup, JudgedBlock};
use crate::arithmetic::judge::{SourceGroup, StepFinding};
use crate::arithmetic::step_rule::Votes;
use crate::pair::PackedPair;
use crate::report::{Counts, Fault, FaultClass, Groups};
use crate::sidecar::ModuleSidecar;

/// Groups of one module and fault class that are listed one by one; one more line counts the rest.
pub const LISTED: usize = 16;

/// What is known about a module.
pub struct Tally {
    /// Values.
    pub counts: Counts,
    /// Groups.
    pub groups: Groups,
    /// Which rules explain the steps that are not canonical.
    pub rules: Votes,
    module: String,
    words_file: String,
    scales_file: String,
    source_name: String,
    source_first_row: u64,
    source_file: String,
    scale_dtype: &'static str,
    groups_in_row: u64,
    codes: Listed,
    scales: Listed,
    off_grid: Listed,
    sidecar: Listed,
}

/// The first faults of a class and the number of all.
#[derive(Default)]
struct Listed {
    faults: Vec<Fault>,
    all: u64,
}

impl Listed {
    fn push(&mut self, fault: impl FnOnce() -> Fault) {
        self.all += 1;
        if self.faults.len() < LISTED {
            self.faults.push(fault());
        }
    }

    fn finish(mut self) -> Vec<Fault> {
        let more = self.all - self.faults.len() as u64;
        if more > 0 {
            let last = &self.faults[0];
            let detail = format!("{more} more groups of this tensor, {} in all", self.all);
            self.faults.push(Fault { row: None, group: None, detail, ..last.clone() });
        }
        self.faults
    }
}

impl Tally {
    /// Nothing known yet.
    pub fn new(pair: &PackedPair, source: &Checkpoint, result: &Checkpoint) -> Tally {
        let file = |checkpoint: &Checkpoint, name: &str| {
            checkpoint.tensor(name).map_or_else(String::new, |found| found.shard.path.clone())
        };
        let source_file = file(source, &pair.source);
        let words_file = file(result, &format!("{}.weight_packed", pair.module));
        let scales_file = file(result, &format!("{}.weight_scale", pair.module));
        Tally {
            counts: Counts::default(),
            groups: Groups::default(),
            rules: Votes::default(),
            module: pair.module.clone(),
            words_file,
            scales_file,
            source_name: pair.source.clone(),
            source_first_row: pair.source_first_row,
            source_file,
            scale_dtype: pair.scale_dtype.name(),
            groups_in_row: (pair.shape[1] / GROUP) as u64,
            codes: Listed::default(),
            scales: Listed::default(),
            off_grid: Listed::default(),
            sidecar: Listed::default(),
        }
    }

    /// Takes the next block, and holds the sidecar against it.
    pub fn take(&mut self, block: JudgedBlock, sidecar: Option<&mut ModuleSidecar>) {
        self.counts.add(&block.counts);
        self.groups.add(&block.groups);
        self.rules.add(&block.rules);
        for group in &block.faulty {
            self.take_faulty(group);
        }
        let Some(sidecar) = sidecar else { return };
        for (place, evidence) in block.evidence.iter().enumerate() {
            let number = block.first + place as u64;
            if let Some(detail) = sidecar.check_group(number, evidence) {
                let (row, group) = (number / self.groups_in_row, number % self.groups_in_row);
                let file = w4pack_format::exact::EXACT_FILE;
                let module = &self.module;
                self.sidecar.push(|| {
                    Fault::of_tensor(FaultClass::Sidecar, file, module, detail).at(row, group)
                });
            }
        }
    }

    /// Nothing may be left in the sidecar's lists after the last group.
    pub fn finish_sidecar(&mut self, sidecar: ModuleSidecar) {
        if let Some(detail) = sidecar.leftover() {
            let file = w4pack_format::exact::EXACT_FILE;
            let module = &self.module;
            self.sidecar.push(|| Fault::of_tensor(FaultClass::Sidecar, file, module, detail));
        }
    }

    fn take_faulty(&mut self, group: &FaultyGroup) {
        let (row, place) = (group.number / self.groups_in_row, group.number % self.groups_in_row);
        let judgement = &group.judgement;
        let of_source = match judgement.source {
            SourceGroup::OffGrid => Some("no step times -8..7 gives these 32 source values".into()),
            SourceGroup::NotFinite { element } => {
                Some(format!("element {element} of this source group is infinite or not a number"))
            }
            SourceGroup::Zero | SourceGroup::OnGrid { .. } => None,
        };
        if let Some(detail) = of_source {
            let (file, name) = (&self.source_file, &self.source_name);
            let row = self.source_first_row + row;
            self.off_grid
                .push(|| Fault::of_tensor(FaultClass::OffGrid, file, name, detail).at(row, place));
            return;
        }
        if judgement.codes_disagreeing != 0 {
            let (file, module) = (&self.words_file, &self.module);
            self.codes.push(|| {
                let element = judgement.codes_disagreeing.trailing_zeros() as usize;
                let detail = format!(
                    "{} of 32 codes are not the source's, first {} at column {}",
                    judgement.codes_disagreeing.count_ones(),
                    group.codes[element],
                    place * GROUP as u64 + element as u64,
                );
                let name = format!("{module}.weight_packed");
                Fault::of_tensor(FaultClass::Code, file, &name, detail).at(row, place)
            });
        }
        let step = group.step;
        let dtype = self.scale_dtype;
        let detail = match judgement.step {
            StepFinding::Canonical { .. } | StepFinding::NoGrid => return,
            StepFinding::Unusable => format!("the step {step} is not a usable number"),
            StepFinding::NotCanonical { canonical, inside } => {
                let effect = if inside {
                    "gives the same values"
                } else {
                    "is off the group's step interval"
                };
                format!("the step {step:e} {effect}; the canonical {dtype} step is {canonical:e}")
            }
            StepFinding::DtypeTooCoarse => format!(
                "the {dtype} step {step:e} is more than 2^-8 off; this tensor's scales must be f32"
            ),
        };
        let (file, name) = (&self.scales_file, format!("{}.weight_scale", self.module));
        self.scales
            .push(|| Fault::of_tensor(FaultClass::Scale, file, &name, detail).at(row, place));
    }

    /// All faults, those of codes first.
    pub fn into_faults(self) -> Vec<Fault> {
        [self.off_grid, self.codes, self.scales, self.sidecar]
            .into_iter()
            .flat_map(Listed::finish)
            .collect()
    }
}
