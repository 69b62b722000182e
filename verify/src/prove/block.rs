//! A run of groups of one module, judged.

use w4pack_format::Result;
use w4pack_format::checkpoint::Checkpoint;
use w4pack_format::group::{self, GROUP, PACKED_BYTES};

use crate::arithmetic::bf16;
use crate::arithmetic::judge::{Judgement, SourceGroup, StepFinding, judge};
use crate::arithmetic::step_rule;
use crate::pair::PackedPair;
use crate::report::{Counts, Groups};
use crate::sidecar::Evidence;

/// What is found in a block of groups.
pub struct Block {
    /// Number of its first group in the module.
    pub first: u64,
    /// Values.
    pub counts: Counts,
    /// Groups.
    pub groups: Groups,
    /// How many usable steps that are not canonical each rule of [`step_rule::RULES`] explains,
    /// and how many there are.
    pub rules: step_rule::Votes,
    /// The groups with a fault.
    pub faulty: Vec<FaultyGroup>,
    /// What the sidecar must say about each group.
    pub evidence: Vec<Evidence>,
    /// Bytes of both sides that were read.
    pub bytes_read: u64,
}

/// A group that is not as it must be.
pub struct FaultyGroup {
    /// Its number in the module.
    pub number: u64,
    /// Stored codes.
    pub codes: [i8; GROUP],
    /// Stored step.
    pub step: f32,
    /// What is wrong.
    pub judgement: Judgement,
}

impl Block {
    /// Reads and judges `count` groups from number `first` on.
    pub fn judge(
        pair: &PackedPair,
        result: &Checkpoint,
        source: &Checkpoint,
        first: u64,
        count: u64,
    ) -> Result<Block> {
        let read = |checkpoint: &Checkpoint, name: &str, first: u64, group_bytes: usize| {
            let mut buffer = vec![0; count as usize * group_bytes];
            checkpoint.read_range(name, first * group_bytes as u64, &mut buffer)?;
            Ok::<_, w4pack_format::FormatError>(buffer)
        };
        let scale_bytes = pair.scale_dtype.bytes();
        let in_source = pair.source_first_row * (pair.shape[1] / GROUP) as u64 + first;
        let values = read(source, &pair.source, in_source, 2 * GROUP)?;
        let words = read(result, &format!("{}.weight_packed", pair.module), first, PACKED_BYTES)?;
        let scales = read(result, &format!("{}.weight_scale", pair.module), first, scale_bytes)?;

        let mut block = Block {
            first,
            counts: Counts::default(),
            groups: Groups::default(),
            rules: step_rule::Votes::default(),
            faulty: Vec::new(),
            evidence: Vec::with_capacity(count as usize),
            bytes_read: (values.len() + words.len() + scales.len()) as u64,
        };
        let groups = values.as_chunks::<{ 2 * GROUP }>().0.iter();
        let groups = groups.zip(words.as_chunks::<PACKED_BYTES>().0);
        for (number, ((values, words), scale)) in
            groups.zip(scales.chunks_exact(scale_bytes)).enumerate()
        {
            let values: [u16; GROUP] =
                std::array::from_fn(|i| u16::from_le_bytes([values[2 * i], values[2 * i + 1]]));
            let codes = group::unpack(&group::words_from_bytes(words));
            let step = pair.scale_dtype.read(scale);
            block.take(pair, first + number as u64, &values, codes, step);
        }
        Ok(block)
    }

    fn take(
        &mut self,
        pair: &PackedPair,
        number: u64,
        values: &[u16; GROUP],
        codes: [i8; GROUP],
        step: f32,
    ) {
        let judgement = judge(values, &codes, step, pair.scale_dtype);
        self.counts.add(&Counts {
            elements: GROUP as u64,
            elements_differing: judgement.elements_differing.count_ones().into(),
            int4_codes_disagreeing: judgement.codes_disagreeing.count_ones().into(),
            worst_diff_in_units_of_group_step: judgement.worst,
        });
        let (mut many_peaks, mut sign_free) = (false, false);
        if let SourceGroup::OnGrid { many_peaks: many, sign_free: free } = judgement.source {
            (many_peaks, sign_free) = (many, free);
        }
        let (canonical, inside) = match judgement.step {
            StepFinding::Canonical { finer } => (true, finer.is_none()),
            StepFinding::NotCanonical { inside, .. } => (false, inside),
            StepFinding::DtypeTooCoarse => (true, false),
            StepFinding::Unusable | StepFinding::NoGrid => (false, false),
        };
        let off_grid = matches!(judgement.step, StepFinding::NoGrid)
            || matches!(judgement.source, SourceGroup::OffGrid | SourceGroup::NotFinite { .. });
        self.groups.add(&Groups {
            all: 1,
            zero: u64::from(judgement.source == SourceGroup::Zero),
            many_peaks: many_peaks.into(),
            sign_free: sign_free.into(),
            off_grid: off_grid.into(),
            steps_canonical: canonical.into(),
            steps_inside: inside.into(),
        });
        if let StepFinding::NotCanonical { .. } = judgement.step {
            self.rules.take(values, step, pair.scale_dtype);
        }
        self.evidence.push(evidence(values, &judgement, step));
        let good_step = matches!(judgement.step, StepFinding::Canonical { .. });
        if judgement.codes_disagreeing != 0 || !good_step {
            self.faulty.push(FaultyGroup { number, codes, step, judgement });
        }
    }
}

/// What the sidecar must say about a group, from the source's values and the canonical step.
fn evidence(values: &[u16; GROUP], judgement: &Judgement, step: f32) -> Evidence {
    let (mut zeros, mut negative) = (0u32, 0u32);
    for (place, &bits) in values.iter().enumerate() {
        zeros |= u32::from(bf16::is_zero(bits)) << place;
        negative |= u32::from(bf16::is_negative(bits)) << place;
    }
    let (finer, decided) = match judgement.step {
        StepFinding::Canonical { finer } => (finer, true),
        // The step has a fault of its own; what its sidecar entry would be is moot.
        _ => (None, false),
    };
    Evidence {
        zeros,
        negative_zeros: zeros & negative,
        step_is_negative: step < 0.0,
        finer,
        decided,
    }
}
