//! The proof: result and source side by side.

use std::sync::Arc;

use rayon::prelude::*;
use w4pack_format::Result;
use w4pack_format::checkpoint::Checkpoint;
use w4pack_format::config::{CONFIG_FILE, Config};
use w4pack_format::exact::EXACT_FILE;
use w4pack_format::names::Role;
use w4pack_format::source::Source;

use crate::arithmetic::step_rule::Votes;
use crate::config::{self, Facts, Module};
use crate::findings::Findings;
use crate::ledger::{Class, Side, total_bytes};
use crate::pair::{EqualPair, Pairing, note_narrow_shapes, pair};
use crate::progress::Progress;
use crate::prove::prove;
use crate::ranges::Range;
use crate::report::{Fault, FaultClass, Item, PackedTensor, Report, Verdict};
use crate::sidecar::Sidecar;
use crate::{companions, headers, manifest};

/// Holds a result against its source. Errors: a side cannot be read, or changes on the way.
pub fn verify(
    result: &Arc<dyn Source>,
    source: &Arc<dyn Source>,
    progress: &dyn Progress,
) -> Result<Report> {
    // Cheap checks first: headers, names, sizes.
    let result = Checkpoint::open(result.clone())?;
    let source = Checkpoint::open(source.clone())?;
    let config = Config::load(&**source.source())?;
    if let Some(fault) = packed_already(&source, &config) {
        return Ok(Report { faults: vec![fault], notes: vec![HINT.into()], ..Report::default() });
    }
    let mut findings = Findings::default();
    findings.ledger.enter(Side::Source, &source);
    findings.ledger.enter(Side::Result, &result);
    for key in &config.unknown {
        findings.note(format!("w4pack does not know the source's config key `{key}`"));
    }
    let pairing = pair(&source, &result, &config.text, &mut findings);
    note_narrow_shapes(pairing.narrow_shapes, &mut findings);
    let facts = facts(&pairing, &result);
    config::check(&**source.source(), &**result.source(), &facts, &mut findings);
    // Kept matrices are the maker's choice; that vLLM does not take them is worth a word.
    findings.notes.extend(config::mixtures(&facts));
    headers::check(&result, &mut findings)?;
    companions::check(&source, &result, &mut findings)?;

    // Then every byte.
    let mut report = Report {
        bytes: total_bytes(&**source.source()) + total_bytes(&**result.source()),
        ..Report::default()
    };
    progress.begin("proving", report.bytes);
    copies(&pairing.copies, &source, &result, progress, &mut findings)?;
    report.tied_copies_identical = head(&pairing.head, &result, progress, &mut findings)?;
    left_out(&pairing.left_out, &source, progress, &mut findings)?;
    let votes = packed(&pairing, &source, &result, progress, &mut findings, &mut report)?;
    report.step_rule = votes.name();
    if let Some(manifest) = manifest::open(&**result.source(), &mut findings)? {
        progress.begin("hashing", report.bytes);
        manifest::check_result(&manifest, &**result.source(), &facts, progress, &mut findings)?;
        manifest::check_source(&manifest, &source, &pairing, progress, &mut findings)?;
    }
    finish(report, findings)
}

const HINT: &str = "hint: --source names the checkpoint that was converted, in bf16";

/// A source in 4 bits is a result: there is nothing to prove it against.
fn packed_already(source: &Checkpoint, config: &Config) -> Option<Fault> {
    let detail = "the source is packed already";
    let packed = source.names().find(|name| name.ends_with(".weight_packed"));
    if let Some(found) = packed.and_then(|name| source.tensor(name)) {
        let (file, name) = (&found.shard.path, &found.info.name);
        return Some(Fault::of_tensor(FaultClass::TensorExtra, file, name, detail));
    }
    config.quantization.is_some().then(|| {
        let detail = format!("{detail}: it has a quantization_config");
        Fault::of_file(FaultClass::Config, CONFIG_FILE, detail)
    })
}

/// What the paired tensors show.
fn facts(pairing: &Pairing, result: &Checkpoint) -> Facts {
    let packed = pairing.packed.iter().map(|pair| Module {
        name: pair.module.clone(),
        role: pair.role,
        packed: true,
    });
    let dense = pairing.dense.iter().map(|tensor| Module {
        name: pairing.layout.full_name(tensor.module()),
        role: tensor.role,
        packed: false,
    });
    let mut scale_dtypes = Vec::new();
    for pair in &pairing.packed {
        if !scale_dtypes.contains(&pair.scale_dtype) {
            scale_dtypes.push(pair.scale_dtype);
        }
    }
    Facts {
        layout: pairing.layout,
        modules: packed.chain(dense).collect(),
        has_head: !pairing.head.is_empty(),
        head_packed: pairing.head.iter().any(|pair| pair.result.ends_with("weight_packed")),
        towers: pairing.towers,
        scale_dtypes,
        ours: config::is_ours(&**result.source()),
    }
}

/// Compares tensors that must be the same on both sides.
fn copies(
    pairs: &[EqualPair],
    source: &Checkpoint,
    result: &Checkpoint,
    progress: &dyn Progress,
    findings: &mut Findings,
) -> Result<()> {
    let compare = |pair: &EqualPair| -> Result<Option<(Item, Option<Fault>)>> {
        let (Some(ours), Some(theirs)) = (result.tensor(&pair.result), source.tensor(&pair.other))
        else {
            return Ok(None);
        };
        let range = Range::of_tensor(result, ours);
        let other = Range::of_tensor(source, theirs).part(pair.other_begin, range.bytes);
        let comparison = range.compare(&other, progress)?;
        let item = Item {
            file: ours.shard.path.clone(),
            tensor: Some(pair.result.clone()),
            bytes: range.bytes,
            sha256: comparison.sha256,
        };
        let fault = comparison.differences.first.map(|first| {
            let detail = format!(
                "{} bytes differ from the source's `{}`, first at byte {first}",
                comparison.differences.bytes, pair.other
            );
            let fault = Fault::of_tensor(FaultClass::TensorBytes, &item.file, &pair.result, detail);
            let columns = ours.info.shape.get(1..).unwrap_or(&[]).iter().product::<usize>().max(1);
            Fault { row: Some(first / 2 / columns as u64), ..fault }
        });
        Ok(Some((item, fault)))
    };
    let found: Vec<_> = pairs.par_iter().map(compare).collect::<Result<_>>()?;
    for (item, fault) in found.into_iter().flatten() {
        match fault {
            None => findings.copied.push(item),
            Some(fault) => findings.faults.push(fault),
        }
    }
    Ok(())
}

/// Compares a second head with the table; `None` when there is none.
fn head(
    pairs: &[EqualPair],
    result: &Checkpoint,
    progress: &dyn Progress,
    findings: &mut Findings,
) -> Result<Option<bool>> {
    let mut identical = (!pairs.is_empty()).then_some(true);
    for pair in pairs {
        let (Some(head), Some(table)) = (result.tensor(&pair.result), result.tensor(&pair.other))
        else {
            continue;
        };
        let range = Range::of_tensor(result, head);
        let comparison = range.compare(&Range::of_tensor(result, table), progress)?;
        if comparison.differences.bytes > 0 {
            identical = Some(false);
            let detail = format!(
                "{} bytes differ from `{}`, first at byte {}",
                comparison.differences.bytes,
                pair.other,
                comparison.differences.first.unwrap_or(0)
            );
            let file = &head.shard.path;
            findings.faults.push(Fault::of_tensor(FaultClass::Tie, file, &pair.result, detail));
        }
    }
    Ok(identical)
}

/// Hashes source tensors that are left out.
fn left_out(
    names: &[String],
    source: &Checkpoint,
    progress: &dyn Progress,
    findings: &mut Findings,
) -> Result<()> {
    let hash = |name: &String| -> Result<Option<Item>> {
        let Some(found) = source.tensor(name) else { return Ok(None) };
        let range = Range::of_tensor(source, found);
        Ok(Some(Item {
            file: found.shard.path.clone(),
            tensor: Some(name.clone()),
            bytes: range.bytes,
            sha256: range.sha256(progress)?,
        }))
    };
    let items: Vec<_> = names.par_iter().map(hash).collect::<Result<_>>()?;
    findings.left_out.extend(items.into_iter().flatten());
    Ok(())
}

/// Proves every packed module, one after the other.
fn packed(
    pairing: &Pairing,
    source: &Checkpoint,
    result: &Checkpoint,
    progress: &dyn Progress,
    findings: &mut Findings,
    report: &mut Report,
) -> Result<Votes> {
    let sidecar = sidecar(pairing, result, findings);
    let mut votes = Votes::default();
    for pair in &pairing.packed {
        let entry = match sidecar.as_ref().map(|sidecar| sidecar.module(&pair.module)) {
            Some(Ok(entry)) => Some(entry),
            Some(Err(fault)) => {
                findings.faults.push(fault);
                None
            }
            None => None,
        };
        let tally = prove(pair, result, source, entry, progress)?;
        let counts = match pair.role {
            Role::EmbedTokens => &mut report.tables.embed_tokens,
            Role::EmbedTokensPerLayer => &mut report.tables.embed_tokens_per_layer,
            Role::Linear | Role::Router | Role::Vector => &mut report.linears,
        };
        counts.add(&tally.counts);
        report.whole.add(&tally.counts);
        report.groups.add(&tally.groups);
        votes.add(&tally.rules);
        report.packed.push(PackedTensor {
            module: pair.module.clone(),
            scale_dtype: pair.scale_dtype.name().into(),
            counts: tally.counts,
            groups: tally.groups,
        });
        findings.faults.extend(tally.into_faults());
    }
    Ok(votes)
}

/// Opens the sidecar, claims its bytes, and names entries that belong to no module.
fn sidecar(pairing: &Pairing, result: &Checkpoint, findings: &mut Findings) -> Option<Sidecar> {
    let packed = pairing.packed.iter().map(|pair| &pair.module);
    let modules: Vec<&str> = packed.chain(&pairing.broken).map(String::as_str).collect();
    match Sidecar::open(result.source()) {
        None => {
            findings.note(format!(
                "the result has no `{EXACT_FILE}`; the source cannot be restored from it alone"
            ));
            None
        }
        Some(opened) => {
            findings.ledger.claim_file(Side::Result, EXACT_FILE, Class::Sidecar);
            match opened {
                Ok(sidecar) => {
                    headers::check_header(EXACT_FILE, sidecar.header(), findings);
                    findings.faults.extend(sidecar.strangers(&modules));
                    Some(sidecar)
                }
                Err(fault) => {
                    findings.faults.push(fault);
                    None
                }
            }
        }
    }
}

/// Closes the account and pronounces.
fn finish(mut report: Report, mut findings: Findings) -> Result<Report> {
    if findings.faults.is_empty() {
        // What nobody claims is a fault even where no check has a name for it.
        findings.faults.extend(findings.ledger.open().map(|(side, file, tensor, bytes)| {
            let detail = format!("{bytes} bytes of the {side} that no check accounts for");
            match tensor {
                Some(tensor) => Fault::of_tensor(FaultClass::TensorExtra, file, tensor, detail),
                None => Fault::of_file(FaultClass::CompanionFile, file, detail),
            }
        }));
    }
    let (accounted, unaccounted) = findings.ledger.close();
    report.accounted = accounted;
    report.unaccounted = unaccounted;
    report.copied = findings.copied;
    report.left_out = findings.left_out;
    report.faults = findings.faults;
    report.notes = findings.notes;
    let only_steps = report.faults.iter().all(|fault| fault.class == FaultClass::Scale);
    // A step so far off that a code no longer names its value is damage, not a rule.
    let is_rule = report.whole.worst_diff_in_units_of_group_step < 0.5;
    report.verdict = if report.faults.is_empty() && unaccounted == 0 {
        Verdict::Proved
    } else if !report.faults.is_empty() && only_steps && is_rule && unaccounted == 0 {
        Verdict::CodesProved
    } else {
        Verdict::Disproved
    };
    Ok(report)
}
