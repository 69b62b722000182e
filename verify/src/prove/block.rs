//! A run of groups of one module, judged.

use w4pack_format::Result;
use w4pack_format::checkpoint::Checkpoint;
use w4pack_format::group::{self, GROUP, PACKED_BYTES};

use crate::arithmetic::confirm::Settled;
use crate::arithmetic::judge::{Judgement, SourceGroup, StepFinding, judge_after};
use crate::arithmetic::leaves::{Leaf, ValueBytes, WordBytes};
use crate::arithmetic::look::Look;
use crate::arithmetic::step_rule;
use crate::pair::PackedPair;
use crate::report::{Counts, Groups};
use crate::sidecar::Evidence;

/// What is found in a block of groups.
pub struct JudgedBlock {
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
    /// What the sidecar must say about each group, if there is a sidecar.
    pub evidence: Vec<Evidence>,
    /// Bytes of the result that were read.
    pub result_bytes: u64,
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

/// Groups that are looked at in one call.
const BATCH: usize = 64;

/// Judges blocks, one after the other, with buffers of its own.
pub struct Judge<'a> {
    result: &'a Checkpoint,
    /// Whether a sidecar is to be held against the groups.
    with_evidence: bool,
    leaf: Leaf,
    words: Vec<u8>,
    scales: Vec<u8>,
}

impl<'a> Judge<'a> {
    /// For blocks of this result.
    pub fn new(result: &'a Checkpoint, with_evidence: bool) -> Judge<'a> {
        let (words, scales) = (Vec::new(), Vec::new());
        Judge { result, with_evidence, leaf: Leaf::best(), words, scales }
    }

    /// Judges the groups of the source bytes `values`, which begin at byte `offset` of the
    /// module's own.
    pub fn block(&mut self, pair: &PackedPair, offset: u64, values: &[u8]) -> Result<JudgedBlock> {
        let first = offset / (2 * GROUP) as u64;
        let count = values.len() / (2 * GROUP);
        let scale_bytes = pair.scale_dtype.bytes();
        let read = |suffix: &str, group_bytes: usize, buffer: &mut Vec<u8>| {
            buffer.resize(count * group_bytes, 0);
            let name = format!("{}.{suffix}", pair.module);
            self.result.read_range(&name, first * group_bytes as u64, buffer)
        };
        read("weight_packed", PACKED_BYTES, &mut self.words)?;
        read("weight_scale", scale_bytes, &mut self.scales)?;

        let mut block = JudgedBlock {
            first,
            counts: Counts::default(),
            groups: Groups::default(),
            rules: step_rule::Votes::default(),
            faulty: Vec::new(),
            evidence: Vec::with_capacity(if self.with_evidence { count } else { 0 }),
            result_bytes: (self.words.len() + self.scales.len()) as u64,
        };
        let values = values.as_chunks::<{ 2 * GROUP }>().0;
        let words = self.words.as_chunks::<PACKED_BYTES>().0;
        let mut looks = [Look::default(); BATCH];
        let mut number = 0;
        for (values, words) in values.chunks(BATCH).zip(words.chunks(BATCH)) {
            self.leaf.look(values, words, &mut looks);
            for ((values, words), look) in values.iter().zip(words).zip(&looks) {
                let step = pair.scale_dtype.read(&self.scales[number * scale_bytes..]);
                if let Some(Settled { many_peaks, sign_free }) =
                    look.settled(step, pair.scale_dtype)
                {
                    block.groups.steps_inside += 1;
                    block.groups.many_peaks += u64::from(many_peaks);
                    block.groups.sign_free += u64::from(sign_free);
                    if self.with_evidence {
                        block.evidence.push(evidence(look, step, None, true));
                    }
                } else {
                    let group = first + number as u64;
                    block.take(pair, group, look, values, words, step, self.with_evidence);
                }
                number += 1;
            }
        }
        block.settle_the_rest(count as u64);
        Ok(block)
    }
}

impl JudgedBlock {
    /// Takes a group that is not settled by a look.
    #[allow(clippy::too_many_arguments)]
    fn take(
        &mut self,
        pair: &PackedPair,
        number: u64,
        look: &Look,
        values: &ValueBytes,
        words: &WordBytes,
        step: f32,
        with_evidence: bool,
    ) {
        let values: [u16; GROUP] =
            std::array::from_fn(|i| u16::from_le_bytes([values[2 * i], values[2 * i + 1]]));
        let codes = group::unpack(&group::words_from_bytes(words));
        let judgement = judge_after(look, &values, &codes, step, pair.scale_dtype);
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
            self.rules.take(&values, step, pair.scale_dtype);
        }
        if with_evidence {
            let (finer, decided) = match judgement.step {
                StepFinding::Canonical { finer } => (finer, true),
                // The step has a fault of its own; what its sidecar entry would be is moot.
                _ => (None, false),
            };
            self.evidence.push(evidence(look, step, finer, decided));
        }
        let good_step = matches!(judgement.step, StepFinding::Canonical { .. });
        if judgement.codes_disagreeing != 0 || !good_step {
            self.faulty.push(FaultyGroup { number, codes, step, judgement });
        }
    }

    /// Counts the groups, of `count`, that [`JudgedBlock::take`] did not: they are as they must be.
    fn settle_the_rest(&mut self, count: u64) {
        let settled = count - self.groups.all;
        self.groups.all = count;
        self.groups.steps_canonical += settled;
        self.counts.elements = count * GROUP as u64;
    }
}

/// What the sidecar must say about a group, from the source's values and the canonical step.
fn evidence(look: &Look, step: f32, finer: Option<f32>, decided: bool) -> Evidence {
    Evidence {
        zeros: look.zeros,
        negative_zeros: look.zeros & look.signs,
        step_is_negative: step < 0.0,
        finer,
        decided,
    }
}
