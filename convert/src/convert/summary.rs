//! From what the readings found to the report.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use w4pack_format::group::GROUP;
use w4pack_format::scale::ScaleDtype;

use super::decision::{Decisions, Destination};
use super::pass::{Found, Reading};
use crate::pack::{Packing, Written, fits_f16_when_unpacked, packed_config};
use crate::plan::{CompanionFate, Plan, Treatment};
use crate::report::{ByDtype, KeptTensor, LeftOut, NotCopied, PackedTensor, Report, Tally};

/// The readings of a conversion with the decisions they were made under.
pub(super) struct Outcome<'a> {
    first: (&'a Decisions, &'a Reading),
    last: (&'a Decisions, &'a Reading),
    passes: u32,
}

impl<'a> Outcome<'a> {
    /// One reading, and all tensors fitted.
    pub(super) fn once(decisions: &'a Decisions, reading: &'a Reading) -> Self {
        Outcome { first: (decisions, reading), last: (decisions, reading), passes: 1 }
    }

    /// A second reading, after the first showed which tensors need something else.
    pub(super) fn twice(
        first: &'a Decisions,
        first_reading: &'a Reading,
        last: &'a Decisions,
        last_reading: &'a Reading,
    ) -> Self {
        Outcome { first: (first, first_reading), last: (last, last_reading), passes: 2 }
    }

    /// The reading that the output rests on.
    pub(super) fn reading(&self) -> &'a Reading {
        self.last.1
    }

    /// What the first reading found in a matrix.
    fn found_first(&self, position: usize) -> Option<&'a Found> {
        match self.first.0.destinations[position] {
            Destination::Packed(module) => Some(&self.first.1.modules[module]),
            Destination::Copied(_) => None,
        }
    }

    /// Output names of the modules that stay in bf16.
    fn kept_modules(&self, plan: &Plan) -> Vec<String> {
        self.kept(plan).into_iter().map(|kept| kept.module).collect()
    }

    /// config.json of the output; a GGUF file has none.
    pub(super) fn config(&self, plan: &Plan) -> Option<serde_json::Value> {
        if plan.gguf.is_some() {
            return None;
        }
        let contents = &self.last.0.contents;
        let is_bf16 = |module: &crate::pack::Module| module.scale_dtype == ScaleDtype::BF16;
        let packing = Packing {
            layout: plan.layout,
            names: plan.names,
            kept: &self.kept_modules(plan),
            own_head: contents.head.is_some(),
            all_scales_bf16: contents.modules.iter().all(is_bf16),
        };
        Some(packed_config(&plan.config, &packing))
    }

    fn kept(&self, plan: &Plan) -> Vec<KeptTensor> {
        let of_position = |position| {
            let found = self.found_first(position)?;
            let (row, group, misfit) = match (&found.off_grid, &found.fell_back) {
                (Some(off_grid), _) => (off_grid.row, off_grid.group, off_grid.misfit.to_string()),
                (None, Some(beyond)) if plan.gguf.is_some() => {
                    let misfit = format!("its step {} is beyond f16", beyond.step);
                    (beyond.row, beyond.group, misfit)
                }
                _ => return None,
            };
            let (module, source_name) = (plan.output_module(position), plan.source_name(position));
            Some(KeptTensor { module, source_name, row, group, misfit })
        };
        (0..plan.text.len()).filter_map(of_position).collect()
    }

    fn packed(&self, plan: &Plan) -> Vec<PackedTensor> {
        let of_position = |position: usize| {
            let Destination::Packed(number) = self.last.0.destinations[position] else {
                return None;
            };
            let module = &self.last.0.contents.modules[number];
            Some(PackedTensor {
                module: module.name.clone(),
                source_name: plan.source_name(position),
                rows: module.rows,
                columns: module.columns,
                scale_dtype: module.scale_dtype.name(),
                relayed: plan.relayed[position].is_some(),
                fell_back: self.found_first(position)?.fell_back.clone(),
                tally: self.last.1.modules[number].tally,
            })
        };
        (0..plan.text.len()).filter_map(of_position).collect()
    }

    /// Warnings that only the weights could give.
    fn warnings(&self, plan: &Plan) -> Vec<String> {
        let (decisions, reading) = self.last;
        // Both are about readers of safetensors.
        if plan.gguf.is_some() {
            return Vec::new();
        }
        let too_large = |(module, found): (&crate::pack::Module, &Found)| {
            let overflows = module.scale_dtype == ScaleDtype::F16
                && !fits_f16_when_unpacked(found.largest_step);
            overflows.then(|| {
                format!(
                    "`{}` has a step of {}: transformers' `dequantize` multiplies in f16 and \
                     overflows there (--scale-dtype f32 is exact)",
                    module.name, found.largest_step
                )
            })
        };
        let mut warnings: Vec<String> =
            decisions.contents.modules.iter().zip(&reading.modules).filter_map(too_large).collect();
        warnings.extend(split_fusions(&self.kept_modules(plan), &decisions.contents.modules));
        warnings
    }
}

/// Modules that vLLM fuses and that must be packed together or not at all.
const FUSED: [&[&str]; 2] = [
    &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    &["mlp.gate_proj", "mlp.up_proj"],
];

fn split_fusions(kept: &[String], packed: &[crate::pack::Module]) -> Vec<String> {
    let mut warnings = Vec::new();
    let mut expert_layers = BTreeSet::new();
    for module in kept {
        if let Some((layer, _)) = module.split_once(".experts.") {
            let experts = format!("{layer}.experts.");
            let split = packed.iter().any(|packed| packed.name.starts_with(&experts));
            if split && expert_layers.insert(layer) {
                warnings.push(format!(
                    "`{module}` stays in bf16 while others of `{layer}.experts` are packed: vLLM \
                     refuses such a mixture"
                ));
            }
        }
        for fused in FUSED {
            let Some(layer) = fused.iter().find_map(|part| module.strip_suffix(part)) else {
                continue;
            };
            let partners: Vec<String> = fused.iter().map(|part| format!("{layer}{part}")).collect();
            let split = packed.iter().any(|packed| partners.contains(&packed.name));
            if split {
                warnings.push(format!(
                    "`{module}` stays in bf16 while others of {} are packed: vLLM refuses such a \
                     mixture",
                    fused.join(", ")
                ));
            }
        }
    }
    warnings
}

fn by_scale_dtype(packed: &[PackedTensor]) -> Vec<ByDtype> {
    let of_dtype = |dtype: ScaleDtype| {
        let tensors: Vec<_> =
            packed.iter().filter(|tensor| tensor.scale_dtype == dtype.name()).collect();
        (!tensors.is_empty()).then(|| ByDtype {
            scale_dtype: dtype.name(),
            tensors: tensors.len(),
            values: tensors.iter().map(|tensor| GROUP as u64 * tensor.tally.groups).sum(),
            values_differing: tensors.iter().map(|tensor| tensor.tally.values_differing).sum(),
        })
    };
    ScaleDtype::ALL.into_iter().filter_map(of_dtype).collect()
}

/// The report of a finished conversion.
pub(super) fn report(
    plan: &Plan,
    out: &Path,
    outcome: &Outcome<'_>,
    written: Written,
    elapsed: Duration,
) -> Report {
    let packed = outcome.packed(plan);
    let mut total = Tally::default();
    for tensor in &packed {
        total.add(&tensor.tally);
    }
    let left_out =
        plan.tensors().zip(&outcome.reading().tensors).filter_map(|((shard, tensor), record)| {
            match tensor.treatment {
                Treatment::LeaveOut(reason) => Some(LeftOut {
                    file: shard.path.clone(),
                    tensor: tensor.name.clone(),
                    bytes: tensor.bytes,
                    sha256: record.sha256.clone().expect("only packed tensors go without"),
                    reason,
                }),
                Treatment::Pack(_)
                | Treatment::PackEach { .. }
                | Treatment::Relay(..)
                | Treatment::Copy(_)
                | Treatment::KeepTower(_) => None,
            }
        });
    let copied_files = plan.companions.iter().filter(|file| file.fate == CompanionFate::Copied);
    let not_copied = plan.companions.iter().filter_map(|file| match file.fate {
        CompanionFate::NotCopied(reason) => Some(NotCopied { path: file.path.clone(), reason }),
        CompanionFate::Copied | CompanionFate::Rewritten => None,
    });
    let seconds = elapsed.as_secs_f64();
    let contents = &outcome.last.0.contents;
    Report {
        source: plan.source.clone(),
        out: out.display().to_string(),
        layout: plan.layout.name(),
        scale_dtype: plan.scale_dtype.name(),
        source_bytes: plan.source_bytes(),
        output_bytes: written.files.iter().map(|file| file.bytes).sum(),
        sidecar_bytes: written.sidecar_bytes,
        seconds,
        gigabytes_per_second: plan.source_bytes() as f64 / 1e9 / seconds,
        peak_memory_bytes: crate::memory::peak_resident(),
        passes: outcome.passes,
        total,
        by_scale_dtype: by_scale_dtype(&packed),
        packed,
        off_grid: outcome.kept(plan),
        copied_tensors: contents.copied.iter().map(|tensor| tensor.name.clone()).collect(),
        left_out: left_out.collect(),
        copied_files: copied_files.map(|file| file.path.clone()).collect(),
        not_copied: not_copied.collect(),
        files: written.files,
        warnings: [plan.warnings.clone(), outcome.warnings(plan)].concat(),
    }
}
