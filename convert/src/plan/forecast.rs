//! What a conversion will take and give, before it is begun: every tensor's fate, sizes, memory,
//! and the time by a probe of one second. Nothing is written.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;
use w4pack_format::checkpoint::Checkpoint;
use w4pack_format::digest::{Blake3Hasher, Hasher};
use w4pack_format::source::Source;

use super::{CompanionFate, Part, Plan, Reason, Treatment, plan};
use crate::blocks::BLOCK;
use crate::convert::{Decisions, Destination, chunk_memory, judge_block};
use crate::staging::{check_output, free_space};
use crate::{ConvertError, Options, thread_pool};

/// How long the probe may take, in seconds.
const PROBE: f64 = 1.0;

/// Memory of the process before it has read anything, stacks of its threads not counted.
const BASE_MEMORY: u64 = 12 << 20;

/// Memory that a thread takes for itself.
const THREAD_MEMORY: u64 = 128 << 10;

/// What a conversion will do, take and give.
#[derive(Debug, Clone, Serialize)]
pub struct Forecast {
    /// The source, as the user named it.
    pub source: String,
    /// Where the result will stand.
    pub destination: String,
    /// Layout of the result.
    pub layout: &'static str,
    /// The scale dtype asked for.
    pub scale_dtype: &'static str,
    /// Every tensor of the source, in the order of the files and of the bytes in them.
    pub tensors: Vec<TensorForecast>,
    /// Every other file of the source.
    pub files: Vec<FileForecast>,
    /// Bytes of the source's weight files.
    pub source_bytes: u64,
    /// Bytes of the result's `model.safetensors`, if all steps fit the dtype asked for.
    pub weight_bytes: u64,
    /// Bytes of the result; sidecar and manifest, whose sizes only the weights decide, not counted.
    pub output_bytes: u64,
    /// Bytes free where it will stand.
    pub free_bytes: u64,
    /// The most memory that it will take, in bytes.
    pub memory_bytes: u64,
    /// How fast a part of the source was read, hashed and recovered.
    pub probe: Probe,
    /// Seconds that it will take by the probe, writing not counted.
    pub seconds: f64,
    /// What the user should know before it starts.
    pub warnings: Vec<String>,
}

/// What becomes of a source tensor.
#[derive(Debug, Clone, Serialize)]
pub struct TensorForecast {
    /// The file it lies in.
    pub file: String,
    /// Full name.
    pub tensor: String,
    /// Size.
    pub bytes: u64,
    /// `packed`, `copied` or `left-out`.
    pub becomes: &'static str,
    /// Why it is left out.
    pub reason: Option<Reason>,
    /// Name in the result: of the module if it is packed.
    pub output: Option<String>,
    /// Size in the result, if all steps fit the dtype asked for.
    pub output_bytes: u64,
}

/// What becomes of a file beside the weights.
#[derive(Debug, Clone, Serialize)]
pub struct FileForecast {
    /// Path below the source.
    pub path: String,
    /// Size.
    pub bytes: u64,
    /// `copied`, `rewritten` or `left-out`.
    pub becomes: &'static str,
    /// Why it is left out.
    pub reason: Option<&'static str>,
}

/// A measurement.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Probe {
    /// Source bytes that were read, hashed and recovered.
    pub bytes: u64,
    /// Seconds that it took.
    pub seconds: f64,
    /// Bytes (in units of 10^9) by second.
    pub gigabytes_per_second: f64,
}

/// Plans a conversion to `out` and tries its speed for a second.
///
/// Errors: whatever [`plan`] and [`convert`](crate::convert()) refuse before the first weight is
/// read.
pub fn forecast(
    source: Arc<dyn Source>,
    out: &Path,
    options: &Options,
) -> Result<(Plan, Forecast), ConvertError> {
    let destination = check_output(&*source, out)?;
    let free_bytes = free_space(&destination)?;
    let checkpoint = Checkpoint::open(source)?;
    let plan = plan(&checkpoint, options)?;
    let decisions = Decisions::first(&plan);
    let pool = thread_pool(options.threads)?;
    let probe = pool.install(|| probe(&checkpoint, &plan))?;
    let weight_bytes = decisions.contents.file_bytes()?;
    let source_bytes = plan.source_bytes();
    let forecast = Forecast {
        source: plan.source.clone(),
        destination: destination.display().to_string(),
        layout: plan.layout.name(),
        scale_dtype: plan.scale_dtype.name(),
        tensors: tensors(&plan, &decisions),
        files: files(&plan),
        source_bytes,
        weight_bytes,
        output_bytes: weight_bytes + plan.companion_bytes(),
        free_bytes,
        memory_bytes: memory(&checkpoint, &plan, pool.current_num_threads()),
        probe,
        seconds: source_bytes as f64 / 1e9 / probe.gigabytes_per_second,
        warnings: plan.warnings.clone(),
    };
    Ok((plan, forecast))
}

fn tensors(plan: &Plan, decisions: &Decisions) -> Vec<TensorForecast> {
    let of_tensor = |file: &str, name: &str, bytes, treatment| {
        let reason = match treatment {
            Treatment::LeaveOut(reason) => Some(reason),
            _ => None,
        };
        let (becomes, output, output_bytes) = match treatment {
            Treatment::LeaveOut(_) => ("left-out", None, 0),
            Treatment::KeepTower(tower) => of_destination(decisions, decisions.tower(tower)),
            // Of a module that is packed already the words stand for all three tensors.
            Treatment::Relay(position, Part::Scales | Part::Shape) => {
                let (becomes, output, _) = of_destination(decisions, decisions.text(position));
                (becomes, output, 0)
            }
            Treatment::PackEach { first, count } => {
                let parts = first..first + count;
                let bytes = parts.map(|at| of_destination(decisions, decisions.text(at)).2).sum();
                let stack = plan.names.full_name(plan.text[first].dense_name());
                ("packed", Some(stack), bytes)
            }
            Treatment::Pack(position)
            | Treatment::Copy(position)
            | Treatment::Relay(position, Part::Words) => {
                of_destination(decisions, decisions.text(position))
            }
        };
        let (file, tensor) = (file.to_string(), name.to_string());
        TensorForecast { file, tensor, bytes, becomes, reason, output, output_bytes }
    };
    plan.tensors()
        .map(|(shard, tensor)| of_tensor(&shard.path, &tensor.name, tensor.bytes, tensor.treatment))
        .collect()
}

/// What becomes of a tensor that goes there, under which name, and the bytes of it.
fn of_destination(
    decisions: &Decisions,
    destination: Destination,
) -> (&'static str, Option<String>, u64) {
    let contents = &decisions.contents;
    match destination {
        Destination::Packed(number) => {
            ("packed", Some(contents.modules[number].name.clone()), contents.packed_bytes(number))
        }
        Destination::Copied(number) => {
            ("copied", Some(contents.copied[number].name.clone()), contents.copied_bytes(number))
        }
    }
}

fn files(plan: &Plan) -> Vec<FileForecast> {
    let of_file = |file: &super::Companion| {
        let (becomes, reason) = match file.fate {
            CompanionFate::Copied => ("copied", None),
            CompanionFate::Rewritten => ("rewritten", None),
            CompanionFate::NotCopied(reason) => ("left-out", Some(reason)),
        };
        FileForecast { path: file.path.clone(), bytes: file.bytes, becomes, reason }
    };
    plan.companions.iter().map(of_file).collect()
}

/// An upper bound: blocks in flight, what each thread makes of its part, the headers (as text, as
/// entries, and in the manifest), the largest file that is copied whole.
fn memory(checkpoint: &Checkpoint, plan: &Plan, threads: usize) -> u64 {
    let headers: usize = checkpoint.shards().iter().map(|shard| shard.header.text.len()).sum();
    let copied = plan.companions.iter().filter(|file| file.fate == CompanionFate::Copied);
    let largest = copied.map(|file| file.bytes).max().unwrap_or(0);
    let of_thread = THREAD_MEMORY + chunk_memory();
    BASE_MEMORY + 2 * BLOCK + threads as u64 * of_thread + 12 * headers as u64 + largest
}

/// Reads blocks of the matrices, evenly spread, for a second or until there are no more, and does
/// with them what a conversion does, but for writing.
fn probe(checkpoint: &Checkpoint, plan: &Plan) -> Result<Probe, ConvertError> {
    let mut blocks = Vec::new();
    for (shard, planned) in checkpoint.shards().iter().zip(&plan.shards) {
        for (info, tensor) in shard.header.tensors.iter().zip(&planned.tensors) {
            let is_packed = matches!(tensor.treatment, Treatment::Relay(_, Part::Words));
            let is_dense =
                matches!(tensor.treatment, Treatment::Pack(_) | Treatment::PackEach { .. });
            if is_packed || is_dense {
                let begin = shard.header.data_start() + info.begin;
                let places = (0..info.bytes()).step_by(BLOCK as usize);
                blocks.extend(places.map(|at| {
                    let length = BLOCK.min(info.bytes() - at) as usize;
                    (&shard.path, begin + at, length, is_packed)
                }));
            }
        }
    }
    // Every 61st block first, and so through all of them: neighbours come far apart in time.
    let count = blocks.len();
    let order = (0..61).flat_map(|first| (first..count).step_by(61));
    let began = Instant::now();
    let (mut file, mut buffer, mut bytes) = (Hasher::default(), Vec::new(), 0);
    for number in order {
        let (path, begin, length, is_packed) = blocks[number];
        buffer.resize(length, 0);
        checkpoint.source().read_at(path, begin, &mut buffer)?;
        rayon::join(
            || {
                if !is_packed {
                    judge_block(&buffer, plan.scale_dtype);
                }
            },
            || rayon::join(|| file.update(&buffer), || Blake3Hasher::default().update(&buffer)),
        );
        bytes += length as u64;
        if began.elapsed().as_secs_f64() >= PROBE {
            break;
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    Ok(Probe { bytes, seconds, gigabytes_per_second: bytes as f64 / 1e9 / seconds })
}
