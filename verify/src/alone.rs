//! A result without its source: does it agree with itself? That proves nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use w4pack_format::Result;
use w4pack_format::checkpoint::Checkpoint;
use w4pack_format::config::{CONFIG_FILE, Config};
use w4pack_format::dtype::Dtype;
use w4pack_format::exact::EXACT_FILE;
use w4pack_format::names::{Role, is_tower, text_tensors};
use w4pack_format::scale::ScaleDtype;
use w4pack_format::source::Source;

use crate::config::{self, Facts, Module};
use crate::findings::Findings;
use crate::ledger::total_bytes;
use crate::pair::{layout_of, note_narrow_shapes, parts_of};
use crate::pass::Hashes;
use crate::progress::Progress;
use crate::ranges::Range;
use crate::report::{Fault, FaultClass, Report, Verdict};
use crate::sidecar::Sidecar;
use crate::{companions, headers, manifest};

/// Checks a result against its own configuration and manifest.
pub fn verify(result: &Arc<dyn Source>, progress: &dyn Progress) -> Result<Report> {
    let result = Checkpoint::open(result.clone())?;
    let config = Config::load(&**result.source())?;
    let layout = layout_of(&result);
    let mut findings = Findings::default();
    let mut facts = Facts {
        layout,
        modules: Vec::new(),
        has_head: result.names().any(|name| name.starts_with("lm_head.")),
        head_packed: result.tensor("lm_head.weight_packed").is_some(),
        towers: result.names().any(is_tower),
        scale_dtypes: Vec::new(),
        ours: config::is_ours(&**result.source()),
    };
    let mut report = Report { bytes: total_bytes(&**result.source()), ..Report::default() };
    progress.begin("checking", report.bytes);
    let mut known = BTreeSet::new();
    let mut packed = Vec::new();
    let mut narrow_shapes = 0;
    for tensor in text_tensors(&config.text) {
        let module = layout.full_name(tensor.module());
        let parts = parts_of(&result, &module);
        known.insert(layout.full_name(&tensor.name));
        let stack = tensor.stack.as_ref().map(|stack| layout.full_name(&stack.name));
        if let Some(stack) = stack.filter(|stack| !parts.any() && result.tensor(stack).is_some()) {
            // The experts of a layer in one piece: looked at with the first of them.
            if known.insert(stack.clone()) {
                check_dense(&result, tensor.dense_shape(), stack, &mut findings);
            }
            continue;
        }
        if !tensor.is_matrix() || !parts.any() {
            check_dense(&result, &tensor.shape, layout.full_name(&tensor.name), &mut findings);
            if tensor.is_matrix() || tensor.role == Role::Router {
                facts.modules.push(Module { name: module, role: tensor.role, packed: false });
            }
            continue;
        }
        known.extend(
            ["weight_packed", "weight_scale", "weight_shape"].map(|s| format!("{module}.{s}")),
        );
        facts.modules.push(Module { name: module.clone(), role: tensor.role, packed: true });
        narrow_shapes += usize::from(parts.has_narrow_shape());
        let [rows, columns] = tensor.shape[..] else { continue };
        match parts.check(&result, &module, [rows, columns]) {
            Ok(dtype) => {
                if !facts.scale_dtypes.contains(&dtype) {
                    facts.scale_dtypes.push(dtype);
                }
                check_scales(&result, &module, dtype, columns / 32, progress, &mut findings)?;
                packed.push(module);
            }
            Err(faults) => findings.faults.extend(faults),
        }
    }
    for name in result.names() {
        if !known.contains(name) && !is_tower(name) && !name.starts_with("lm_head.") {
            let file = result.tensor(name).map_or("", |found| &found.shard.path);
            let detail = "nothing in the configuration demands this tensor";
            findings.faults.push(Fault::of_tensor(FaultClass::TensorExtra, file, name, detail));
        }
    }
    report.tied_copies_identical = check_head(&result, &facts, progress, &mut findings)?;
    note_narrow_shapes(narrow_shapes, &mut findings);
    config::check_alone(&**result.source(), &facts, &mut findings);
    headers::check(&result, &mut findings)?;
    findings.faults.extend(companions::strangers(&result));
    if config.tie_word_embeddings == facts.has_head {
        let detail = "tie_word_embeddings does not fit the presence of lm_head tensors";
        findings.faults.push(Fault::of_file(FaultClass::Tie, CONFIG_FILE, detail));
    }
    match Sidecar::open(result.source()) {
        None => {}
        Some(Err(fault)) => findings.faults.push(fault),
        Some(Ok(sidecar)) => {
            let modules: Vec<&str> = packed.iter().map(String::as_str).collect();
            headers::check_header(EXACT_FILE, sidecar.header(), &mut findings);
            findings.faults.extend(sidecar.strangers(&modules));
            findings
                .faults
                .extend(modules.iter().filter_map(|module| sidecar.module(module).err()));
        }
    }
    let manifest = manifest::open(&**result.source(), &mut findings)?;
    let may_keep = manifest.as_ref().is_some_and(|manifest| manifest.options.allow_off_grid);
    for mixture in config::mixtures(&facts) {
        if may_keep {
            findings.note(mixture);
        } else {
            findings.faults.push(Fault::of_file(FaultClass::Config, CONFIG_FILE, mixture));
        }
    }
    if let Some(manifest) = manifest {
        let unknown = Hashes::default();
        manifest::check_result(&manifest, &**result.source(), &facts, &unknown, &mut findings)?;
    }
    manifest::laid_out::check(&**result.source(), &BTreeMap::new(), &mut findings)?;
    report.verdict =
        if findings.faults.is_empty() { Verdict::SelfConsistent } else { Verdict::Disproved };
    report.step_rule = "unknown without a source".into();
    report.faults = findings.faults;
    report.notes = findings.notes;
    Ok(report)
}

fn check_dense(result: &Checkpoint, shape: &[usize], name: String, findings: &mut Findings) {
    let Some(found) = result.tensor(&name) else {
        let file = result.shards().first().map_or("", |shard| &shard.path);
        let detail = "the configuration demands this tensor";
        findings.faults.push(Fault::of_tensor(FaultClass::TensorMissing, file, &name, detail));
        return;
    };
    if found.info.dtype != Dtype::BF16 || found.info.shape != shape {
        let detail =
            format!("it is {} {:?}, it must be BF16 {shape:?}", found.info.dtype, found.info.shape);
        let path = &found.shard.path;
        findings.faults.push(Fault::of_tensor(FaultClass::Header, path, &name, detail));
    }
}

/// Scales must be finite and not zero.
fn check_scales(
    result: &Checkpoint,
    module: &str,
    dtype: ScaleDtype,
    groups_in_row: usize,
    progress: &dyn Progress,
    findings: &mut Findings,
) -> Result<()> {
    let name = format!("{module}.weight_scale");
    let Some(found) = result.tensor(&name) else { return Ok(()) };
    let mut buffer = vec![0; 1 << 20];
    let mut done = 0;
    let mut bad = 0;
    while done < found.info.bytes() {
        let length = buffer.len().min((found.info.bytes() - done) as usize);
        result.read_range(&name, done, &mut buffer[..length])?;
        let first = done as usize / dtype.bytes();
        for (place, bytes) in buffer[..length].chunks_exact(dtype.bytes()).enumerate() {
            let step = dtype.read(bytes);
            if step.is_finite() && step != 0.0 {
                continue;
            }
            bad += 1;
            if bad <= crate::prove::LISTED {
                let number = first + place;
                let (row, group) = (number / groups_in_row, number % groups_in_row);
                let detail = format!("the step {step} is not a usable number");
                let fault = Fault::of_tensor(FaultClass::Scale, &found.shard.path, &name, detail);
                findings.faults.push(fault.at(row as u64, group as u64));
            }
        }
        progress.advance(length as u64);
        done += length as u64;
    }
    Ok(())
}

/// A second head must equal the table.
fn check_head(
    result: &Checkpoint,
    facts: &Facts,
    progress: &dyn Progress,
    findings: &mut Findings,
) -> Result<Option<bool>> {
    let mut identical = facts.has_head.then_some(true);
    for name in result.names().filter(|name| name.starts_with("lm_head.")) {
        let part = name.strip_prefix("lm_head.").unwrap_or(name);
        let twin = facts.layout.full_name(&format!("embed_tokens.{part}"));
        let (Some(head), Some(table)) = (result.tensor(name), result.tensor(&twin)) else {
            identical = Some(false);
            continue;
        };
        let (head_range, table) = (Range::of_tensor(result, head), Range::of_tensor(result, table));
        let equal = head_range.bytes == table.bytes
            && head_range.compare(&table, progress)?.differences.bytes == 0;
        if !equal {
            identical = Some(false);
            let detail = format!("it is not the same as `{twin}`");
            findings.faults.push(Fault::of_tensor(FaultClass::Tie, &head.shard.path, name, detail));
        }
    }
    Ok(identical)
}
