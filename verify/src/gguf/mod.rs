//! A GGUF file against the bf16 source: which codes are the source's, by which rule the steps were
//! chosen, and which tensors were quantized anew.
//!
//! A GGUF file is never "proved": not every key of its metadata has a counterpart. Its codes can be,
//! and what of architecture, vocabulary and template is not the source's is said: as a fault where
//! w4pack wrote the file (a manifest lies beside it), else as a note.

mod metadata;

use std::sync::Arc;

use rayon::prelude::*;
use w4pack_format::Result;
use w4pack_format::checkpoint::Checkpoint;
use w4pack_format::config::Config;
use w4pack_format::gguf::block::{
    Q4_0_BYTES, Q6_K_BYTES, Q6_K_ELEMENTS, q4_0_to_codes, q6_k_values,
};
use w4pack_format::gguf::{Gguf, GgufTensor, TensorType, names};
use w4pack_format::group::GROUP;
use w4pack_format::manifest::MANIFEST_FILE;
use w4pack_format::names::{Role, TextTensor, text_tensors};
use w4pack_format::scale::ScaleDtype;
use w4pack_format::source::Source;

use crate::arithmetic::judge::{SourceGroup, StepFinding, judge};
use crate::arithmetic::step_rule::Votes;
use crate::pair::layout_of;
use crate::progress::Progress;
use crate::report::{Counts, Fault, FaultClass, Groups, PackedTensor, Report, Verdict};

/// Groups that a thread takes at a time.
const BLOCK: usize = 1 << 14;

/// Holds the GGUF file `path` of `files` against the source.
///
/// Errors: a side cannot be read.
pub(crate) fn verify(
    files: &Arc<dyn Source>,
    path: &str,
    source: &Arc<dyn Source>,
    progress: &dyn Progress,
) -> Result<Report> {
    let files_at_hand = files;
    let files = &**files;
    let bytes = files.size(path).unwrap_or(0);
    let gguf = Gguf::parse(path, bytes, &mut |offset, buffer| files.read_at(path, offset, buffer))?;
    let source = Checkpoint::open(source.clone())?;
    let config = Config::load(&**source.source())?;
    let layout = layout_of(&source);
    let mut comparison = Comparison { files, path, gguf: &gguf, source: &source, progress };
    let mut report = Report { bytes: bytes + source.tensor_bytes(), ..Report::default() };
    progress.begin("comparing", report.bytes);
    let mut votes = Votes::default();
    let mut known = Vec::new();
    let tensors = text_tensors(&config.text);
    for tensor in &tensors {
        let name = layout.full_name(&tensor.name);
        let fail = |class, detail: String| Fault::of_tensor(class, path, &name, detail);
        let theirs = names::to_gguf(&tensor.name);
        let Some(found) = theirs.as_ref().and_then(|theirs| gguf.tensor(theirs)) else {
            let detail = "the GGUF file has no such tensor";
            report.faults.push(fail(FaultClass::TensorMissing, detail.into()));
            continue;
        };
        known.push(found.name.clone());
        let elements: usize = tensor.shape.iter().product();
        let there = source.tensor(&name).map(|found| found.info.bytes());
        let stored: usize = found.shape.iter().product();
        if stored != elements || there != Some(2 * elements as u64) {
            let shape = &found.shape;
            let detail = format!("it is {shape:?} there, {:?} by the configuration", tensor.shape);
            report.faults.push(fail(FaultClass::Header, detail));
            continue;
        }
        comparison.tensor(tensor, &name, found, &mut report, &mut votes)?;
    }
    for tensor in gguf.tensors.iter().filter(|tensor| !known.contains(&tensor.name)) {
        // llama.cpp's own constants stand beside the model's tensors.
        report.notes.push(format!("`{}` is no tensor of the source's text model", tensor.name));
    }
    let is_ours = files.size(MANIFEST_FILE).is_some();
    let differences = metadata::differences(files_at_hand, path, &**source.source())?;
    if differences.is_empty() {
        let note = "architecture, vocabulary, merges and chat template are the source's";
        report.notes.push(note.into());
    }
    for metadata::Difference { class, detail } in differences {
        if is_ours {
            report.faults.push(Fault::of_file(class, path, detail));
        } else {
            report.notes.push(format!("`{path}`: {detail}"));
        }
    }
    if is_ours {
        report.faults.extend(crate::manifest::check_files(files, &**source.source())?);
    }
    report.step_rule = votes.name();
    let only_steps = report.faults.iter().all(|fault| fault.class == FaultClass::Scale);
    report.verdict = if only_steps && report.whole.elements > 0 {
        Verdict::CodesProved
    } else {
        Verdict::Disproved
    };
    Ok(report)
}

/// Both sides.
struct Comparison<'a> {
    files: &'a dyn Source,
    path: &'a str,
    gguf: &'a Gguf,
    source: &'a Checkpoint,
    progress: &'a dyn Progress,
}

impl Comparison<'_> {
    fn tensor(
        &mut self,
        tensor: &TextTensor,
        name: &str,
        found: &GgufTensor,
        report: &mut Report,
        votes: &mut Votes,
    ) -> Result<()> {
        if found.tensor_type == TensorType::Q4_0 && tensor.is_matrix() {
            let part = self.groups(name, found)?;
            let counts = match tensor.role {
                Role::EmbedTokens => &mut report.tables.embed_tokens,
                Role::EmbedTokensPerLayer => &mut report.tables.embed_tokens_per_layer,
                Role::Linear | Role::Router | Role::Vector => &mut report.linears,
            };
            counts.add(&part.counts);
            report.whole.add(&part.counts);
            report.groups.add(&part.groups);
            votes.add(&part.votes);
            report.faults.extend(part.faults(self.path, name));
            report.packed.push(PackedTensor {
                module: found.name.clone(),
                scale_dtype: "f16".into(),
                counts: part.counts,
                groups: part.groups,
            });
            return Ok(());
        }
        let Some((differing, worst)) = self.values(name, found)? else {
            let detail = format!("it is stored as {}, which is not compared", found.tensor_type);
            report.faults.push(Fault::of_tensor(FaultClass::Header, self.path, name, detail));
            return Ok(());
        };
        if differing > 0 {
            let class =
                if tensor.is_matrix() { FaultClass::OffGrid } else { FaultClass::TensorBytes };
            let elements: usize = tensor.shape.iter().product();
            let detail = format!(
                "stored as {}, off the grid: {differing} of {elements} values differ, by at most {worst:e}",
                found.tensor_type
            );
            report.faults.push(Fault::of_tensor(class, self.path, name, detail));
        }
        Ok(())
    }

    /// Judges the blocks of a Q4_0 tensor.
    fn groups(&self, name: &str, found: &GgufTensor) -> Result<Part> {
        let all = found.bytes as usize / Q4_0_BYTES;
        let starts: Vec<usize> = (0..all).step_by(BLOCK).collect();
        let parts: Vec<Part> = starts
            .into_par_iter()
            .map(|start| {
                let count = BLOCK.min(all - start);
                let mut values = vec![0; count * 2 * GROUP];
                let mut blocks = vec![0; count * Q4_0_BYTES];
                self.source.read_range(name, (start * 2 * GROUP) as u64, &mut values)?;
                let offset = self.gguf.data_start + found.begin + (start * Q4_0_BYTES) as u64;
                self.files.read_at(self.path, offset, &mut blocks)?;
                let mut part = Part::default();
                let values_of = values.as_chunks::<{ 2 * GROUP }>().0.iter();
                for (number, (values, block)) in
                    (start..).zip(values_of.zip(blocks.as_chunks::<Q4_0_BYTES>().0))
                {
                    let values: [u16; GROUP] = std::array::from_fn(|i| {
                        u16::from_le_bytes([values[2 * i], values[2 * i + 1]])
                    });
                    part.take(number as u64, &values, block);
                }
                self.progress.advance((values.len() + blocks.len()) as u64);
                Ok(part)
            })
            .collect::<Result<_>>()?;
        Ok(parts.into_iter().fold(Part::default(), Part::with))
    }

    /// How many values of an unquantized or coarser stored tensor differ, and by how much; `None`
    /// for a type that is not taken apart.
    fn values(&self, name: &str, found: &GgufTensor) -> Result<Option<(u64, f32)>> {
        type Values = fn(&[u8]) -> Vec<f32>;
        let (block, elements, values): (usize, usize, Values) = match found.tensor_type {
            TensorType::F32 => (4, 1, |b| vec![f32::from_le_bytes([b[0], b[1], b[2], b[3]])]),
            TensorType::F16 => (2, 1, |b| vec![ScaleDtype::F16.read(b)]),
            TensorType::BF16 => (2, 1, |b| vec![ScaleDtype::BF16.read(b)]),
            TensorType::Q6_K => (Q6_K_BYTES, Q6_K_ELEMENTS, |b| {
                b.as_chunks::<Q6_K_BYTES>().0.iter().flat_map(q6_k_values).collect()
            }),
            _ => return Ok(None),
        };
        let all = found.bytes as usize / block;
        let starts: Vec<usize> = (0..all).step_by(BLOCK).collect();
        let found: Vec<(u64, f32)> = starts
            .into_par_iter()
            .map(|start| {
                let count = BLOCK.min(all - start);
                let mut ours = vec![0; count * elements * 2];
                let mut theirs = vec![0; count * block];
                self.source.read_range(name, (start * elements * 2) as u64, &mut ours)?;
                let offset = self.gguf.data_start + found.begin + (start * block) as u64;
                self.files.read_at(self.path, offset, &mut theirs)?;
                let theirs_of = theirs.chunks_exact(block).flat_map(values);
                let (mut differing, mut worst) = (0, 0f32);
                for (bytes, value) in ours.chunks_exact(2).zip(theirs_of) {
                    let distance = (ScaleDtype::BF16.read(bytes) - value).abs();
                    differing += u64::from(distance != 0.0);
                    worst = if distance.is_nan() { f32::INFINITY } else { worst.max(distance) };
                }
                self.progress.advance((ours.len() + theirs.len()) as u64);
                Ok((differing, worst))
            })
            .collect::<Result<_>>()?;
        let sum = found.iter().map(|part| part.0).sum();
        Ok(Some((sum, found.iter().fold(0.0, |worst, part| part.1.max(worst)))))
    }
}

/// What is known about some groups of a tensor.
#[derive(Default)]
struct Part {
    counts: Counts,
    groups: Groups,
    votes: Votes,
    wrong_codes: u64,
    first_wrong_code: Option<u64>,
    off_grid: u64,
    unusable_steps: u64,
    other_steps: u64,
}

impl Part {
    fn take(&mut self, number: u64, values: &[u16; GROUP], block: &[u8; Q4_0_BYTES]) {
        let (codes, step) = q4_0_to_codes(block);
        let step = step.to_f32();
        let judgement = judge(values, &codes, step, ScaleDtype::F16);
        self.counts.add(&Counts {
            elements: GROUP as u64,
            elements_differing: judgement.elements_differing.count_ones().into(),
            int4_codes_disagreeing: judgement.codes_disagreeing.count_ones().into(),
            worst_diff_in_units_of_group_step: judgement.worst,
        });
        self.groups.all += 1;
        match judgement.source {
            SourceGroup::Zero => self.groups.zero += 1,
            SourceGroup::OnGrid { many_peaks, sign_free } => {
                self.groups.many_peaks += u64::from(many_peaks);
                self.groups.sign_free += u64::from(sign_free);
            }
            SourceGroup::OffGrid | SourceGroup::NotFinite { .. } => self.groups.off_grid += 1,
        }
        match judgement.step {
            StepFinding::Canonical { finer } => {
                self.groups.steps_canonical += 1;
                self.groups.steps_inside += u64::from(finer.is_none());
            }
            StepFinding::NotCanonical { inside, .. } => {
                self.groups.steps_inside += u64::from(inside);
                self.other_steps += 1;
                self.votes.take(values, step, ScaleDtype::F16);
            }
            StepFinding::DtypeTooCoarse => self.groups.steps_canonical += 1,
            StepFinding::Unusable => self.unusable_steps += 1,
            StepFinding::NoGrid => self.off_grid += 1,
        }
        if judgement.codes_disagreeing != 0 {
            self.wrong_codes += 1;
            self.first_wrong_code.get_or_insert(number);
        }
    }

    /// Adds the groups that follow.
    fn with(mut self, later: Part) -> Part {
        self.counts.add(&later.counts);
        self.groups.add(&later.groups);
        self.votes.add(&later.votes);
        self.wrong_codes += later.wrong_codes;
        self.first_wrong_code = self.first_wrong_code.or(later.first_wrong_code);
        self.off_grid += later.off_grid;
        self.unusable_steps += later.unusable_steps;
        self.other_steps += later.other_steps;
        self
    }

    /// One line for each kind of fault: another maker's file has them by the thousand.
    fn faults(&self, path: &str, name: &str) -> Vec<Fault> {
        let all = self.groups.all;
        let first = self.first_wrong_code.unwrap_or(0);
        let kinds = [
            (
                FaultClass::Code,
                self.wrong_codes,
                format!(
                    "{} of {all} groups have other codes, first group {first}",
                    self.wrong_codes
                ),
            ),
            (
                FaultClass::OffGrid,
                self.off_grid,
                format!("{} of {all} source groups are on no grid", self.off_grid),
            ),
            (
                FaultClass::Scale,
                self.unusable_steps,
                format!("{} of {all} steps are zero or no number", self.unusable_steps),
            ),
            (
                FaultClass::Scale,
                self.other_steps,
                format!("{} of {all} steps are not the canonical f16 ones", self.other_steps),
            ),
        ];
        let found = kinds.into_iter().filter(|(_, count, _)| *count > 0);
        found.map(|(class, _, detail)| Fault::of_tensor(class, path, name, detail)).collect()
    }
}
