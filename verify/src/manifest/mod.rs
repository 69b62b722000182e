//! Holding `w4pack/manifest.json` against both sides, hash by hash.
//!
//! The manifest proves nothing by itself: whoever changes a file can change its hash there too.
//! What it says must be true all the same.

mod claims;
pub mod laid_out;

use std::collections::{BTreeMap, BTreeSet};

use w4pack_format::Result;
use w4pack_format::checkpoint::Checkpoint;
use w4pack_format::config::CONFIG_FILE;
use w4pack_format::manifest::{Fate, FileRecord, MANIFEST_FILE, Manifest, TensorRecord};
use w4pack_format::source::Source;

use crate::companions::comes_later;
use crate::config::Facts;
use crate::findings::Findings;
use crate::ledger::{Class, Side};
use crate::pair::Pairing;
use crate::pass::Hashes;
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

/// Holds the hashes of a manifest against the files of both sides, where nothing else is looked at: of
/// a GGUF file, whose folder is no checkpoint in safetensors.
pub fn check_files(result: &dyn Source, source: &dyn Source) -> Result<Vec<Fault>> {
    let manifest = match Manifest::parse(&result.read_file(MANIFEST_FILE)?) {
        Ok(manifest) => manifest,
        Err(error) => return Ok(vec![fault(error.to_string())]),
    };
    let mut findings = Findings::default();
    let own: fn(&str) -> bool = |path| path == MANIFEST_FILE;
    let unknown = BTreeMap::new();
    check_records("result", &manifest.files, result, own, &unknown, &mut findings)?;
    let needed = manifest
        .source
        .files
        .into_iter()
        .filter(|file| source.size(&file.path).is_some() || shapes_results(&file.path));
    let needed: Vec<FileRecord> = needed.collect();
    check_records("source", &needed, source, |_| false, &unknown, &mut findings)?;
    Ok(findings.faults)
}

fn fault(detail: impl Into<String>) -> Fault {
    Fault::of_file(FaultClass::Manifest, MANIFEST_FILE, detail)
}

/// Compares what the manifest says about the result with the result.
pub fn check_result(
    manifest: &Manifest,
    result: &dyn Source,
    facts: &Facts,
    hashes: &Hashes,
    findings: &mut Findings,
) -> Result<()> {
    claims::check(manifest, facts, findings);
    let own: fn(&str) -> bool = |path| path == MANIFEST_FILE;
    check_records("result", &manifest.files, result, own, &hashes.result_files, findings)?;
    let speaks_of = |path: &str| !own(path) && !comes_later(path);
    for file in result.files().iter().filter(|file| speaks_of(&file.path)) {
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
    hashes: &Hashes,
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
    check_records("source", &at_hand, files, |_| false, &hashes.source_files, findings)?;
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
    check_texts(manifest, source, findings)?;
    check_tensors(manifest, source, pairing, hashes, findings);
    Ok(())
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

/// Every record must be a file of that size and hash, and the only one of its file. `known` holds
/// the hashes of what was read already.
fn check_records(
    side: &str,
    records: &[FileRecord],
    files: &dyn Source,
    own: fn(&str) -> bool,
    known: &BTreeMap<String, String>,
    findings: &mut Findings,
) -> Result<()> {
    let paths = records.iter().map(|record| record.path.as_str());
    check_repetitions(&format!("{side} files"), paths, findings);
    for record in records {
        let detail = record_fault(side, record, files, own(&record.path), known)?;
        findings.faults.extend(detail.map(fault));
    }
    Ok(())
}

/// What is wrong with a record of a file; `own` says that it is the record's own file.
fn record_fault(
    side: &str,
    record: &FileRecord,
    files: &dyn Source,
    own: bool,
    known: &BTreeMap<String, String>,
) -> Result<Option<String>> {
    let path = &record.path;
    let detail = match files.size(path) {
        _ if own => "a list of hashes cannot hold its own".into(),
        None => format!("the {side} has no file `{path}`"),
        Some(bytes) if bytes != record.bytes => {
            format!("the {side}'s `{path}` has {bytes} bytes, it says {}", record.bytes)
        }
        Some(_) => {
            let sha256 = match known.get(path) {
                Some(sha256) => sha256.clone(),
                None => Range::of_file(files, path).sha256(&())?,
            };
            if sha256 == record.sha256 {
                return Ok(None);
            }
            format!("the {side}'s `{path}` has SHA-256 {sha256}, it says {}", record.sha256)
        }
    };
    Ok(Some(detail))
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

/// The texts must be those of config.json and the index, as they stand there.
fn check_texts(manifest: &Manifest, source: &Checkpoint, findings: &mut Findings) -> Result<()> {
    let texts = &manifest.source.texts;
    check_repetitions("texts", texts.iter().map(|text| &*text.path), findings);
    let wanted: Vec<&str> = [CONFIG_FILE].into_iter().chain(source.index_path()).collect();
    for text in texts.iter().filter(|text| !wanted.contains(&&*text.path)) {
        findings.faults.push(fault(format!("it has a text of `{}`", text.path)));
    }
    for path in wanted {
        match texts.iter().find(|text| text.path == path) {
            Some(text) if source.source().read_file(path)? == text.text.as_bytes() => {}
            Some(_) => findings.faults.push(fault(format!("its text of `{path}` differs"))),
            None => findings.faults.push(fault(format!("it lacks the text of `{path}`"))),
        }
    }
    Ok(())
}

/// Every source tensor must be recorded with its file, size, hash and fate.
fn check_tensors(
    manifest: &Manifest,
    source: &Checkpoint,
    pairing: &Pairing,
    hashes: &Hashes,
    findings: &mut Findings,
) {
    let mut fates: BTreeMap<&str, Fate> = BTreeMap::new();
    // Of a stack of experts some may be packed and some not: then it counts as packed.
    fates.extend(pairing.copies.iter().map(|pair| (pair.other.as_str(), Fate::Copied)));
    fates.extend(pairing.packed.iter().map(|pair| (pair.source.as_str(), Fate::Packed)));
    fates.extend(pairing.left_out.iter().map(|name| (name.as_str(), Fate::LeftOut)));
    let records = &manifest.source.tensors;
    for record in records {
        let fate = fates.get(record.name.as_str());
        if let Some(detail) = tensor_problem(record, source, fate, hashes) {
            let (class, name) = (FaultClass::Manifest, &record.name);
            findings.faults.push(Fault::of_tensor(class, MANIFEST_FILE, name, detail));
        }
    }
    let recorded: BTreeSet<&str> = records.iter().map(|record| record.name.as_str()).collect();
    for name in source.names().filter(|name| !recorded.contains(name)) {
        findings.faults.push(fault(format!("it lacks the source tensor `{name}`")));
    }
}

/// What is wrong with a tensor's record, if anything.
fn tensor_problem(
    record: &TensorRecord,
    source: &Checkpoint,
    fate: Option<&Fate>,
    hashes: &Hashes,
) -> Option<String> {
    let Some(found) = source.tensor(&record.name) else {
        return Some("the source has no such tensor".into());
    };
    if (&record.file, record.bytes) != (&found.shard.path, found.info.bytes()) {
        return Some(format!(
            "it says {} bytes in `{}`, the source has {} in `{}`",
            record.bytes,
            record.file,
            found.info.bytes(),
            found.shard.path
        ));
    }
    if let Some(fate) = fate.filter(|fate| **fate != record.fate) {
        return Some(format!("it says {}, the tensor was {fate}", record.fate));
    }
    // Only what was packed goes without SHA-256.
    if (record.fate == Fate::Packed) != record.sha256.is_none() {
        let has = if record.sha256.is_some() { "has" } else { "lacks" };
        return Some(format!("the manifest {has} a SHA-256 of a tensor that was {}", record.fate));
    }
    let found = hashes.tensors.get(&record.name);
    let blake3 = (found.and_then(|found| found.blake3.as_ref()), Some(&record.blake3));
    let sha256 = (found.and_then(|found| found.sha256.as_ref()), record.sha256.as_ref());
    [("BLAKE3", blake3), ("SHA-256", sha256)].into_iter().find_map(|(kind, hashes)| match hashes {
        (Some(is), Some(said)) if is != said => {
            Some(format!("its {kind} is {is}, the manifest says {said}"))
        }
        // What was not looked at is not right for that. A tensor without a partner has a fault of
        // its own, and no SHA-256 is taken of it.
        (None, Some(said)) if kind == "BLAKE3" || fate.is_some() => Some(format!(
            "its {kind} was not taken, so that nobody knows whether it is {said}, as the manifest says"
        )),
        _ => None,
    })
}
