//! The files of a packed checkpoint, from first byte to final name.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde_json::Value;
use w4pack_format::config::CONFIG_FILE;
use w4pack_format::digest::{Hasher, sha256};
use w4pack_format::exact::EXACT_FILE;
use w4pack_format::laid_out::{self, LAID_OUT_FILE, LaidOut};
use w4pack_format::manifest::{FileRecord, MANIFEST_FILE, Manifest, Options, SCHEMA, SourceRecord};

use super::behind::Behind;
use super::config::json_text;
use super::contents::Contents;
use super::places::Places;
use super::sidecar::Sidecar;
use crate::ConvertError;
use crate::staging::Staging;

/// Bytes read back at a time.
const BLOCK: usize = 4 << 20;

/// Scratch file of the sidecar.
const SPOOL_FILE: &str = "w4pack/exact.spool";

/// A packed checkpoint in the making.
///
/// `write_*` take `&self` and may be called from several threads for different places. Every
/// group and every copied byte must be written once before [`PackWriter::finish`].
pub struct PackWriter {
    places: Places,
    staging: Staging,
    path: PathBuf,
    file: File,
    behind: Behind,
    companions: Vec<FileRecord>,
}

/// What is known only when all tensors are written.
pub struct Finish<'a> {
    /// config.json, as [`super::packed_config`] makes it. A GGUF file has none, and no sidecar.
    pub config: Option<&'a Value>,
    /// For the manifest; without it there is a list of the files in its place.
    pub made_from: Option<MadeFrom>,
    /// Told how many bytes have been read back for hashing, and of how many; its error ends it.
    pub hashed: &'a (dyn Fn(u64, u64) -> Result<(), ConvertError> + Sync),
}

/// What the manifest says besides the output's files.
pub struct MadeFrom {
    /// What was read.
    pub source: SourceRecord,
    /// The options.
    pub options: Options,
    /// When, in RFC 3339, UTC.
    pub created: String,
}

/// What was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// Every file but the manifest, sorted by path.
    pub files: Vec<FileRecord>,
    /// Size of `w4pack/exact.safetensors`.
    pub sidecar_bytes: u64,
}

impl PackWriter {
    /// Begins a checkpoint that will stand at `out`; files beside its weights will take
    /// `companion_bytes`. What may be there is [`check_output`](crate::staging::check_output)'s
    /// matter. The writer's sidecar comes with it.
    pub fn create(
        out: &Path,
        contents: Contents,
        companion_bytes: u64,
    ) -> Result<(Self, Sidecar), ConvertError> {
        let places = Places::new(&contents)?;
        let staging = Staging::create(out, places.file_bytes() + companion_bytes)?;
        staging.make_w4pack_folder()?;
        let path = staging.path(places.file_name());
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)
            .map_err(ConvertError::io("create", &path))?;
        let names = contents.modules.iter().map(|module| module.name.clone()).collect();
        let sidecar = Sidecar::create(&staging.path(SPOOL_FILE), names)?;
        let (behind, companions) = (Behind::default(), Vec::new());
        let writer = PackWriter { places, staging, path, file, behind, companions };
        let size = writer.places.file_bytes();
        writer.file.set_len(size).map_err(ConvertError::io("size", &writer.path))?;
        for (offset, bytes) in writer.places.known(&contents) {
            writer.write_at(offset, &bytes)?;
        }
        Ok((writer, sidecar))
    }

    /// Writes groups of a module from `first` on: their packed words (16 bytes each) and their
    /// steps, both as they lie in the file.
    pub fn write_groups(
        &self,
        module: usize,
        first: u64,
        words: &[u8],
        scales: &[u8],
    ) -> Result<(), ConvertError> {
        for (offset, bytes) in self.places.groups(module, first, words, scales) {
            self.write_at(offset, &bytes)?;
        }
        Ok(())
    }

    /// Reads back groups of a module that were written: their packed words and their steps.
    pub fn read_groups(
        &self,
        module: usize,
        first: u64,
        words: &mut [u8],
        scales: &mut [u8],
    ) -> Result<(), ConvertError> {
        let Some([word_place, scale_place]) = self.places.of_groups(module, first) else {
            unreachable!("what a GGUF file cannot say is noted nowhere")
        };
        for (place, bytes) in [(word_place, words), (scale_place, scales)] {
            let read = self.file.read_exact_at(bytes, place);
            read.map_err(ConvertError::io("read", &self.path))?;
        }
        Ok(())
    }

    /// Writes bytes of a copied tensor from its byte `first` on.
    pub fn write_copied(
        &self,
        tensor: usize,
        first: u64,
        bytes: &[u8],
    ) -> Result<(), ConvertError> {
        let (offset, bytes) = self.places.copied(tensor, first, bytes);
        self.write_at(offset, &bytes)
    }

    /// Hashes up to `most` bytes of the weights' file that are written and not hashed yet. What is
    /// left to hash at the end is hashed by [`PackWriter::finish`].
    pub fn hash_behind(&self, most: u64) -> Result<(), ConvertError> {
        let advanced = self.behind.advance(&self.file, most);
        advanced.map(|_| ()).map_err(ConvertError::io("read", &self.path))
    }

    /// Adds a file of the top level as it is.
    pub fn companion(&mut self, name: &str, bytes: &[u8]) -> Result<(), ConvertError> {
        self.staging.write(name, bytes)?;
        self.companions.push(record(name, bytes));
        Ok(())
    }

    /// Writes config, sidecar and manifest, hashes what lies in the weights' file, and puts the
    /// folder under its final name.
    pub fn finish(self, sidecar: Sidecar, finish: Finish<'_>) -> Result<Written, ConvertError> {
        let weights = Weights {
            path: self.path,
            file: self.file,
            behind: self.behind,
            name: self.places.file_name(),
            bytes: self.places.file_bytes(),
        };
        let written = write_rest(&self.staging, weights, self.companions, sidecar, finish);
        let written = written.map_err(|error| self.staging.explain(error))?;
        self.staging.commit()?;
        Ok(written)
    }

    /// An error met while writing: a full disk is told with the bytes needed and free.
    pub fn explain(&self, error: ConvertError) -> ConvertError {
        self.staging.explain(error)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), ConvertError> {
        self.file.write_all_at(bytes, offset).map_err(ConvertError::io("write", &self.path))?;
        self.behind.wrote(offset, bytes.len());
        Ok(())
    }
}

/// The weights' file, all of it written.
struct Weights {
    path: PathBuf,
    file: File,
    behind: Behind,
    name: &'static str,
    bytes: u64,
}

/// Everything but the weights, and their hash.
fn write_rest(
    staging: &Staging,
    weights: Weights,
    companions: Vec<FileRecord>,
    sidecar: Sidecar,
    finish: Finish<'_>,
) -> Result<Written, ConvertError> {
    let Weights { path, file, behind, name, bytes: weights_bytes } = weights;
    let mut files = companions;
    if let Some(config) = finish.config {
        let config = json_text(config);
        staging.write(CONFIG_FILE, &config)?;
        files.push(record(CONFIG_FILE, &config));
    }
    let exact = staging.path(EXACT_FILE);
    let has_sidecar = finish.config.is_some() && finish.made_from.is_some();
    let sidecar_bytes = match has_sidecar {
        true => sidecar.write(&exact)?,
        false => sidecar.discard().map(|()| 0)?,
    };
    let total = weights_bytes + sidecar_bytes;
    (finish.hashed)(0, total)?;
    let hash = || -> Result<(), ConvertError> {
        loop {
            let done = behind.advance(&file, BLOCK as u64);
            let done = done.map_err(ConvertError::io("read", &path))?;
            (finish.hashed)(done, total)?;
            if done == behind.complete() {
                return Ok(());
            }
        }
    };
    // The disk writes while what is left is hashed.
    let (flushed, hashed) = rayon::join(|| file.sync_all(), hash);
    flushed.map_err(ConvertError::io("flush", &path))?;
    hashed?;
    assert_eq!(behind.complete(), weights_bytes, "a place in `{}` unwritten", path.display());
    files.push(FileRecord { path: name.into(), bytes: weights_bytes, sha256: behind.finish() });
    if has_sidecar {
        files.push(hash_file(EXACT_FILE, &exact, &|done| {
            (finish.hashed)(weights_bytes + done, total)
        })?);
    }
    files.sort_by(|one, other| one.path.cmp(&other.path));
    match finish.made_from {
        Some(MadeFrom { source, options, created }) => {
            let manifest = Manifest {
                schema: SCHEMA.into(),
                w4pack_version: env!("CARGO_PKG_VERSION").into(),
                created,
                options,
                source,
                files: files.clone(),
            };
            staging.write(MANIFEST_FILE, &manifest.to_bytes())?;
        }
        None => {
            let list = LaidOut {
                schema: laid_out::SCHEMA.into(),
                w4pack_version: env!("CARGO_PKG_VERSION").into(),
                files: files.clone(),
            };
            staging.write(LAID_OUT_FILE, &list.to_bytes())?;
        }
    }
    Ok(Written { files, sidecar_bytes })
}

fn record(path: &str, bytes: &[u8]) -> FileRecord {
    FileRecord { path: path.into(), bytes: bytes.len() as u64, sha256: sha256(bytes) }
}

/// Hashes what really lies on the disk, a few MiB at a time.
fn hash_file(
    name: &str,
    path: &Path,
    done: &dyn Fn(u64) -> Result<(), ConvertError>,
) -> Result<FileRecord, ConvertError> {
    let file = File::open(path).map_err(ConvertError::io("open", path))?;
    let bytes = file.metadata().map_err(ConvertError::io("size", path))?.len();
    let mut hasher = Hasher::default();
    let mut block = vec![0; BLOCK];
    let mut at = 0;
    while at < bytes {
        let length = (bytes - at).min(BLOCK as u64) as usize;
        file.read_exact_at(&mut block[..length], at).map_err(ConvertError::io("read", path))?;
        hasher.update(&block[..length]);
        at += length as u64;
        done(at)?;
    }
    Ok(FileRecord { path: name.into(), bytes, sha256: hasher.finish() })
}
