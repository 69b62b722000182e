//! From what the user typed to a source of bytes, or to a listing of one: a folder, a file, or a name on
//! the Hub.

use crate::message::Usage;
use anyhow::Result;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use w4pack_format::gguf::view;
use w4pack_format::source::{FolderSource, Source};
use w4pack_verify::Listing;

/// How this process may reach the Hub: the flags that stand before every command.
#[derive(Debug, Clone, Copy, Default)]
#[cfg_attr(not(feature = "hub"), allow(dead_code, reason = "without the Hub nobody asks"))]
pub struct Reach {
    /// Open no connection.
    pub offline: bool,
    /// No progress, no remarks.
    pub quiet: bool,
}

static REACH: OnceLock<Reach> = OnceLock::new();

/// Says once, before the command begins, how the Hub may be reached.
pub fn allow(reach: Reach) {
    // The first word counts; there is only one.
    let _ = REACH.set(reach);
}

/// Opens a model to be read whatever its format: as [`source`], and a GGUF file as the packed
/// checkpoint that it stands for.
pub fn model(what: &str, revision: Option<&str>) -> Result<Arc<dyn Source>> {
    Ok(view::open(source(what, revision)?)?)
}

/// Opens a folder, a `model.safetensors`, a GGUF file, or a Hub name, whose files are downloaded if
/// the local Hub cache does not have them.
pub fn source(what: &str, revision: Option<&str>) -> Result<Arc<dyn Source>> {
    match here(what, revision)? {
        Some(folder) => Ok(folder),
        None => on_the_hub::downloaded(what, revision),
    }
}

/// Opens a folder, a file, or a Hub name, of whose files only the bytes that are read come over the
/// line; nothing is stored. A copy in the local Hub cache goes before.
pub fn streamed(what: &str, revision: Option<&str>) -> Result<Arc<dyn Source>> {
    match here(what, revision)? {
        Some(folder) => Ok(folder),
        None => on_the_hub::streamed(what, revision),
    }
}

/// What is on this machine under that very path.
pub fn here(what: &str, revision: Option<&str>) -> Result<Option<Arc<dyn Source>>> {
    let path = Path::new(what);
    if !path.exists() {
        return Ok(None);
    }
    if revision.is_some() {
        let message = format!("`{what}` is a folder here, and a folder has no --revision");
        return Err(Usage::new(message).into());
    }
    Ok(Some(Arc::new(FolderSource::open(path)?)))
}

/// The source's files with their hashes: a listing in a file, or what the Hub lists under a name.
pub fn listing(what: &str) -> Result<Listing> {
    let path = Path::new(what);
    if path.exists() {
        return Ok(Listing::parse(what, &read_file(path)?)?);
    }
    on_the_hub::listing(what)
}

/// All of a file that the user has named.
pub fn read_file(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path)
        .map_err(|error| Usage::new(format!("could not read `{}`: {error}", path.display())).into())
}

#[cfg(feature = "hub")]
pub use on_the_hub::open_hub;

#[cfg(feature = "hub")]
mod on_the_hub {
    use super::{REACH, Reach};
    use crate::message::{Usage, talk};
    use crate::progress::Bytes;
    use anyhow::Result;
    use std::sync::Arc;
    use w4pack_format::source::{FolderSource, Source};
    use w4pack_hub::name::MAIN;
    use w4pack_hub::{Hub, HubError, Progress, RemoteFile, RepositoryName, Settings};
    use w4pack_verify::{ListedCommit, ListedFile, Listing};

    pub fn downloaded(what: &str, revision: Option<&str>) -> Result<Arc<dyn Source>> {
        let (name, revision) = name(what, revision, "a folder")?;
        let (hub, progress) = open_hub()?;
        let folder = hub.folder(&name, &revision);
        progress.finish();
        Ok(Arc::new(FolderSource::open(&folder?)?))
    }

    pub fn streamed(what: &str, revision: Option<&str>) -> Result<Arc<dyn Source>> {
        let (name, revision) = name(what, revision, "a folder")?;
        let (hub, _) = open_hub()?;
        Ok(hub.open(&name, &revision)?)
    }

    pub fn listing(what: &str) -> Result<Listing> {
        let (name, revision) = name(what, None, "a file")?;
        let (hub, _) = open_hub()?;
        let snapshot = hub.resolve(&name, &revision)?;
        let listed = |file: RemoteFile| ListedFile {
            // Of a large file Git's hash is that of a pointer to it.
            git: file.sha256.is_none().then_some(file.git),
            path: file.path,
            bytes: file.bytes,
            sha256: file.sha256,
        };
        let of = ListedCommit { name: name.to_string(), commit: snapshot.commit };
        let label = format!("the Hub's file list of {name}");
        Ok(Listing::new(&label, snapshot.files.into_iter().map(listed).collect(), Some(of))?)
    }

    /// The Hub as environment and flags have it, and who draws its progress.
    pub fn open_hub() -> Result<(Arc<Hub>, Arc<Drawn>)> {
        let reach = REACH.get().copied().unwrap_or_default();
        let progress = Arc::new(Drawn { bar: Bytes::new("", reach.quiet), reach });
        let settings = Settings::from_environment(reach.offline)?;
        Ok((Hub::new(settings, progress.clone())?, progress))
    }

    /// `owner/name[@revision]`, and what `--revision` adds.
    /// `here` is what might have stood there instead.
    fn name(what: &str, revision: Option<&str>, here: &str) -> Result<(RepositoryName, String)> {
        let (name, at) = RepositoryName::with_revision(what).map_err(|error| match error {
            HubError::Name { problem, .. } => {
                let message = format!("`{what}` is neither {here} here nor a Hub name: {problem}");
                anyhow::Error::from(Usage::new(message))
            }
            other => other.into(),
        })?;
        if let Some(revision) = revision {
            w4pack_hub::name::check_revision(revision)?;
        }
        let revision = match (at, revision) {
            (Some(at), Some(flag)) if at != flag => {
                return Err(Usage::new(format!("`{what}` and --revision {flag} disagree")).into());
            }
            (at, flag) => at.or_else(|| flag.map(str::to_string)).unwrap_or_else(|| MAIN.into()),
        };
        Ok((name, revision))
    }

    /// A bar, and lines between.
    pub struct Drawn {
        bar: Bytes,
        reach: Reach,
    }

    impl Drawn {
        pub fn finish(&self) {
            self.bar.finish();
        }
    }

    impl Progress for Drawn {
        fn begin(&self, stage: &'static str, bytes: u64) {
            self.bar.begin(stage, bytes);
        }

        fn advance(&self, bytes: u64) {
            self.bar.advance(bytes);
        }

        fn note(&self, text: &str) {
            if !self.reach.quiet {
                self.bar.aside(|| talk(&format!("{text}\n")));
            }
        }
    }
}

#[cfg(not(feature = "hub"))]
mod on_the_hub {
    use crate::message::Usage;
    use anyhow::Result;
    use std::sync::Arc;
    use w4pack_format::source::Source;
    use w4pack_verify::Listing;

    pub fn downloaded(what: &str, _: Option<&str>) -> Result<Arc<dyn Source>> {
        Err(refusal(what, "folder"))
    }

    pub fn streamed(what: &str, _: Option<&str>) -> Result<Arc<dyn Source>> {
        Err(refusal(what, "folder"))
    }

    pub fn listing(what: &str) -> Result<Listing> {
        Err(refusal(what, "file"))
    }

    fn refusal(what: &str, here: &str) -> anyhow::Error {
        let message =
            format!("`{what}` is no {here} here, and this w4pack was built without the Hub");
        let hint =
            format!("give a {here}, or build with the feature `hub`, which is on by default");
        Usage::new(message).hint(hint).into()
    }
}
