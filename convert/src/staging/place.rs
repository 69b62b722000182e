//! Where an output may appear.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use w4pack_format::laid_out::{LAID_OUT_FILE, LaidOut};
use w4pack_format::manifest::{CARD_FILE, CARD_MARK, MANIFEST_FILE, Manifest, STATEMENT_FILE};
use w4pack_format::source::Source;

use crate::ConvertError;

/// Checks that a conversion may write a folder: it is absent, empty, or an older output of w4pack
/// with nothing else in it, and lies neither inside the source nor around it. Returns its path
/// without links.
///
/// Errors name the folder and what stands in the way.
pub(crate) fn check_output(source: &dyn Source, out: &Path) -> Result<PathBuf, ConvertError> {
    let full = apart_from(source, out)?;
    if is_absent_or_empty(&full, out)? {
        return Ok(full);
    }
    let refuse = |problem: String| Err(refusal(out, problem));
    match older_output(&full).map_err(ConvertError::io("list", out))? {
        Older::Ours => Ok(full),
        Older::WithoutManifest => refuse(format!(
            "it is not empty and not an output of w4pack (no readable {MANIFEST_FILE})"
        )),
        Older::WithStranger(path) => {
            let path = path.display();
            refuse(format!("it holds `{path}`, which no conversion wrote and which would be lost"))
        }
    }
}

/// Checks that a folder is absent or empty, and lies neither inside any of `sources` nor around
/// one. Returns its path without links.
pub(crate) fn check_new_folder(
    sources: &[Option<&Arc<dyn Source>>],
    out: &Path,
) -> Result<PathBuf, ConvertError> {
    let mut full = PathBuf::new();
    for source in sources.iter().flatten() {
        full = apart_from(&***source, out)?;
    }
    if is_absent_or_empty(&full, out)? {
        return Ok(full);
    }
    Err(refusal(out, "it is not empty".into()))
}

fn refusal(out: &Path, problem: String) -> ConvertError {
    ConvertError::Output { out: out.display().to_string(), problem }
}

/// The path of `out` without links, if it has nothing to do with the source's folder.
fn apart_from(source: &dyn Source, out: &Path) -> Result<PathBuf, ConvertError> {
    if out.file_name().is_none() {
        return Err(refusal(out, "it has no name of its own".into()));
    }
    let full = resolved(out).map_err(ConvertError::io("resolve", out))?;
    // A source on the Hub has no folder; then there is nothing to overlap with.
    if let Ok(place) = Path::new(source.label()).canonicalize() {
        // A GGUF file is a source without the folder that it lies in.
        let is_gguf = place.extension().is_some_and(|extension| extension == "gguf");
        let alone = place.is_dir() || is_gguf;
        let folder = if alone { place } else { parent(&place).to_path_buf() };
        if full.starts_with(&folder) {
            return Err(refusal(out, format!("it lies in the source `{}`", source.label())));
        }
        if folder.starts_with(&full) {
            return Err(refusal(out, format!("it holds the source `{}`", source.label())));
        }
    }
    Ok(full)
}

fn is_absent_or_empty(full: &Path, out: &Path) -> Result<bool, ConvertError> {
    match fs::read_dir(full) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            Err(refusal(out, "it is a file".into()))
        }
        Err(cause) => Err(ConvertError::io("list", out)(cause)),
        Ok(mut entries) => Ok(entries.next().is_none()),
    }
}

/// What a folder that is not empty turned out to be.
enum Older {
    Ours,
    WithoutManifest,
    WithStranger(PathBuf),
}

/// Only what an earlier conversion wrote may be replaced: the files of its manifest (or of the list
/// that a pack laid out anew has instead), and weight files and indexes of still older runs.
fn older_output(folder: &Path) -> io::Result<Older> {
    let read = |name: &str| fs::read(folder.join(name)).ok();
    let manifest = read(MANIFEST_FILE).and_then(|bytes| Manifest::parse(&bytes).ok());
    let laid_out = || read(LAID_OUT_FILE).and_then(|bytes| LaidOut::parse(&bytes).ok());
    let (own, files) = match manifest {
        Some(manifest) => (MANIFEST_FILE, manifest.files),
        None => match laid_out() {
            Some(list) => (LAID_OUT_FILE, list.files),
            None => return Ok(Older::WithoutManifest),
        },
    };
    let mut pending = vec![PathBuf::new()];
    while let Some(below) = pending.pop() {
        for entry in fs::read_dir(folder.join(&below))? {
            let entry = entry?;
            let path = below.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                pending.push(path);
                continue;
            }
            let name = path.to_string_lossy();
            let of_weights = name.starts_with("model")
                && (name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json"));
            let written = files.iter().any(|file| file.path == name);
            // What publishing adds follows from the rest; a card that somebody wrote does not.
            let of_publishing = name == STATEMENT_FILE
                || name == CARD_FILE
                    && fs::read_to_string(folder.join(&path))
                        .is_ok_and(|card| card.contains(CARD_MARK));
            if !(written || of_weights || of_publishing || name == own) {
                return Ok(Older::WithStranger(path));
            }
        }
    }
    Ok(Older::Ours)
}

/// The absolute path without links, of which the last parts need not exist yet.
fn resolved(path: &Path) -> io::Result<PathBuf> {
    match path.canonicalize() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let name = path.file_name().ok_or(error)?;
            Ok(resolved(parent(path))?.join(name))
        }
        other => other,
    }
}

/// The folder that a path lies in.
pub(super) fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}
