//! The files beside the weights: copied byte for byte, or left out and listed.

use w4pack_format::Result;
use w4pack_format::checkpoint::{Checkpoint, INDEX_FILE};
use w4pack_format::config::CONFIG_FILE;
use w4pack_format::exact::EXACT_FILE;
use w4pack_format::manifest::MANIFEST_FILE;

use crate::findings::Findings;
use crate::ledger::{Class, Side};
use crate::ranges::Range;
use crate::report::{Fault, FaultClass, Item};

/// Accounts for every file of both sides that is not weights or config.json.
pub fn check(source: &Checkpoint, result: &Checkpoint, findings: &mut Findings) -> Result<()> {
    check_index(source, result, findings);
    let result_files = findings.ledger.open_files(Side::Result);
    for path in findings.ledger.open_files(Side::Source) {
        if path == CONFIG_FILE {
            continue;
        }
        let theirs = Range::of_file(&**source.source(), &path);
        let ours = result_files.contains(&path).then(|| Range::of_file(&**result.source(), &path));
        if let Some(ours) = ours.filter(|_| !is_own(&path)) {
            if ours.bytes == theirs.bytes {
                let comparison = ours.compare(&theirs, &())?;
                if comparison.differences.bytes == 0 {
                    findings.ledger.claim_file(Side::Source, &path, Class::FileCopied);
                    findings.ledger.claim_file(Side::Result, &path, Class::FileCopied);
                    let (bytes, sha256) = (ours.bytes, comparison.sha256);
                    findings.copied.push(Item { file: path, tensor: None, bytes, sha256 });
                    continue;
                }
            }
            if !is_documentation(&path) {
                let detail = differs(&ours, &theirs)?;
                findings.faults.push(Fault::of_file(FaultClass::CompanionFile, &path, detail));
                findings.ledger.claim_file(Side::Source, &path, Class::FileCopied);
                findings.ledger.claim_file(Side::Result, &path, Class::FileCopied);
                continue;
            }
        } else if is_needed(&path) {
            let detail = "the source has this file, the result lacks it";
            findings.faults.push(Fault::of_file(FaultClass::CompanionFile, &path, detail));
            continue;
        }
        findings.ledger.claim_file(Side::Source, &path, Class::LeftOut);
        let (bytes, sha256) = (theirs.bytes, theirs.sha256(&())?);
        findings.left_out.push(Item { file: path, tensor: None, bytes, sha256 });
    }
    check_extra(findings);
    Ok(())
}

/// What differs between two files.
fn differs(ours: &Range<'_>, theirs: &Range<'_>) -> Result<String> {
    if ours.bytes != theirs.bytes {
        return Ok(format!("it has {} bytes, the source's {}", ours.bytes, theirs.bytes));
    }
    let differences = ours.compare(theirs, &())?.differences;
    Ok(format!(
        "{} bytes differ from the source's, first at byte {}",
        differences.bytes,
        differences.first.unwrap_or(0)
    ))
}

/// The index of either side is no companion: opening it has held it against the headers.
fn check_index(source: &Checkpoint, result: &Checkpoint, findings: &mut Findings) {
    for (side, checkpoint) in [(Side::Source, source), (Side::Result, result)] {
        if checkpoint.index_path().is_some() {
            findings.ledger.claim_file(side, INDEX_FILE, Class::Index);
        }
    }
    if let Some((stated, sum)) = result.index_total_size().filter(|(stated, sum)| stated != sum) {
        let detail = format!("its total_size is {stated}, the tensors have {sum} bytes");
        findings.faults.push(Fault::of_file(FaultClass::Index, INDEX_FILE, detail));
    }
}

/// Files of the result that the source does not have.
fn check_extra(findings: &mut Findings) {
    for path in findings.ledger.open_files(Side::Result) {
        if is_documentation(&path) {
            findings.ledger.claim_file(Side::Result, &path, Class::Card);
        } else if path != CONFIG_FILE && !is_own(&path) && !path.ends_with(".safetensors") {
            let detail = "the source has no such file, and no layout adds one";
            findings.faults.push(Fault::of_file(FaultClass::CompanionFile, &path, detail));
        }
    }
}

/// What w4pack adds and other checks claim.
fn is_own(path: &str) -> bool {
    [MANIFEST_FILE, EXACT_FILE].contains(&path)
}

/// Files that people read and no loader does; a result may have its own.
pub fn is_documentation(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    name.starts_with('.') || name.ends_with(".md") || name.starts_with("LICENSE")
}

/// Files that tokenizers, templates and generation are made of: leaving one out changes answers.
fn is_needed(path: &str) -> bool {
    let is_part = [".json", ".jinja", ".model"].iter().any(|ending| path.ends_with(ending));
    is_part && !path.contains('/') && !path.ends_with(".index.json")
}
