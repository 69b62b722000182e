//! From what the user typed to a source of bytes: a folder, or a name in the local Hub cache.

use crate::message::Usage;
use anyhow::Result;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use w4pack_format::gguf::view;
use w4pack_format::source::{FolderSource, Source};

/// Opens a model to be read whatever its format: as [`source`], and a GGUF file as the packed
/// checkpoint that it stands for.
pub fn model(what: &str, revision: Option<&str>) -> Result<Arc<dyn Source>> {
    Ok(view::open(source(what, revision)?)?)
}

/// Opens a folder, a `model.safetensors`, a GGUF file, or a Hub name that was downloaded before.
pub fn source(what: &str, revision: Option<&str>) -> Result<Arc<dyn Source>> {
    let path = Path::new(what);
    if path.exists() {
        if revision.is_some() {
            let message = format!("`{what}` is a folder here, and a folder has no --revision");
            return Err(Usage::new(message).into());
        }
        return Ok(Arc::new(FolderSource::open(path)?));
    }
    let (name, at) = match what.split_once('@') {
        Some((name, at)) => (name, Some(at)),
        None => (what, None),
    };
    if !is_hub_name(name) {
        return Err(Usage::new(format!("`{what}` is neither a folder here nor a Hub name")).into());
    }
    let revision = match (at, revision) {
        (Some(at), Some(flag)) if at != flag => {
            return Err(Usage::new(format!("`{what}` and --revision {flag} disagree")).into());
        }
        (at, flag) => at.or(flag).unwrap_or("main"),
    };
    if !revision.split('/').all(is_path_part) {
        return Err(Usage::new(format!("`{revision}` is no branch, tag or commit")).into());
    }
    match cached_snapshot(name, revision) {
        Some(folder) => Ok(Arc::new(FolderSource::open(&folder)?)),
        None => {
            let message = format!("`{name}` (revision {revision}) is not in the local Hub cache");
            let hint = format!("download it with `hf download {name}`, then try again");
            Err(Usage::new(message).hint(hint).into())
        }
    }
}

/// `owner/name`, with the characters the Hub allows.
fn is_hub_name(name: &str) -> bool {
    name.split_once('/').is_some_and(|(owner, name)| is_path_part(owner) && is_path_part(name))
}

/// One level of a path that leads nowhere but down.
fn is_path_part(part: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !part.is_empty() && part.chars().all(allowed) && part != "." && part != ".."
}

/// Python's cache layout: `refs/<branch>` holds a commit, `snapshots/<commit>` the files.
fn cached_snapshot(name: &str, revision: &str) -> Option<PathBuf> {
    let repository = cache_folder()?.join(format!("models--{}", name.replace('/', "--")));
    let commit = std::fs::read_to_string(repository.join("refs").join(revision))
        .map_or_else(|_| revision.to_string(), |commit| commit.trim().to_string());
    let folder = repository.join("snapshots").join(commit);
    folder.is_dir().then_some(folder)
}

/// `$HF_HUB_CACHE`, else `$HF_HOME/hub`, else `~/.cache/huggingface/hub`.
fn cache_folder() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(cache) = variable("HF_HUB_CACHE") {
        return Some(cache.into());
    }
    if let Some(home) = variable("HF_HOME") {
        return Some(Path::new(&home).join("hub"));
    }
    if let Some(cache) = variable("XDG_CACHE_HOME") {
        return Some(Path::new(&cache).join("huggingface/hub"));
    }
    Some(Path::new(&variable("HOME")?).join(".cache/huggingface/hub"))
}
