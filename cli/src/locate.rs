//! From what the user typed to a source of bytes: a folder, a file, or a name on the Hub.

use crate::message::Usage;
use anyhow::Result;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use w4pack_format::gguf::view;
use w4pack_format::source::{FolderSource, Source};

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
    use w4pack_hub::{Hub, HubError, Progress, RepositoryName, Settings};

    pub fn downloaded(what: &str, revision: Option<&str>) -> Result<Arc<dyn Source>> {
        let (name, revision) = name(what, revision)?;
        let (hub, progress) = open_hub()?;
        let folder = hub.folder(&name, &revision);
        progress.finish();
        Ok(Arc::new(FolderSource::open(&folder?)?))
    }

    pub fn streamed(what: &str, revision: Option<&str>) -> Result<Arc<dyn Source>> {
        let (name, revision) = name(what, revision)?;
        let (hub, _) = open_hub()?;
        Ok(hub.open(&name, &revision)?)
    }

    /// The Hub as environment and flags have it, and who draws its progress.
    pub fn open_hub() -> Result<(Arc<Hub>, Arc<Drawn>)> {
        let reach = REACH.get().copied().unwrap_or_default();
        let progress = Arc::new(Drawn { bar: Bytes::new("", reach.quiet), reach });
        let settings = Settings::from_environment(reach.offline)?;
        Ok((Hub::new(settings, progress.clone())?, progress))
    }

    /// `owner/name[@revision]`, and what `--revision` adds.
    fn name(what: &str, revision: Option<&str>) -> Result<(RepositoryName, String)> {
        let (name, at) = RepositoryName::with_revision(what).map_err(|error| match error {
            HubError::Name { problem, .. } => {
                let message =
                    format!("`{what}` is neither a folder here nor a Hub name: {problem}");
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

    pub fn downloaded(what: &str, _: Option<&str>) -> Result<Arc<dyn Source>> {
        let message =
            format!("`{what}` is no folder here, and this w4pack was built without the Hub");
        let hint = "give a folder, or build with the feature `hub`, which is on by default";
        Err(Usage::new(message).hint(hint).into())
    }

    pub fn streamed(what: &str, revision: Option<&str>) -> Result<Arc<dyn Source>> {
        downloaded(what, revision)
    }
}
