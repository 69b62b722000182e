//! The proof: result and source side by side.

use std::sync::Arc;

use w4pack_format::Result;
use w4pack_format::checkpoint::Checkpoint;
use w4pack_format::config::{CONFIG_FILE, Config};
use w4pack_format::exact::EXACT_FILE;
use w4pack_format::names::Role;
use w4pack_format::source::Source;

use crate::Options;
use crate::arithmetic::step_rule::Votes;
use crate::config::{self, Facts, Module};
use crate::findings::Findings;
use crate::ledger::{Class, Side, total_bytes};
use crate::pair::{EqualPair, Pairing, note_narrow_shapes, pair};
use crate::pass::{Hashes, Outcome, Pass, Wanted};
use crate::progress::Progress;
use crate::ranges::Range;
use crate::report::{Fault, FaultClass, FileHashes, Item, PackedTensor, Report, Verdict};
use crate::sidecar::Sidecar;
use crate::{companions, headers, manifest};

/// Holds a result against its source. Errors: a side cannot be read, or changes on the way.
pub fn verify(
    result: &Arc<dyn Source>,
    source: &Arc<dyn Source>,
    options: &Options,
    progress: &dyn Progress,
) -> Result<Report> {
    // Cheap checks first: headers, names, sizes, the files beside the weights.
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
    let mut pairing = pair(&source, &result, &config.text, &mut findings);
    let misfits = findings.faults.iter().filter(|fault| is_misfit(fault.class)).count();
    note_narrow_shapes(pairing.narrow_shapes, &mut findings);
    let facts = facts(&pairing, &result);
    mark_kept(&mut pairing, &facts);
    config::check(&**source.source(), &**result.source(), &facts, &mut findings);
    // Kept matrices are the maker's choice; that vLLM does not take them is worth a word.
    findings.notes.extend(config::mixtures(&facts));
    headers::check(&result, &mut findings)?;
    companions::check(&source, &result, &mut findings)?;
    let mut report = Report {
        bytes: total_bytes(&**source.source()) + total_bytes(&**result.source()),
        ..Report::default()
    };
    // A missing tensor is damage, and the rest is worth a look. Another model is not.
    if misfits > pairing.packed.len() + pairing.copies.len() {
        return Ok(refuse(report, findings));
    }

    // Then every byte.
    progress.begin("proving", report.bytes);
    report.tied_copies_identical = head(&pairing.head, &result, progress, &mut findings)?;
    let manifest = manifest::open(&**result.source(), &mut findings)?;
    let sidecar = sidecar(&pairing, &result, &mut findings);
    let hashed = manifest.is_some() || options.hash_files;
    let pass = Pass {
        source: &source,
        result: &result,
        sidecar: sidecar.as_ref(),
        pairing: &pairing,
        wanted: Wanted { source: hashed, result: hashed },
        threads: options.threads,
        progress,
    };
    let mut outcome = pass.run()?;
    copies(&pairing.copies, &result, &mut outcome, &mut findings);
    kept(&pairing.copies, &result, facts.ours, &outcome, &mut findings);
    left_out(&pairing.left_out, &source, &outcome.hashes, &mut findings);
    report.step_rule = packed(&pairing, &mut outcome, &mut findings, &mut report).name();
    if let Some(manifest) = manifest {
        let hashes = &outcome.hashes;
        manifest::check_result(&manifest, &**result.source(), &facts, hashes, &mut findings)?;
        manifest::check_source(&manifest, &source, &pairing, hashes, &mut findings)?;
    }
    let known = &outcome.hashes.result_files;
    manifest::laid_out::check(&**result.source(), known, &mut findings)?;
    report.hashes = FileHashes {
        result: outcome.hashes.result_files,
        source: outcome.hashes.source_files,
        source_name: source.source().name().into(),
        source_revision: source.source().revision().map(str::to_string),
    };
    finish(report, findings)
}

/// Faults of a tensor that finds no partner.
fn is_misfit(class: FaultClass) -> bool {
    matches!(class, FaultClass::TensorMissing | FaultClass::Header)
}

/// The answer when headers and names alone say that the two do not belong together.
fn refuse(mut report: Report, mut findings: Findings) -> Report {
    findings.note(
        "most tensors have no partner of the same shape: this is another model, no weights were \
         compared, and nothing is accounted for",
    );
    report.unaccounted = report.bytes;
    report.faults = findings.faults;
    report.notes = findings.notes;
    report.step_rule = "unknown: no weights were compared".into();
    report.verdict = Verdict::Disproved;
    report
}

const HINT: &str = "hint: --source names the checkpoint that was converted, in bf16";

/// A source in 4 bits is a result: there is nothing to prove it against.
pub fn packed_already(source: &Checkpoint, config: &Config) -> Option<Fault> {
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

/// Enters tensors that must be the same on both sides.
fn copies(
    pairs: &[EqualPair],
    result: &Checkpoint,
    outcome: &mut Outcome,
    findings: &mut Findings,
) {
    for pair in pairs {
        let (Some(found), Some(differences), Some(sha256)) = (
            result.tensor(&pair.result),
            outcome.copies.remove(&pair.result),
            outcome.hashes.copies.get(&pair.result),
        ) else {
            continue;
        };
        let file = found.shard.path.clone();
        let Some(first) = differences.first else {
            findings.copied.push(Item {
                file,
                tensor: Some(pair.result.clone()),
                bytes: found.info.bytes(),
                sha256: sha256.clone(),
            });
            continue;
        };
        let detail = format!(
            "{} bytes differ from the source's `{}`, first at byte {first}",
            differences.bytes, pair.other
        );
        let fault = Fault::of_tensor(FaultClass::TensorBytes, &file, &pair.result, detail);
        let columns = found.info.shape.get(1..).unwrap_or(&[]).iter().product::<usize>().max(1);
        findings.faults.push(Fault { row: Some(first / 2 / columns as u64), ..fault });
    }
}

/// Marks the matrices that the layout packs and the result keeps in bf16.
fn mark_kept(pairing: &mut Pairing, facts: &Facts) {
    let possible = config::Layout::possible(facts);
    let Some(layout) = possible.first() else { return };
    let kept: Vec<String> = layout.kept(facts).map(|m| format!("{}.weight", m.name)).collect();
    for pair in &mut pairing.copies {
        pair.is_kept = kept.contains(&pair.result);
    }
}

/// A matrix that is kept in bf16 must have a group off the grid: else it could have been packed,
/// which w4pack does, and another maker may leave.
fn kept(
    pairs: &[EqualPair],
    result: &Checkpoint,
    ours: bool,
    outcome: &Outcome,
    findings: &mut Findings,
) {
    for pair in pairs.iter().filter(|pair| pair.is_kept) {
        if outcome.off_grid.contains(&pair.result) {
            findings.note(format!("`{}` is off the grid, and kept in bf16", pair.result));
            continue;
        }
        let detail = "it is kept in bf16, but every group of it is on the grid";
        if ours {
            let file = result.tensor(&pair.result).map_or("", |found| &found.shard.path);
            let fault = Fault::of_tensor(FaultClass::OffGrid, file, &pair.result, detail);
            findings.faults.push(fault);
        } else {
            findings.note(format!("`{}`: {detail}", pair.result));
        }
    }
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

/// Enters source tensors that are left out.
fn left_out(names: &[String], source: &Checkpoint, hashes: &Hashes, findings: &mut Findings) {
    for name in names {
        let sha256 = hashes.tensors.get(name).and_then(|hashes| hashes.sha256.as_ref());
        let (Some(found), Some(sha256)) = (source.tensor(name), sha256) else { continue };
        findings.left_out.push(Item {
            file: found.shard.path.clone(),
            tensor: Some(name.clone()),
            bytes: found.info.bytes(),
            sha256: sha256.clone(),
        });
    }
}

/// Enters the packed modules, in the order of the model.
fn packed(
    pairing: &Pairing,
    outcome: &mut Outcome,
    findings: &mut Findings,
    report: &mut Report,
) -> Votes {
    let mut votes = Votes::default();
    findings.faults.append(&mut outcome.sidecar_faults);
    for pair in &pairing.packed {
        let Some(tally) = outcome.tallies.remove(&pair.module) else { continue };
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
    votes
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
