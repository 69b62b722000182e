//! A look at random groups of both sides, where nobody wants to read them whole.
//!
//! Of each group 64 bytes of the source and 18 or 20 of the result are read. What such a sample can
//! miss is plain arithmetic: if a share x of all groups is wrong, N independent draws all miss with
//! probability (1 - x)^N. What it cannot see at all: everything that is no packed group.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use w4pack_format::checkpoint::Checkpoint;
use w4pack_format::config::Config;
use w4pack_format::group::GROUP;
use w4pack_format::source::Source;
use w4pack_format::{FormatError, Result};

use crate::findings::Findings;
use crate::pair::{PackedPair, pair};
use crate::progress::Progress;
use crate::prove::{Judge, JudgedBlock, Tally};
use crate::report::{Counts, Fault, Groups};
use crate::self_test::random::Random;
use crate::with_source::packed_already;

/// Shares of wrong groups for which the report says how likely they are missed.
const SHARES: [f64; 4] = [0.0001, 0.001, 0.01, 0.05];
/// Requests under way at once: each is short, and the way is long.
const AT_ONCE: usize = 16;

/// How to audit.
#[derive(Debug, Clone, Copy)]
pub struct AuditOptions {
    /// Groups to draw, each time from all of them.
    pub samples: u64,
    /// Which groups: the same seed draws the same ones.
    pub seed: u64,
}

/// What was found.
#[derive(Debug, Clone, Serialize)]
pub struct Audit {
    /// The result.
    pub packed: String,
    /// Its commit, where there is one.
    pub packed_revision: Option<String>,
    /// The source.
    pub source: String,
    /// Its commit, where there is one.
    pub source_revision: Option<String>,
    /// Groups that there are.
    pub population: u64,
    /// Groups that were drawn.
    pub samples: u64,
    /// By this seed.
    pub seed: u64,
    /// Their values.
    #[serde(flatten)]
    pub counts: Counts,
    /// What they are like.
    pub groups: Groups,
    /// Bytes of groups that were read, of both sides.
    pub bytes: u64,
    /// What is wrong.
    pub faults: Vec<Fault>,
    /// How likely a sample of this size misses a share of wrong groups.
    pub missed: Vec<Missed>,
    /// With 95 % certainty no larger share of the groups is wrong; null where a fault was found.
    pub largest_unseen_share: Option<f64>,
}

/// One line of the table.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Missed {
    /// The share of groups that is wrong.
    pub share: f64,
    /// With which probability no draw hits one.
    pub probability: f64,
}

impl Audit {
    /// The command's exit code: 0 nothing wrong was drawn; 1 something was.
    pub fn exit_code(&self) -> u8 {
        u8::from(!self.faults.is_empty())
    }
}

/// The probability that `samples` draws all miss a share of the groups.
pub fn miss(share: f64, samples: u64) -> f64 {
    // (1 - x)^N by logarithms, which keeps small shares.
    (samples as f64 * (-share).ln_1p()).exp()
}

/// Draws groups and holds each against the source's.
///
/// Errors: a side cannot be read; there is nothing packed to draw from; the source is packed itself.
pub fn audit(
    packed: &Arc<dyn Source>,
    source: &Arc<dyn Source>,
    options: AuditOptions,
    progress: &dyn Progress,
) -> Result<Audit> {
    let result = Checkpoint::open(packed.clone())?;
    let origin = Checkpoint::open(source.clone())?;
    let config = Config::load(&**source)?;
    let refuse = |place: &Arc<dyn Source>, problem: &str| FormatError::NoCheckpoint {
        place: place.label().into(),
        problem: problem.into(),
    };
    if packed_already(&origin, &config).is_some() {
        return Err(refuse(
            source,
            "it is packed itself, and an audit needs what it was made from",
        ));
    }
    let mut findings = Findings::default();
    let pairing = pair(&origin, &result, &config.text, &mut findings);
    let drawn = Draws::of(&pairing.packed, options);
    if drawn.population == 0 {
        return Err(refuse(packed, "none of its tensors is packed, there is nothing to draw from"));
    }
    progress.begin("auditing", options.samples);
    let judged = judge_all(&drawn, &pairing.packed, &origin, &result, progress)?;

    let mut audit = Audit {
        packed: packed.name().into(),
        packed_revision: packed.revision().map(str::to_string),
        source: source.name().into(),
        source_revision: source.revision().map(str::to_string),
        population: drawn.population,
        samples: options.samples,
        seed: options.seed,
        counts: Counts::default(),
        groups: Groups::default(),
        bytes: judged.iter().map(|(_, block)| block.result_bytes + 2 * GROUP as u64).sum(),
        // What the headers show costs nothing more to see.
        faults: findings.faults,
        missed: SHARES
            .iter()
            .map(|&share| Missed { share, probability: miss(share, options.samples) })
            .collect(),
        largest_unseen_share: None,
    };
    let mut tallies: BTreeMap<usize, Tally> = BTreeMap::new();
    for (module, block) in judged {
        let new = || Tally::new(&pairing.packed[module], &origin, &result);
        tallies.entry(module).or_insert_with(new).take(block, None);
    }
    for tally in tallies.into_values() {
        audit.counts.add(&tally.counts);
        audit.groups.add(&tally.groups);
        audit.faults.extend(tally.into_faults());
    }
    if audit.faults.is_empty() {
        audit.largest_unseen_share = Some(-(0.05f64.ln() / options.samples as f64).exp_m1());
    }
    Ok(audit)
}

/// The drawn groups: module and group, in the order of the draw.
struct Draws {
    population: u64,
    groups: Vec<(usize, u64)>,
}

impl Draws {
    fn of(packed: &[PackedPair], options: AuditOptions) -> Draws {
        let groups_of = |pair: &PackedPair| (pair.shape[0] * pair.shape[1] / GROUP) as u64;
        let mut ends = Vec::with_capacity(packed.len());
        let mut population = 0;
        for pair in packed {
            population += groups_of(pair);
            ends.push(population);
        }
        let mut random = Random::of(options.seed, 0);
        let draw = |_| {
            let number = random.below(population as usize) as u64;
            let module = ends.partition_point(|end| *end <= number);
            (module, number - (ends[module] - groups_of(&packed[module])))
        };
        let samples = if population == 0 { 0 } else { options.samples };
        Draws { population, groups: (0..samples).map(draw).collect() }
    }
}

/// Reads and judges every drawn group; the answers are in the order of the draw.
fn judge_all(
    drawn: &Draws,
    packed: &[PackedPair],
    source: &Checkpoint,
    result: &Checkpoint,
    progress: &dyn Progress,
) -> Result<Vec<(usize, JudgedBlock)>> {
    let next = AtomicUsize::new(0);
    let answers: Mutex<Vec<(usize, Result<JudgedBlock>)>> = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE.min(drawn.groups.len()) {
            scope.spawn(|| {
                let mut judge = Judge::new(result, false);
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some(&(module, group)) = drawn.groups.get(number) else { return };
                    let pair = &packed[module];
                    let place = group * 2 * GROUP as u64;
                    let row = 2 * pair.shape[1] as u64;
                    let mut values = [0; 2 * GROUP];
                    let offset = pair.source_first_row * row + place;
                    let read = source.read_range(&pair.source, offset, &mut values);
                    let judged = read.and_then(|()| judge.block(pair, place, &values));
                    let failed = judged.is_err();
                    let mut answers = answers.lock().unwrap_or_else(PoisonError::into_inner);
                    answers.push((number, judged));
                    drop(answers);
                    progress.advance(1);
                    if failed {
                        // The others stop at their next draw.
                        next.store(drawn.groups.len(), Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let mut answers = answers.into_inner().unwrap_or_else(PoisonError::into_inner);
    answers.sort_by_key(|(number, _)| *number);
    let in_order =
        answers.into_iter().map(|(number, judged)| Ok((drawn.groups[number].0, judged?)));
    in_order.collect()
}

impl fmt::Display for Audit {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = |name: &str, revision: &Option<String>| match revision {
            Some(revision) => format!("{name}@{revision}"),
            None => name.to_string(),
        };
        writeln!(out, "{}", at(&self.packed, &self.packed_revision))?;
        writeln!(out, "against {}", at(&self.source, &self.source_revision))?;
        writeln!(
            out,
            "{} of {} groups drawn (seed {}), {} bytes of them read: {} of {} codes disagree, \
             {} of {} steps are canonical, {} values differ",
            self.samples,
            self.population,
            self.seed,
            self.bytes,
            self.counts.int4_codes_disagreeing,
            self.counts.elements,
            self.groups.steps_canonical,
            self.groups.all,
            self.counts.elements_differing,
        )?;
        if !self.faults.is_empty() {
            for fault in self.faults.iter().take(20) {
                writeln!(out, "fault: {fault}")?;
            }
            return write!(out, "NOT THE SOURCE'S: {} faults in this sample", self.faults.len());
        }
        for Missed { share, probability } in &self.missed {
            writeln!(
                out,
                "if {} % of the groups were wrong, such a sample would miss all of them {}",
                share * 100.0,
                in_words(*probability)
            )?;
        }
        let largest = self.largest_unseen_share.unwrap_or(1.0) * 100.0;
        write!(
            out,
            "nothing wrong was drawn: with 95 % certainty less than {largest:.4} % of the groups are \
             wrong. That is no proof: one changed group among all would hardly ever be drawn, and \
             what is not packed (norms, tokenizer, template) was not looked at. `w4pack verify` \
             looks at everything"
        )
    }
}

fn in_words(probability: f64) -> String {
    if probability < 1e-6 {
        return format!("less than once in a million times ({probability:.1e})");
    }
    format!("{:.4} % of the time", probability * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_sample_misses_is_what_counting_gives() {
        // Ten groups, one wrong, two draws: 81 of 100 pairs miss it.
        assert!((miss(0.1, 2) - 0.81).abs() < 1e-12);
        // 1 % and 459 draws: the textbook's 99 % certainty.
        assert!(miss(0.01, 458) > 0.01 && miss(0.01, 459) < 0.01);
        assert_eq!(miss(0.5, 0), 1.0);
        assert_eq!(miss(0.0, 1000), 1.0);
    }

    #[test]
    fn draws_reach_every_group_alike() {
        let pair = |module: &str, rows: usize| PackedPair {
            module: module.into(),
            source: module.into(),
            source_first_row: 0,
            role: w4pack_format::names::Role::Linear,
            shape: [rows, 64],
            scale_dtype: w4pack_format::scale::ScaleDtype::F16,
        };
        // 2 and 6 groups.
        let packed = [pair("a", 1), pair("b", 3)];
        let drawn = Draws::of(&packed, AuditOptions { samples: 8000, seed: 7 });
        assert_eq!(drawn.population, 8);
        let mut seen: BTreeMap<(usize, u64), u32> = BTreeMap::new();
        for group in &drawn.groups {
            *seen.entry(*group).or_default() += 1;
        }
        let all: Vec<(usize, u64)> = (0..2).map(|g| (0, g)).chain((0..6).map(|g| (1, g))).collect();
        assert_eq!(seen.keys().copied().collect::<Vec<_>>(), all);
        // 1000 expected of each; five standard deviations are 148.
        assert!(seen.values().all(|count| count.abs_diff(1000) < 148), "{seen:?}");
    }
}
