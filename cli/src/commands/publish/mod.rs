//! `w4pack publish`: proof, card and statement, then one commit.

mod card;
mod proof;

use crate::args::publish::PublishArguments;
use crate::locate;
use crate::message::{Usage, one_line, talk};
use crate::output;
use anyhow::{Context, Result};
use card::Card;
use proof::Proof;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use w4pack_format::digest::sha256;
use w4pack_format::manifest::{CARD_FILE, CARD_MARK, MANIFEST_FILE, Manifest, STATEMENT_FILE};
use w4pack_format::source::{FolderSource, Source};
use w4pack_hub::RepositoryName;
use w4pack_hub::publish::{Outgoing, Publication, Published};

pub fn run(arguments: &PublishArguments, quiet: bool) -> Result<ExitCode> {
    let name: RepositoryName = arguments.repository.parse()?;
    let folder = folder(&arguments.packed)?;
    let packed: Arc<dyn Source> = folder.clone();
    let manifest = manifest(&*packed)?;
    let proof = match Proof::make(arguments, &packed, &manifest, quiet)? {
        Ok(proof) => proof,
        Err(report) => {
            // What is wrong is data; that nothing is published for it, talk.
            if arguments.json {
                output::json(&report)?;
            } else {
                output::line(&report.to_string())?;
            }
            let message = format!("`{}` was not proved, and is not published", arguments.packed);
            talk(&format!("error: {message}\n"));
            return Ok(ExitCode::from(report.exit_code().max(1)));
        }
    };
    let card = Card::new(arguments, &name, &*packed, &manifest, &proof)?;
    let root = folder.root();
    let own_card = write_card(root, &card.to_string())?;
    let statement = format!("{:#}\n", proof.statement);
    output::file(&root.join(STATEMENT_FILE), statement.as_bytes())?;
    let publication = Publication {
        files: outgoing(root, &proof)?,
        title: format!("{} packed in 4 bits, with its proof", card.base_model),
        pull_request: arguments.pr,
        private: arguments.private,
        without_chunk_store: std::env::var("HF_HUB_DISABLE_XET").is_ok_and(|set| set == "1"),
        name,
    };
    if own_card && !quiet {
        talk(&format!("`{CARD_FILE}` is there and not of w4pack's making: published as it is\n"));
    }
    if arguments.dry_run {
        return dry_run(arguments, &publication);
    }
    let (hub, progress) = locate::open_hub()?;
    let published = hub.publish(&publication);
    progress.finish();
    let published = published?;
    if arguments.json {
        output::json(&json!({"published": published, "proof": proof.statement["predicate"]}))?;
    } else {
        output::print(&summary(&published, &publication))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What is published lies on this machine.
fn folder(packed: &str) -> Result<Arc<FolderSource>> {
    if !Path::new(packed).is_dir() {
        let message = format!("`{packed}` is no folder here: publish takes one that convert wrote");
        return Err(Usage::new(message).into());
    }
    Ok(Arc::new(FolderSource::open(Path::new(packed))?))
}

fn manifest(packed: &dyn Source) -> Result<Manifest> {
    if packed.size(MANIFEST_FILE).is_none() {
        let message =
            format!("`{}` has no {MANIFEST_FILE}: it is not of w4pack's making", packed.label());
        let hint = "convert the bf16 source with `w4pack convert`, and publish what that writes";
        return Err(Usage::new(message).hint(hint).into());
    }
    Ok(Manifest::parse(&packed.read_file(MANIFEST_FILE)?)?)
}

/// Writes the card, unless somebody has written one; whether somebody has.
fn write_card(root: &Path, card: &str) -> Result<bool> {
    let path = root.join(CARD_FILE);
    if fs::read_to_string(&path).is_ok_and(|old| !old.contains(CARD_MARK)) {
        return Ok(true);
    }
    output::file(&path, card.as_bytes())?;
    Ok(false)
}

/// All files of the folder with the hashes of the proof; card and statement with their own.
fn outgoing(root: &Path, proof: &Proof) -> Result<Vec<Outgoing>> {
    let mut files = Vec::new();
    for file in FolderSource::open(root)?.files() {
        // The Hub has its own, which says which files are large.
        if file.path == ".gitattributes" {
            continue;
        }
        let on_disk = root.join(&file.path);
        let sha256 = match proof.hashes.get(&file.path) {
            Some(sha256) => sha256.clone(),
            None if [CARD_FILE, STATEMENT_FILE].contains(&&*file.path) => {
                let read = fs::read(&on_disk);
                sha256(&read.with_context(|| format!("could not read `{}`", on_disk.display()))?)
            }
            None => {
                let message = format!("`{}` came into the folder after the proof", file.path);
                return Err(Usage::new(message).hint("publish again").into());
            }
        };
        files.push(Outgoing { path: file.path.clone(), file: on_disk, bytes: file.bytes, sha256 });
    }
    Ok(files)
}

/// Says what would be committed.
fn dry_run(arguments: &PublishArguments, publication: &Publication) -> Result<ExitCode> {
    let plan_b = plan_b(arguments, publication);
    if arguments.json {
        let file = |file: &Outgoing| -> Value {
            json!({
                "path": file.path,
                "bytes": file.bytes,
                "sha256": file.sha256,
                "large": file.is_surely_large(),
            })
        };
        let files: Vec<Value> = publication.files.iter().map(file).collect();
        output::json(&json!({
            "repository": publication.name.as_str(),
            "title": publication.title,
            "pull_request": publication.pull_request,
            "private": publication.private,
            "files": files,
            "hf_upload": plan_b,
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = format!("commit to {}: {}\n", publication.name, publication.title);
    for file in &publication.files {
        let way = if file.is_surely_large() { "large" } else { "small" };
        text += &format!("  {way} {:>13} {} {}\n", file.bytes, file.sha256, one_line(&file.path));
    }
    let bytes: u64 = publication.files.iter().map(|file| file.bytes).sum();
    text += &format!("{} files, {bytes} bytes; nothing was sent\n", publication.files.len());
    text += &format!("the same by Python's client:\n  {plan_b}\n");
    output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// The line that does the same with Python's client.
fn plan_b(arguments: &PublishArguments, publication: &Publication) -> String {
    let quoted = |text: &str| format!("'{}'", text.replace('\'', "'\\''"));
    let mut line = format!("hf upload {} {} .", publication.name, quoted(&arguments.packed));
    line += &format!(" --commit-message {}", quoted(&publication.title));
    if publication.pull_request {
        line += " --create-pr";
    }
    if publication.private {
        line += " --private";
    }
    line
}

fn summary(published: &Published, publication: &Publication) -> String {
    let mut text = format!("{}\n", published.url);
    text += &format!(
        "  {} files sent (large ones by: {}), {} were there already\n",
        published.sent.len(),
        published.transfer,
        published.unchanged.len()
    );
    for path in &published.left {
        text += &format!("  left as it was: {}\n", one_line(path));
    }
    text += &format!(
        "  read back: size and SHA-256 of all {} files of commit {} are those of the proof\n",
        publication.files.len(),
        published.commit
    );
    text
}
