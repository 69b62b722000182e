//! The whole conversion: plan, read, write, report.

mod block;
mod decision;
mod pass;
mod relay;
mod summary;

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use w4pack_format::checkpoint::Checkpoint;
use w4pack_format::config::CONFIG_FILE;
use w4pack_format::digest::{Hasher, sha256};
use w4pack_format::manifest::{FileRecord, HeaderRecord, SourceRecord, TextRecord};
use w4pack_format::source::Source;

use crate::pack::{Finish, MadeFrom, PackWriter, Sidecar};
use crate::plan::{CompanionFate, Plan, plan};
use crate::progress::{Progress, Stage, tell};
use crate::report::Report;
use crate::staging::check_output;
use crate::{ConvertError, Options, thread_pool};
pub(crate) use block::{chunk_memory, judge_block};
pub(crate) use decision::{Decisions, Destination};
use pass::{Pass, Reading};
use summary::Outcome;

/// Converts a checkpoint into the folder `out`, which appears complete or not at all.
///
/// The output does not depend on the number of threads; two conversions differ in the manifest's
/// `created` only. Memory does not grow with the model: blocks of a few MiB are in flight.
///
/// Errors: whatever [`plan`](crate::plan()) refuses; an output folder that is in use; a NaN, an
/// infinity or (unless allowed) a group off the grid, with tensor, row and group; a source that
/// shrinks or changes; a disk that is full.
pub fn convert(
    source: Arc<dyn Source>,
    out: &Path,
    options: &Options,
    progress: &dyn Progress,
) -> Result<Report, ConvertError> {
    let started = Instant::now();
    let out = &check_output(&*source, out)?;
    let checkpoint = Checkpoint::open(source)?;
    let plan = plan(&checkpoint, options)?;
    let pool = thread_pool(options.threads)?;
    pool.install(|| {
        Conversion { checkpoint: &checkpoint, plan: &plan, out, options, progress, started }.run()
    })
}

/// Bytes hashed at a time.
const HASH_BLOCK: usize = 4 << 20;

struct Conversion<'a> {
    checkpoint: &'a Checkpoint,
    plan: &'a Plan,
    out: &'a Path,
    options: &'a Options,
    progress: &'a dyn Progress,
    started: Instant,
}

impl Conversion<'_> {
    fn run(&self) -> Result<Report, ConvertError> {
        let first = Decisions::first(self.plan);
        let (writer, sidecar, reading) = self.read(&first, Stage::Convert)?;
        if reading.is_final() {
            return self.finish(Outcome::once(&first, &reading), writer, sidecar);
        }
        // The half-written folder goes before its successor comes.
        drop((sidecar, writer));
        let again = first.again(self.plan, &reading.modules);
        let (writer, sidecar, second) = self.read(&again, Stage::ConvertAgain)?;
        let changed = reading.files.iter().zip(&second.files).find(|(one, other)| one != other);
        if let Some((file, _)) = changed {
            return Err(ConvertError::SourceChanged {
                place: self.plan.source.clone(),
                file: file.path.clone(),
            });
        }
        self.finish(Outcome::twice(&first, &reading, &again, &second), writer, sidecar)
    }

    fn read(
        &self,
        decisions: &Decisions,
        stage: Stage,
    ) -> Result<(PackWriter, Sidecar, Reading), ConvertError> {
        let companion_bytes = self.plan.companion_bytes();
        let (writer, mut sidecar) =
            PackWriter::create(self.out, decisions.contents.clone(), companion_bytes)?;
        let pass = Pass {
            checkpoint: self.checkpoint,
            plan: self.plan,
            decisions,
            writer: &writer,
            allow_off_grid: self.options.allow_off_grid,
            progress: self.progress,
            stage,
        };
        let reading = pass.run(&mut sidecar).map_err(|error| writer.explain(error))?;
        Ok((writer, sidecar, reading))
    }

    fn finish(
        &self,
        outcome: Outcome<'_>,
        mut writer: PackWriter,
        sidecar: Sidecar,
    ) -> Result<Report, ConvertError> {
        let mut files = outcome.reading().files.clone();
        files.extend(self.companions(&mut writer)?);
        files.sort_by(|one, other| one.path.cmp(&other.path));
        let source = self.checkpoint.source();
        let headers = self.checkpoint.shards().iter().map(|shard| HeaderRecord {
            path: shard.path.clone(),
            // A header is UTF-8, or it would not have been read.
            text: String::from_utf8_lossy(&shard.header.text).into_owned(),
        });
        let record = SourceRecord {
            name: source.name().into(),
            revision: source.revision().map(str::to_string),
            files,
            headers: headers.collect(),
            texts: self.texts()?,
            tensors: outcome.reading().tensors.clone(),
        };
        let config = outcome.config(self.plan);
        let finish = Finish {
            config: config.as_ref(),
            // A pack laid out anew is its maker's: there is nothing that w4pack could attest.
            made_from: (!self.plan.relays()).then(|| MadeFrom {
                source: record,
                options: self.options.recorded(),
                created: jiff::Timestamp::now().to_string(),
            }),
            hashed: &|done, total| tell(self.progress, Stage::Hash, done, total),
        };
        let written = writer.finish(sidecar, finish)?;
        Ok(summary::report(self.plan, self.out, &outcome, written, self.started.elapsed()))
    }

    /// The source files that the output rewrites or goes without, and that `restore` gives back.
    fn texts(&self) -> Result<Vec<TextRecord>, ConvertError> {
        let paths = [CONFIG_FILE].into_iter().chain(self.checkpoint.index_path());
        let text = |path: &str| -> Result<TextRecord, ConvertError> {
            let bytes = self.checkpoint.source().read_file(path)?;
            // Both were read as JSON before, which is UTF-8.
            let text = String::from_utf8_lossy(&bytes).into_owned();
            Ok(TextRecord { path: path.into(), text })
        };
        paths.map(text).collect()
    }

    /// Hashes all files beside the weights and copies those that the output needs.
    fn companions(&self, writer: &mut PackWriter) -> Result<Vec<FileRecord>, ConvertError> {
        let mut records = Vec::new();
        for companion in &self.plan.companions {
            let path = companion.path.clone();
            let sha256 = if companion.fate == CompanionFate::Copied {
                let content = self.checkpoint.source().read_file(&path)?;
                writer.companion(&path, &content).map_err(|error| writer.explain(error))?;
                sha256(&content)
            } else {
                self.hash(&path, companion.bytes)?
            };
            records.push(FileRecord { path, bytes: companion.bytes, sha256 });
        }
        Ok(records)
    }

    /// The hash of a file that may be of any size (weights in another format, say).
    fn hash(&self, path: &str, bytes: u64) -> Result<String, ConvertError> {
        let mut hasher = Hasher::default();
        let mut block = vec![0; HASH_BLOCK];
        let mut at = 0;
        while at < bytes {
            let length = (bytes - at).min(HASH_BLOCK as u64) as usize;
            self.checkpoint.source().read_at(path, at, &mut block[..length])?;
            hasher.update(&block[..length]);
            at += length as u64;
            if self.progress.cancelled() {
                return Err(ConvertError::Cancelled);
            }
        }
        Ok(hasher.finish())
    }
}
