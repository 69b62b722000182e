//! The proof that publishing demands, made from the very bytes that are published.

use super::super::threads;
use super::super::verify::ProgressBar;
use crate::args::publish::PublishArguments;
use crate::locate::{self, read_file};
use crate::message::Usage;
use crate::progress::Bytes;
use anyhow::{Context, Result};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use w4pack_format::digest::Hasher;
use w4pack_format::gguf::view::model_file;
use w4pack_format::manifest::{CARD_FILE, Manifest, STATEMENT_FILE};
use w4pack_format::source::Source;
use w4pack_verify::{Options, Report, statement, verify, verify_gguf, verify_rebuilt};

/// Bytes hashed at a time.
const BLOCK: usize = 4 << 20;

/// A proof, and what it speaks of.
pub struct Proof {
    /// In-toto.
    pub statement: Value,
    /// SHA-256 of every file of the checkpoint, card and statement excepted.
    pub hashes: BTreeMap<String, String>,
    /// What the source's card says of its licence, where the source was at hand.
    pub license: Option<String>,
}

impl Proof {
    /// Proves, or gives the report that says why not.
    pub fn make(
        arguments: &PublishArguments,
        packed: &Arc<dyn Source>,
        manifest: &Manifest,
        quiet: bool,
    ) -> Result<Result<Proof, Box<Report>>> {
        let options = Options {
            // The best verdict there is for a GGUF file, whose steps are f16 by its format.
            allow_step_rounding: manifest.options.layout == "gguf",
            threads: threads(arguments.threads)?,
            hash_files: true,
        };
        let bar = ProgressBar(Bytes::new("proving", quiet));
        if let Some(path) = &arguments.proof.statement {
            return from_statement(path, packed, &options, &bar);
        }
        let mut license = None;
        let mut report = if let Some(what) = &arguments.proof.hashes {
            let listing = locate::listing(what)?;
            let towers = arguments.towers_from.as_ref();
            let towers = towers.map(|what| locate::streamed(what, None)).transpose()?;
            verify_rebuilt(packed.clone(), towers, &listing, &options, &bar)
        } else {
            let source = source(arguments, manifest)?;
            license = license_of(&*source);
            match model_file(&**packed)?.map(str::to_string) {
                Some(path) => {
                    let mut report = verify_gguf(packed, &path, &source, &options, &bar);
                    hash(&**packed, manifest, &mut report)?;
                    report
                }
                None => verify(packed.clone(), Some(source), &options, &bar),
            }
        };
        bar.0.finish();
        match statement::write(&report) {
            Ok(mut statement) => {
                leave_out_card(&mut statement);
                let hashes = std::mem::take(&mut report.hashes.result);
                Ok(Ok(Proof { statement, hashes: of_checkpoint(hashes), license }))
            }
            Err(_) => Ok(Err(Box::new(report))),
        }
    }
}

/// A proof that was made before is good for the files that it names by their hashes.
fn from_statement(
    path: &std::path::Path,
    packed: &Arc<dyn Source>,
    options: &Options,
    bar: &ProgressBar,
) -> Result<Result<Proof, Box<Report>>> {
    let label = path.display().to_string();
    let content = read_file(path)?;
    let mut report = verify(packed.clone(), None, options, bar);
    statement::check(&mut report, packed, &label, &content)?;
    bar.0.finish();
    if !report.matches_statement {
        return Ok(Err(Box::new(report)));
    }
    let mut statement: Value = serde_json::from_slice(&content)
        .with_context(|| format!("could not read the statement `{label}`"))?;
    leave_out_card(&mut statement);
    let subjects = statement["subject"].as_array().into_iter().flatten();
    let hashes = subjects.filter_map(|subject| {
        let hash = subject["digest"]["sha256"].as_str()?.to_ascii_lowercase();
        Some((subject["name"].as_str()?.to_string(), hash))
    });
    let hashes = of_checkpoint(hashes.collect());
    Ok(Ok(Proof { hashes, statement, license: None }))
}

/// `--source`, or the commit that the manifest names.
fn source(arguments: &PublishArguments, manifest: &Manifest) -> Result<Arc<dyn Source>> {
    if let Some(source) = &arguments.proof.source {
        return locate::streamed(source, None);
    }
    let recorded = &manifest.source;
    let Some(revision) = recorded.revision.as_deref().filter(|_| recorded.name.contains('/'))
    else {
        let message = format!(
            "`{}` was made from `{}`, which names no commit of the Hub to prove it against",
            arguments.packed, recorded.name
        );
        let hint = "give --source, or --hashes, or the --statement of an earlier proof";
        return Err(Usage::new(message).hint(hint).into());
    };
    locate::streamed(&recorded.name, Some(revision))
}

/// `license:` in the head of the source's own card.
fn license_of(source: &dyn Source) -> Option<String> {
    source.size(CARD_FILE).filter(|bytes| *bytes < 1 << 20)?;
    let card = String::from_utf8(source.read_file(CARD_FILE).ok()?).ok()?;
    let head = card.strip_prefix("---\n")?.split("\n---").next()?.to_string();
    let license = head.lines().find_map(|line| line.strip_prefix("license:"))?;
    let license = license.trim().trim_matches(['"', '\'']).to_string();
    (!license.is_empty()).then_some(license)
}

/// The hashes of a GGUF folder's files, which its comparison does not need, and of the source's
/// weights, which the comparison has held against the manifest.
fn hash(packed: &dyn Source, manifest: &Manifest, report: &mut Report) -> Result<()> {
    for file in packed.files() {
        let (mut hasher, mut block, mut at) = (Hasher::default(), vec![0; BLOCK], 0);
        while at < file.bytes {
            let length = (file.bytes - at).min(BLOCK as u64) as usize;
            packed.read_at(&file.path, at, &mut block[..length])?;
            hasher.update(&block[..length]);
            at += length as u64;
        }
        report.hashes.result.insert(file.path.clone(), hasher.finish());
    }
    let weights = manifest.source.files.iter().filter(|file| file.path.ends_with(".safetensors"));
    report.hashes.source = weights.map(|file| (file.path.clone(), file.sha256.clone())).collect();
    report.hashes.source_name = manifest.source.name.clone();
    report.hashes.source_revision = manifest.source.revision.clone();
    Ok(())
}

/// The card is written after the proof, and says what it found.
fn leave_out_card(statement: &mut Value) {
    if let Some(subjects) = statement["subject"].as_array_mut() {
        subjects.retain(|subject| subject["name"] != CARD_FILE);
    }
}

/// Without what publishing writes anew.
fn of_checkpoint(mut hashes: BTreeMap<String, String>) -> BTreeMap<String, String> {
    hashes.retain(|path, _| path != CARD_FILE && path != STATEMENT_FILE);
    hashes
}
