//! Holding `w4pack/manifest.json` against both sides, hash by hash.
//!
//! The manifest proves nothing by itself: whoever changes a file can change its hash there too.
//! What it says must be true all the same.

mod claims;

use std::collections::BTreeMap;

use rayon::prelude::*;
use w4pack_format::Result;
use w4pack_format::checkpoint::Checkpoint;
use w4pack_format::manifest::{Fate, FileRecord, MANIFEST_FILE, Manifest};
use w4pack_format::source::Source;

use crate::config::Facts;
use crate::findings::Findings;
use crate::ledger::{Class, Side};
use crate::pair::Pairing;
use crate::progress::Progress;
use crate::ranges::Range;
use crate::report::{Fault, FaultClass};

/// Reads the manifest of a result; notes its absence, enters a fault when it cannot be read.
pub fn open(result: &dyn Source, findings: &mut Findings) -> Result<Option<Manifest>> {
    if result.size(MANIFEST_FILE).is_none() {
        findings.note(format!("the result has no `{MANIFEST_FILE}`; nothing is taken from it"));
        return Ok(None);
    }
    findings.ledger.claim_file(Side::Result, MANIFEST_FILE, Class::Manifest);
    let bytes = result.read_file(MANIFEST_FILE)?;
    match Manifest::parse(&bytes) {
        Ok(manifest) => {
            if manifest.to_bytes() != bytes {
                findings.note(format!("`{MANIFEST_FILE}` is spelled in another way than w4pack's"));
            }
            Ok(Some(manifest))
        }
        Err(error) => {
            findings.faults.push(fault(error.to_string()));
            Ok(None)
        }
    }
}

fn fault(detail: impl Into<String>) -> Fault {
    Fault::of_file(FaultClass::Manifest, MANIFEST_FILE, detail)
}

/// Compares what the manifest says about the result with the result.
pub fn check_result(
    manifest: &Manifest,
    result: &dyn Source,
    facts: &Facts,
    progress: &dyn Progress,
    findings: &mut Findings,
) -> Result<()> {
    claims::check(manifest, facts, findings);
    let own: fn(&str) -> bool = |path| path == MANIFEST_FILE;
    check_records("result", &manifest.files, result, own, progress, findings)?;
    for file in result.files().iter().filter(|file| !own(&file.path)) {
        if !manifest.files.iter().any(|record| record.path == file.path) {
            let detail = format!("it does not list the result's file `{}`", file.path);
            findings.faults.push(fault(detail));
        }
    }
    Ok(())
}

/// Compares what the manifest says about the source with the source at hand.
pub fn check_source(
    manifest: &Manifest,
    source: &Checkpoint,
    pairing: &Pairing,
    progress: &dyn Progress,
    findings: &mut Findings,
) -> Result<()> {
    let record = &manifest.source;
    let files = &**source.source();
    // A page of text that came or went since the conversion says nothing about the result.
    let (lost, at_hand): (Vec<_>, Vec<_>) =
        record.files.iter().cloned().partition(|record| {
            files.size(&record.path).is_none() && !shapes_results(&record.path)
        });
    for record in lost {
        let note = "it records a file that is not in this source, which nothing depends on";
        findings.notes.push(format!("{MANIFEST_FILE}: {note}: `{}`", record.path));
    }
    check_records("source", &at_hand, files, |_| false, progress, findings)?;
    for file in files.files() {
        if !record.files.iter().any(|record| record.path == file.path) {
            let detail = format!("it does not list the source's file `{}`", file.path);
            if shapes_results(&file.path) {
                findings.faults.push(fault(detail));
            } else {
                findings.notes.push(format!("{MANIFEST_FILE}: {detail}"));
            }
        }
    }
    claims::check_origin(manifest, files, findings);
    check_repetitions("headers", record.headers.iter().map(|header| &*header.path), findings);
    check_repetitions("tensors", record.tensors.iter().map(|tensor| &*tensor.name), findings);
    check_headers(manifest, source, findings);
    check_tensors(manifest, source, pairing, progress, findings)
}

/// Whether a source file of this name can decide what a result holds: weights, configuration, and
/// what belongs to the tokenizer.
fn shapes_results(path: &str) -> bool {
    let kinds = [".safetensors", ".json", ".jinja", ".model"];
    !path.contains('/') && kinds.iter().any(|kind| path.ends_with(kind))
}

/// Nothing may stand twice in a list.
fn check_repetitions<'a>(
    list: &str,
    names: impl Iterator<Item = &'a str>,
    findings: &mut Findings,
) {
    for name in claims::repeated(names) {
        findings.faults.push(fault(format!("its list of {list} names `{name}` more than once")));
    }
}

/// Every record must be a file of that size and hash, and the only one of its file.
fn check_records(
    side: &str,
    records: &[FileRecord],
    files: &dyn Source,
    own: fn(&str) -> bool,
    progress: &dyn Progress,
    findings: &mut Findings,
) -> Result<()> {
    let paths = records.iter().map(|record| record.path.as_str());
    check_repetitions(&format!("{side} files"), paths, findings);
    let check = |record: &FileRecord| -> Result<Option<Fault>> {
        let path = &record.path;
        let detail = match files.size(path) {
            _ if own(path) => Some("a manifest cannot hold its own hash".into()),
            None => Some(format!("the {side} has no file `{path}`")),
            Some(bytes) if bytes != record.bytes => {
                Some(format!("the {side}'s `{path}` has {bytes} bytes, it says {}", record.bytes))
            }
            Some(_) => {
                let sha256 = Range::of_file(files, path).sha256(progress)?;
                (sha256 != record.sha256).then(|| {
                    format!("the {side}'s `{path}` has SHA-256 {sha256}, it says {}", record.sha256)
                })
            }
        };
        Ok(detail.map(fault))
    };
    let found: Vec<Option<Fault>> = records.par_iter().map(check).collect::<Result<_>>()?;
    findings.faults.extend(found.into_iter().flatten());
    Ok(())
}

/// The source's headers must stand there as they are.
fn check_headers(manifest: &Manifest, source: &Checkpoint, findings: &mut Findings) {
    let recorded: BTreeMap<&str, &str> = manifest
        .source
        .headers
        .iter()
        .map(|header| (header.path.as_str(), header.text.as_str()))
        .collect();
    for shard in source.shards() {
        match recorded.get(shard.path.as_str()) {
            Some(text) if text.as_bytes() == shard.header.text => {}
            Some(_) => {
                findings.faults.push(fault(format!("its header of `{}` differs", shard.path)));
            }
            None => findings.faults.push(fault(format!("it lacks the header of `{}`", shard.path))),
        }
    }
    for path in recorded.keys() {
        if !source.shards().iter().any(|shard| shard.path == **path) {
            let detail = format!("it has a header of `{path}`, which is no file of the source");
            findings.faults.push(fault(detail));
        }
    }
}

/// Every source tensor must be recorded with its file, size, hash and fate.
fn check_tensors(
    manifest: &Manifest,
    source: &Checkpoint,
    pairing: &Pairing,
    progress: &dyn Progress,
    findings: &mut Findings,
) -> Result<()> {
    let mut fates: BTreeMap<&str, Fate> = BTreeMap::new();
    // Of a stack of experts some may be packed and some not: then it counts as packed.
    fates.extend(pairing.copies.iter().map(|pair| (pair.other.as_str(), Fate::Copied)));
    fates.extend(pairing.packed.iter().map(|pair| (pair.source.as_str(), Fate::Packed)));
    fates.extend(pairing.left_out.iter().map(|name| (name.as_str(), Fate::LeftOut)));
    let records = &manifest.source.tensors;
    let check = |record: &w4pack_format::manifest::TensorRecord| -> Result<Option<Fault>> {
        let name = &record.name;
        let fail = |detail: String| {
            Ok(Some(Fault::of_tensor(FaultClass::Manifest, MANIFEST_FILE, name, detail)))
        };
        let Some(found) = source.tensor(name) else {
            return fail("the source has no such tensor".into());
        };
        if (&record.file, record.bytes) != (&found.shard.path, found.info.bytes()) {
            return fail(format!(
                "it says {} bytes in `{}`, the source has {} in `{}`",
                record.bytes,
                record.file,
                found.info.bytes(),
                found.shard.path
            ));
        }
        match fates.get(name.as_str()) {
            Some(fate) if *fate != record.fate => {
                return fail(format!("it says {:?}, the tensor was {fate:?}", record.fate));
            }
            _ => {}
        }
        let sha256 = Range::of_tensor(source, found).sha256(progress)?;
        if sha256 != record.sha256 {
            return fail(format!("its SHA-256 is {sha256}, the manifest says {}", record.sha256));
        }
        Ok(None)
    };
    let found: Vec<Option<Fault>> = records.par_iter().map(check).collect::<Result<_>>()?;
    findings.faults.extend(found.into_iter().flatten());
    for name in source.names() {
        if !records.iter().any(|record| record.name == name) {
            findings.faults.push(fault(format!("it lacks the source tensor `{name}`")));
        }
    }
    Ok(())
}
