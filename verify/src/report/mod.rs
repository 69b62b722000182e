//! What the verifier says: one object, the same in JSON and in words.

mod fault;
mod text;

pub use fault::{Fault, FaultClass, class_of};

use std::collections::BTreeMap;

use serde::Serialize;

/// Bytes by class, of one side.
pub use crate::ledger::Accounted;

/// The whole answer; `serde_json::to_string_pretty` of it is the output of `verify --json`.
///
/// The first four fields (flattened) speak of all packed linears.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Report {
    /// All packed linears of the layers and the per-layer projections; no table, no head.
    #[serde(flatten)]
    pub linears: Counts,
    /// The two vocabulary tables; all zero for a table that is not packed.
    pub tables: Tables,
    /// Everything packed, each source element once: an identical head is not counted again.
    pub whole: Counts,
    /// Tensors and files of the result that equal the source's byte for byte.
    pub copied: Vec<Item>,
    /// Tensors and files of the source that the result leaves out, with their hashes.
    pub left_out: Vec<Item>,
    /// Whether a second copy of the table under the head's name equals it; null without a copy.
    pub tied_copies_identical: Option<bool>,
    /// Bytes of source and result that no class of the account claims.
    pub unaccounted: u64,
    /// What is wrong, in the order of the check. At most
    /// [`crate::prove::LISTED`] groups a tensor and class; totals are exact all the same.
    pub faults: Vec<Fault>,
    /// The answer.
    pub verdict: Verdict,
    /// Size of both sides together (of the result alone without a source).
    pub bytes: u64,
    /// How long it took.
    pub seconds: f64,
    /// Each packed tensor by itself, in the order of the model.
    pub packed: Vec<PackedTensor>,
    /// What the groups of all packed tensors are like.
    pub groups: Groups,
    /// By which rule the steps were chosen: `canonical`, or what fits the others.
    pub step_rule: String,
    /// Where every byte went.
    pub accounted: Accounted,
    /// Variants that were accepted and absences that are no fault.
    pub notes: Vec<String>,
    /// SHA-256 of the files that were hashed.
    #[serde(skip)]
    pub hashes: FileHashes,
    /// Whether the result's files are those of a statement.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub matches_statement: bool,
    /// Whether [`Verdict::CodesProved`] is good enough when every value is within 1/16 step.
    #[serde(skip)]
    pub allow_step_rounding: bool,
}

/// SHA-256 of files, by path, and where the source comes from.
#[derive(Debug, Clone, Default)]
pub struct FileHashes {
    /// The result's files.
    pub result: BTreeMap<String, String>,
    /// The source's weight files.
    pub source: BTreeMap<String, String>,
    /// The source's name.
    pub source_name: String,
    /// The source's commit, where there is one.
    pub source_revision: Option<String>,
}

/// Comparison of stored codes and steps with source values.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Counts {
    /// Source values compared.
    pub elements: u64,
    /// Of them those with bf16(code * step) other than the source value.
    pub elements_differing: u64,
    /// Stored codes other than the recovered ones.
    pub int4_codes_disagreeing: u64,
    /// The largest |bf16(code * step) - value| / |step|; null when a step is not a usable number.
    pub worst_diff_in_units_of_group_step: f64,
}

impl Counts {
    /// Adds another tensor's or block's counts.
    pub fn add(&mut self, other: &Counts) {
        self.elements += other.elements;
        self.elements_differing += other.elements_differing;
        self.int4_codes_disagreeing += other.int4_codes_disagreeing;
        self.worst_diff_in_units_of_group_step =
            self.worst_diff_in_units_of_group_step.max(other.worst_diff_in_units_of_group_step);
    }
}

/// Counts of the two vocabulary tables.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Tables {
    /// Token embeddings, which are the head as well.
    pub embed_tokens: Counts,
    /// Per-layer embeddings.
    pub embed_tokens_per_layer: Counts,
}

/// One packed tensor of the result.
#[derive(Debug, Clone, Serialize)]
pub struct PackedTensor {
    /// Module name in the result.
    pub module: String,
    /// `f16`, `bf16` or `f32`.
    pub scale_dtype: String,
    /// Its values.
    #[serde(flatten)]
    pub counts: Counts,
    /// Its groups.
    pub groups: Groups,
}

/// Kinds of groups, counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Groups {
    /// All.
    pub all: u64,
    /// All 32 values are zero.
    pub zero: u64,
    /// Several peak levels work, so that the codes are unique only up to a common factor.
    pub many_peaks: u64,
    /// No code is -8, so that turned codes with a turned step would work as well.
    pub sign_free: u64,
    /// Without codes and step: off the grid or not finite.
    pub off_grid: u64,
    /// The stored step is the canonical one of its dtype.
    pub steps_canonical: u64,
    /// The stored step gives back all 32 values.
    pub steps_inside: u64,
}

impl Groups {
    /// Adds another tensor's or block's counts.
    pub fn add(&mut self, other: &Groups) {
        self.all += other.all;
        self.zero += other.zero;
        self.many_peaks += other.many_peaks;
        self.sign_free += other.sign_free;
        self.off_grid += other.off_grid;
        self.steps_canonical += other.steps_canonical;
        self.steps_inside += other.steps_inside;
    }
}

/// A tensor, or a whole file when `tensor` is null.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Item {
    /// The file.
    pub file: String,
    /// The tensor in it.
    pub tensor: Option<String>,
    /// Size.
    pub bytes: u64,
    /// SHA-256 of these bytes.
    pub sha256: String,
}

/// The answer in a word.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Every code, every step and every other byte is accounted for.
    Proved,
    /// Something is not the source's.
    Disproved,
    /// All is the source's, but steps follow another rule.
    CodesProved,
    /// Nothing speaks against the pack, but there was no source to hold against it.
    SelfConsistent,
    /// A side could not be read.
    #[default]
    Unreadable,
}

impl Report {
    /// The command's exit code: 0 proved; 1 disproved; 2 cannot tell.
    pub fn exit_code(&self) -> u8 {
        let within = self.whole.worst_diff_in_units_of_group_step <= 1.0 / 16.0;
        match self.verdict {
            Verdict::Proved => 0,
            Verdict::CodesProved if self.allow_step_rounding && within => 0,
            Verdict::CodesProved | Verdict::Disproved => 1,
            Verdict::SelfConsistent | Verdict::Unreadable => 2,
        }
    }
}
