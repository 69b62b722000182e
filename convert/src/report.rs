//! What a conversion did, in numbers.

use serde::Serialize;
use w4pack_format::manifest::FileRecord;

use crate::plan::Reason;

/// The whole report.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The source, as the user named it.
    pub source: String,
    /// The output folder.
    pub out: String,
    /// Layout of the output.
    pub layout: &'static str,
    /// The scale dtype asked for.
    pub scale_dtype: &'static str,
    /// Bytes of the source's weight files.
    pub source_bytes: u64,
    /// Bytes of all output files.
    pub output_bytes: u64,
    /// Bytes of `w4pack/exact.safetensors`.
    pub sidecar_bytes: u64,
    /// Seconds from the first read to the final name.
    pub seconds: f64,
    /// Source bytes (in units of 10^9) by second.
    pub gigabytes_per_second: f64,
    /// The most bytes of memory that the process held at a time, program text included.
    pub peak_memory_bytes: Option<u64>,
    /// How often the source was read: 2 if tensors needed another layout than was tried first.
    pub passes: u32,
    /// Sums over all packed tensors.
    pub total: Tally,
    /// Values that differ, by the dtype of the scales.
    pub by_scale_dtype: Vec<ByDtype>,
    /// The packed tensors in the order of the data's way through the model.
    pub packed: Vec<PackedTensor>,
    /// Tensors that stayed in bf16 because a group is off the grid, or, in a GGUF file, has a step
    /// beyond f16.
    pub off_grid: Vec<KeptTensor>,
    /// Output names of the tensors copied byte for byte (norms, scalars, off-grid tensors).
    pub copied_tensors: Vec<String>,
    /// Source tensors that are not in the output.
    pub left_out: Vec<LeftOut>,
    /// Source files copied byte for byte.
    pub copied_files: Vec<String>,
    /// Source files that are not in the output.
    pub not_copied: Vec<NotCopied>,
    /// The output files, the manifest excepted.
    pub files: Vec<FileRecord>,
    /// What the user should know.
    pub warnings: Vec<String>,
}

/// Counts over groups.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Tally {
    /// All groups.
    pub groups: u64,
    /// Groups with a positive step.
    pub positive: u64,
    /// Groups with a negative step.
    pub negative: u64,
    /// Groups of nothing but zeros.
    pub zero: u64,
    /// Groups whose stored step does not give all values back.
    pub inexact_groups: u64,
    /// Values with bf16(code·stored step) ≠ the source's.
    pub values_differing: u64,
    /// The same for readers that round more often than w4pack does.
    pub by_other_readers: ByReader,
    /// Groups by peak level, the largest code magnitude: 0 to 8.
    pub peak_levels: [u64; 9],
}

/// Values that a reader gives back as another bf16 number than the source's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct ByReader {
    /// transformers with `dequantize`: multiplies in the scale's dtype.
    pub transformers_dequantize: u64,
    /// Readers that cast scales to bf16: vLLM in bf16, transformers without `dequantize`.
    pub scales_in_bf16: u64,
}

/// Values of the packed tensors whose scales have one dtype.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ByDtype {
    /// The dtype.
    pub scale_dtype: &'static str,
    /// Tensors.
    pub tensors: usize,
    /// Their values.
    pub values: u64,
    /// Those with bf16(code·stored step) ≠ the source's.
    pub values_differing: u64,
}

impl Tally {
    /// Adds another tally to this one.
    pub fn add(&mut self, other: &Tally) {
        self.groups += other.groups;
        self.positive += other.positive;
        self.negative += other.negative;
        self.zero += other.zero;
        self.inexact_groups += other.inexact_groups;
        self.values_differing += other.values_differing;
        let (sum, others) = (&mut self.by_other_readers, &other.by_other_readers);
        sum.transformers_dequantize += others.transformers_dequantize;
        sum.scales_in_bf16 += others.scales_in_bf16;
        for (sum, count) in self.peak_levels.iter_mut().zip(other.peak_levels) {
            *sum += count;
        }
    }
}

/// A packed tensor.
#[derive(Debug, Clone, Serialize)]
pub struct PackedTensor {
    /// The module's name in the output.
    pub module: String,
    /// The tensor's name in the source.
    pub source_name: String,
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub columns: usize,
    /// The dtype of its stored steps.
    pub scale_dtype: &'static str,
    /// Whether it was packed in the source and went over as it was. Then there are no bf16 values to
    /// compare with, and the counts of what differs say nothing.
    pub relayed: bool,
    /// Why it is not the dtype asked for.
    pub fell_back: Option<FellBack>,
    /// Its groups.
    #[serde(flatten)]
    pub tally: Tally,
}

/// The first group whose canonical step in the dtype asked for misses its interval by more than
/// 2^-8, which gives the whole tensor f32 scales.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FellBack {
    /// Row of the matrix.
    pub row: u64,
    /// Group within the row.
    pub group: u64,
    /// What the dtype asked for could store.
    pub narrow_step: f32,
    /// What f32 stores.
    pub step: f32,
}

/// A tensor that stayed in bf16.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct KeptTensor {
    /// The module's name in the output, listed under `ignore`.
    pub module: String,
    /// The tensor's name in the source.
    pub source_name: String,
    /// Row of its first group off the grid.
    pub row: u64,
    /// That group within the row.
    pub group: u64,
    /// The nearest fit, in words.
    pub misfit: String,
}

/// A source tensor that is not in the output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    /// The file it lies in.
    pub file: String,
    /// Full name.
    pub tensor: String,
    /// Size.
    pub bytes: u64,
    /// SHA-256 of its bytes.
    pub sha256: String,
    /// Why.
    pub reason: Reason,
}

/// A source file that is not in the output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NotCopied {
    /// The file.
    pub path: String,
    /// Why.
    pub reason: &'static str,
}
