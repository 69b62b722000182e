//! The files beside the weights: copied byte for byte, or left out and listed.

use w4pack_format::Result;
use w4pack_format::checkpoint::{Checkpoint, INDEX_FILE};
use w4pack_format::config::CONFIG_FILE;
use w4pack_format::exact::EXACT_FILE;
use w4pack_format::laid_out::LAID_OUT_FILE;
use w4pack_format::manifest::{CARD_FILE, MANIFEST_FILE, STATEMENT_FILE};

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
        // What is w4pack's own, or weights beside the checkpoint, is nobody's copy.
        let comparable = result_files.contains(&path) && !is_own(&path) && !is_weights(&path);
        let ours = comparable.then(|| Range::of_file(&**result.source(), &path));
        if let Some(ours) = ours {
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
    check_extra(result, findings);
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
}

/// Files of the result that the source does not have, in whatever folder.
fn check_extra(result: &Checkpoint, findings: &mut Findings) {
    for path in findings.ledger.open_files(Side::Result) {
        if path == CONFIG_FILE || is_own(&path) {
            continue;
        }
        if is_weights(&path) {
            findings.faults.push(stray_weights(&path));
        } else if path == STATEMENT_FILE {
            findings.ledger.claim_file(Side::Result, &path, Class::Card);
        } else if is_documentation(&path) {
            findings.ledger.claim_file(Side::Result, &path, Class::Card);
            let bytes = result.source().size(&path).unwrap_or(0);
            findings.note(format!(
                "`{path}` ({bytes} bytes) is the result's own documentation: no loader reads it, \
                 and nothing vouches for it"
            ));
        } else {
            let detail = "the source has no such file, and no layout adds one";
            findings.faults.push(Fault::of_file(FaultClass::CompanionFile, &path, detail));
        }
    }
}

/// Faults of a result's files that are seen without a source: weights beside the checkpoint, and
/// what w4pack does not write into its own folder.
pub fn strangers(result: &Checkpoint) -> Vec<Fault> {
    let paths = result.source().files().iter().map(|file| file.path.as_str());
    let others = paths
        .filter(|path| !is_own(path) && result.shards().iter().all(|shard| shard.path != *path));
    others
        .filter(|path| *path != STATEMENT_FILE)
        .filter_map(|path| {
            if is_weights(path) {
                return Some(stray_weights(path));
            }
            path.starts_with("w4pack/").then(|| {
                let detail = "w4pack writes no such file into its folder";
                Fault::of_file(FaultClass::CompanionFile, path, detail)
            })
        })
        .collect()
}

fn stray_weights(path: &str) -> Fault {
    let detail = "a weights file that does not belong to the checkpoint";
    Fault::of_file(FaultClass::TensorExtra, path, detail)
}

/// What w4pack adds and other checks claim.
fn is_own(path: &str) -> bool {
    [MANIFEST_FILE, EXACT_FILE, LAID_OUT_FILE].contains(&path)
}

fn is_weights(path: &str) -> bool {
    path.ends_with(".safetensors")
}

/// Files of the top level that people and version control read and no loader does; a result may
/// have its own.
fn is_documentation(path: &str) -> bool {
    let (stem, ending) = path.split_once('.').unwrap_or((path, ""));
    let of_licence = ["LICENSE", "LICENCE", "NOTICE", "USE_POLICY"].contains(&stem)
        && ["", "md", "txt"].contains(&ending);
    let of_git = [".gitattributes", ".gitignore"].contains(&path);
    !path.contains('/') && (path.ends_with(".md") || of_licence || of_git)
}

/// What comes after conversion and proof, with publishing: no list of files speaks of it.
pub fn comes_later(path: &str) -> bool {
    [STATEMENT_FILE, CARD_FILE, ".gitattributes"].contains(&path)
}

/// Files that tokenizers, templates and generation are made of: leaving one out changes answers.
pub fn is_needed(path: &str) -> bool {
    let is_part = [".json", ".jinja", ".model"].iter().any(|ending| path.ends_with(ending));
    is_part && !path.contains('/') && !path.ends_with(".index.json")
}
