//! The proof, with arithmetic of its own.
//!
//! [`verify`] holds a packed checkpoint against its source: every code and every step against what
//! [`arithmetic`] finds in the source's values, everything else byte by byte or key by key, until
//! each byte of both sides falls into exactly one class of the account. Nothing of the converter
//! is used: a check that repeats the maker's computation proves nothing.
//!
//! Read in this order: [`arithmetic`]; `with_source` (the proof from beginning to end); `pair`
//! (which tensor stands for which); `pass` (every byte read once, by whom); `prove` (groups in
//! blocks); `sidecar`; `config`; `headers`; `companions`; `manifest`; `alone` (a result without its
//! source); [`report`]. [`audit`] draws groups instead of reading them all. [`doctor`] is apart: what other loaders would make of a result.

mod alone;
pub mod arithmetic;
pub mod audit;
mod companions;
mod config;
pub mod doctor;
mod findings;
mod gguf;
mod headers;
pub mod inspect;
mod ledger;
mod manifest;
mod pair;
mod pass;
pub mod picture;
mod progress;
pub mod prove;
mod ranges;
mod rebuild;
pub mod report;
pub mod self_test;
mod sidecar;
mod spelling;
pub mod statement;
mod with_source;

use std::sync::Arc;
use std::time::Instant;

use w4pack_format::FormatError;
use w4pack_format::source::Source;

pub use progress::Progress;
use rebuild::RebuiltSource;
pub use rebuild::{ListedCommit, ListedFile, Listing};
pub use report::Report;
use report::{Fault, Verdict, class_of};

/// How to verify.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// Exit code 0 for another maker's steps when every value is within 1/16 step.
    pub allow_step_rounding: bool,
    /// Threads that judge groups; 0: as many as there are cores. Reading and hashing have their own.
    pub threads: usize,
    /// Hash the files of both sides even if no manifest asks for it, for a statement.
    pub hash_files: bool,
}

/// Verifies `packed` against `source`, or against itself when there is no source.
///
/// Always gives a report: a side that cannot be read, or that changes while it is read, makes the
/// verdict [`Verdict::Unreadable`] with a fault that says why. The answer does not depend on the
/// number of threads.
pub fn verify(
    packed: Arc<dyn Source>,
    source: Option<Arc<dyn Source>>,
    options: &Options,
    progress: &dyn Progress,
) -> Report {
    let begin = Instant::now();
    let labels: Vec<String> =
        source.iter().chain([&packed]).map(|side| side.label().to_string()).collect();
    let outcome = match &source {
        Some(source) => with_source::verify(&packed, source, options, progress),
        None => alone::verify(&packed, progress),
    };
    let mut report = outcome.unwrap_or_else(|error| unreadable(&error, &labels));
    report.allow_step_rounding = options.allow_step_rounding;
    report.seconds = begin.elapsed().as_secs_f64();
    report
}

/// Holds the GGUF file `path` of `files` against the bf16 source: codes, step rule, and what was
/// quantized anew, and what its metadata say otherwise. The best verdict is
/// [`Verdict::CodesProved`].
///
/// Like [`verify`] it always gives a report.
pub fn verify_gguf(
    files: &Arc<dyn Source>,
    path: &str,
    source: &Arc<dyn Source>,
    options: &Options,
    progress: &dyn Progress,
) -> Report {
    let begin = Instant::now();
    let outcome = gguf::verify(files, path, source, progress);
    let labels = [files.label().to_string(), source.label().to_string()];
    let mut report = outcome.unwrap_or_else(|error| unreadable(&error, &labels));
    report.allow_step_rounding = options.allow_step_rounding;
    report.seconds = begin.elapsed().as_secs_f64();
    report
}

/// Verifies `packed` without its source, against the hashes of the source's files: the source is
/// rebuilt from the pack (and what a text-only pack lacks from `towers`) and must have these hashes.
///
/// Like [`verify`] it always gives a report.
pub fn verify_rebuilt(
    packed: Arc<dyn Source>,
    towers: Option<Arc<dyn Source>>,
    listing: &Listing,
    options: &Options,
    progress: &dyn Progress,
) -> Report {
    let rebuilt = match RebuiltSource::open(&packed, towers.as_ref(), listing) {
        Ok(rebuilt) => rebuilt,
        Err(error) => {
            let mut report = unreadable(&error, &[packed.label().to_string()]);
            let is_lacking =
                matches!(error, FormatError::Tensor { .. } | FormatError::Field { .. });
            if towers.is_none() && is_lacking {
                let hint =
                    "hint: --towers-from SOURCE names a checkpoint that has what the pack lacks";
                report.notes.push(hint.into());
            }
            return report;
        }
    };
    let options = Options { hash_files: true, ..*options };
    let mut report = verify(packed, Some(rebuilt.source.clone()), &options, progress);
    if report.verdict != Verdict::Unreadable {
        rebuilt.hold_against(listing, &mut report);
    }
    report
}

/// The report when a side could not be read to the end. As in all faults the file is named by its
/// path within its side; the detail has all of it.
fn unreadable(error: &FormatError, labels: &[String]) -> Report {
    let file = match error {
        FormatError::Io { path, .. } => path,
        FormatError::Shrunk { file, .. }
        | FormatError::Header { file, .. }
        | FormatError::Gguf { file, .. }
        | FormatError::Index { file, .. }
        | FormatError::Field { file, .. }
        | FormatError::Json { file, .. }
        | FormatError::Tensor { file, .. } => file,
        FormatError::UnsafePath { named_in, .. } => named_in,
        FormatError::NoCheckpoint { place, .. } | FormatError::MissingTensor { place, .. } => place,
    };
    let within = |label: &String| file.strip_prefix(label.as_str())?.strip_prefix('/');
    let file = labels.iter().find_map(within).unwrap_or(file);
    let tensor = match error {
        FormatError::Tensor { tensor, .. } | FormatError::MissingTensor { tensor, .. } => {
            Some(tensor.clone())
        }
        _ => None,
    };
    let fault = Fault { tensor, ..Fault::of_file(class_of(error), file, error.to_string()) };
    let notes = error.hint().map(|hint| format!("hint: {hint}")).into_iter().collect();
    Report { faults: vec![fault], notes, verdict: Verdict::Unreadable, ..Report::default() }
}
