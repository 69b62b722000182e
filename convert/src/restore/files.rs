//! The files of a restored checkpoint: which there will be, and writing them.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use w4pack_format::checkpoint::{Checkpoint, SINGLE_FILE};
use w4pack_format::config::{CONFIG_FILE, Config};
use w4pack_format::digest::{Blake3Hasher, Hasher, sha256};
use w4pack_format::header::Header;
use w4pack_format::manifest::{FileRecord, Manifest};
use w4pack_format::names::is_tower;
use w4pack_format::source::W4PACK_FOLDER;

use super::lists::Sidecar;
use super::module::PackedModule;
use super::origin::{Inventory, Origin, SourceTensor, text_only_name};
use super::report::{Missing, Report};
use crate::ConvertError;
use crate::blocks::{self, pump};
use crate::error::TensorDifference;
use crate::pack::text_only_config;
use crate::progress::{Progress, Stage, tell};
use crate::staging::Staging;

/// What will be written.
pub(super) struct Files<'a> {
    weights: Vec<WeightFile<'a>>,
    small: Vec<SmallFile>,
    missing: Vec<Missing>,
    not_restored: Vec<String>,
}

/// A safetensors file.
struct WeightFile<'a> {
    path: String,
    header: Header,
    /// The tensors in the order of the header.
    tensors: Vec<&'a SourceTensor>,
    /// The hash that it must have; `None` for a file that the source did not have.
    sha256: Option<String>,
}

/// A file beside the weights.
struct SmallFile {
    path: String,
    bytes: u64,
    content: Content,
    /// The hash that it must have.
    sha256: Option<String>,
}

enum Content {
    Text(Vec<u8>),
    /// The file of the same name in the packed checkpoint.
    OfPacked,
}

impl<'a> Files<'a> {
    /// The source's files if all of its tensors are to be had, else one file with those that are:
    /// under the source's names, or, without the towers, as a text-only checkpoint.
    pub(super) fn plan(
        manifest: &Manifest,
        packed: &Checkpoint,
        inventory: &'a Inventory<'_>,
    ) -> Result<Self, ConvertError> {
        if inventory.tensors().all(|tensor| tensor.origin.is_some()) {
            return Ok(Self::of_source(manifest, packed, inventory));
        }
        Self::of_what_is_there(manifest, packed, inventory)
    }

    fn of_source(manifest: &Manifest, packed: &Checkpoint, inventory: &'a Inventory<'_>) -> Self {
        let weights = inventory.shards.iter().map(|shard| WeightFile {
            path: shard.path.clone(),
            header: shard.header.clone(),
            tensors: shard.tensors.iter().collect(),
            sha256: Some(shard.sha256.clone()),
        });
        let (mut small, mut not_restored) = (Vec::new(), Vec::new());
        for file in &manifest.source.files {
            let FileRecord { path, bytes, sha256 } = file.clone();
            if inventory.shards.iter().any(|shard| shard.path == path) {
                continue;
            }
            let text = manifest.source.texts.iter().find(|text| text.path == path);
            let content = match text {
                Some(text) => Content::Text(text.text.clone().into_bytes()),
                // Of the same size at least; the hash decides when it is read.
                None if packed.source().size(&path) == Some(bytes) => Content::OfPacked,
                None => {
                    not_restored.push(path);
                    continue;
                }
            };
            small.push(SmallFile { path, bytes, content, sha256: Some(sha256) });
        }
        Files { weights: weights.collect(), small, missing: Vec::new(), not_restored }
    }

    fn of_what_is_there(
        manifest: &Manifest,
        packed: &Checkpoint,
        inventory: &'a Inventory<'_>,
    ) -> Result<Self, ConvertError> {
        let is_of_tower = |tensor: &SourceTensor| is_tower(&tensor.info.name);
        // A part of the towers is of no use to anybody.
        let text_only =
            inventory.tensors().any(|tensor| tensor.origin.is_none() && is_of_tower(tensor));
        let (tensors, without): (Vec<_>, Vec<_>) = inventory
            .tensors()
            .partition(|tensor| tensor.origin.is_some() && !(text_only && is_of_tower(tensor)));
        let missing = without.into_iter().map(|tensor| Missing {
            file: tensor.record.file.clone(),
            tensor: tensor.record.name.clone(),
            bytes: tensor.record.bytes,
        });
        let missing: Vec<Missing> = missing.collect();
        let entries: Vec<_> = tensors
            .iter()
            .map(|tensor| {
                let name = &tensor.info.name;
                let name = if text_only { text_only_name(name) } else { name.clone() };
                (name, tensor.info.dtype, tensor.info.shape.clone())
            })
            .collect();
        let header = Header::lay_out(&entries)?;
        let path = SINGLE_FILE.to_string();
        let weights = vec![WeightFile { path, header, tensors, sha256: None }];

        let text = manifest.source.texts.iter().find(|text| text.path == CONFIG_FILE);
        let text = text.ok_or_else(|| ConvertError::NotRestorable {
            place: packed.source().label().into(),
            problem: format!("its manifest lacks the source's {CONFIG_FILE}"),
        })?;
        let config = if text_only {
            text_only_config(&Config::parse(CONFIG_FILE, text.text.as_bytes())?)
        } else {
            text.text.clone().into_bytes()
        };
        let mut small = vec![SmallFile {
            path: CONFIG_FILE.into(),
            bytes: config.len() as u64,
            content: Content::Text(config),
            sha256: None,
        }];
        for file in packed.source().files() {
            let in_folder = file.path.starts_with(W4PACK_FOLDER);
            let of_weights = packed.shards().iter().any(|shard| shard.path == file.path);
            let of_index = packed.index_path() == Some(&file.path);
            if in_folder || of_weights || of_index || file.path == CONFIG_FILE {
                continue;
            }
            let record = manifest.source.files.iter().find(|record| record.path == file.path);
            small.push(SmallFile {
                path: file.path.clone(),
                bytes: file.bytes,
                content: Content::OfPacked,
                sha256: record.map(|record| record.sha256.clone()),
            });
        }
        let restored = |path: &String| small.iter().any(|file| file.path == *path);
        let is_shard = |path: &String| inventory.shards.iter().any(|shard| shard.path == *path);
        let paths = manifest.source.files.iter().map(|file| file.path.clone());
        let not_restored = paths.filter(|path| !restored(path) && !is_shard(path)).collect();
        Ok(Files { weights, small, missing, not_restored })
    }

    /// Bytes of all files.
    pub(super) fn bytes(&self) -> u64 {
        self.weight_bytes() + self.small.iter().map(|file| file.bytes).sum::<u64>()
    }

    fn weight_bytes(&self) -> u64 {
        self.weights.iter().map(|file| file.header.file_bytes()).sum()
    }

    /// Writes all files into the folder in the making.
    ///
    /// Errors: bytes that do not have the hash they must have, with tensor and file; whatever
    /// reading and writing can meet.
    pub(super) fn write(
        &self,
        inventory: &Inventory<'_>,
        staging: &Staging,
        progress: &dyn Progress,
    ) -> Result<(), ConvertError> {
        let sidecar = Sidecar::open(&**inventory.packed.source())?;
        let mut writing = Writing { inventory, sidecar, progress, done: 0, files: self };
        for file in &self.weights {
            writing.weights(file, &staging.path(&file.path))?;
        }
        for file in &self.small {
            let content = match &file.content {
                Content::Text(text) => text.clone(),
                Content::OfPacked => inventory.packed.source().read_file(&file.path)?,
            };
            check_file(&file.path, file.sha256.as_ref(), || sha256(&content))?;
            staging.write(&file.path, &content)?;
        }
        Ok(())
    }

    /// What was done.
    pub(super) fn report(&self, inventory: &Inventory<'_>, out: &Path, took: Duration) -> Report {
        let proved = |path: &String, bytes, sha256: &Option<String>| {
            let sha256 = sha256.clone()?;
            Some(FileRecord { path: path.clone(), bytes, sha256 })
        };
        let weights = self.weights.iter();
        let weights =
            weights.filter_map(|file| proved(&file.path, file.header.file_bytes(), &file.sha256));
        let small = self.small.iter();
        let small = small.filter_map(|file| proved(&file.path, file.bytes, &file.sha256));
        let restored: Vec<&Origin> = self
            .weights
            .iter()
            .flat_map(|file| &file.tensors)
            .filter_map(|tensor| tensor.origin.as_ref())
            .collect();
        let by = |origin: fn(&Origin) -> bool| restored.iter().filter(|o| origin(o)).count();
        let seconds = took.as_secs_f64();
        Report {
            packed: inventory.packed.source().label().into(),
            out: out.display().to_string(),
            source: inventory.manifest.source.name.clone(),
            revision: inventory.manifest.source.revision.clone(),
            complete: self.missing.is_empty(),
            tensors: restored.len(),
            tensors_unpacked: by(|origin| matches!(origin, Origin::Packed(_) | Origin::Stack(_))),
            towers_from: inventory.towers.map(|towers| towers.source().label().into()),
            tensors_from_towers: by(|origin| matches!(origin, Origin::Towers)),
            identical_files: weights.chain(small).collect(),
            missing: self.missing.clone(),
            not_restored: self.not_restored.clone(),
            bytes: self.bytes(),
            seconds,
            gigabytes_per_second: self.bytes() as f64 / 1e9 / seconds,
            peak_memory_bytes: crate::memory::peak_resident(),
        }
    }
}

/// The state while weight files are written.
struct Writing<'a> {
    inventory: &'a Inventory<'a>,
    sidecar: Sidecar<'a>,
    progress: &'a dyn Progress,
    files: &'a Files<'a>,
    done: u64,
}

impl Writing<'_> {
    fn weights(&mut self, file: &WeightFile<'_>, path: &Path) -> Result<(), ConvertError> {
        let opened = File::create_new(path).map_err(ConvertError::io("create", path))?;
        let mut hasher = Hasher::default();
        let prefix = file.header.prefix();
        opened.write_all_at(&prefix, 0).map_err(ConvertError::io("write", path))?;
        hasher.update(&prefix);
        self.advance(prefix.len() as u64)?;
        let mut at = prefix.len() as u64;
        for tensor in &file.tensors {
            let mut blake3 = Blake3Hasher::default();
            self.stream(tensor, |this, bytes| {
                let (written, ()) = rayon::join(
                    || opened.write_all_at(bytes, at),
                    || {
                        rayon::join(|| hasher.update(bytes), || blake3.update(bytes));
                    },
                );
                written.map_err(ConvertError::io("write", path))?;
                at += bytes.len() as u64;
                this.advance(bytes.len() as u64)
            })?;
            let found = blake3.finish();
            if found != tensor.record.blake3 {
                let supplied = tensor.origin == Some(Origin::Towers);
                let from =
                    if supplied { self.inventory.towers } else { Some(self.inventory.packed) };
                return Err(ConvertError::TensorDiffers(Box::new(TensorDifference {
                    place: from.map_or_else(String::new, |from| from.source().label().into()),
                    tensor: tensor.record.name.clone(),
                    file: tensor.record.file.clone(),
                    found,
                    wanted: tensor.record.blake3.clone(),
                    supplied,
                })));
            }
        }
        check_file(&file.path, file.sha256.as_ref(), || hasher.finish())?;
        opened.sync_all().map_err(ConvertError::io("flush", path))
    }

    /// Hands a tensor's bytes to `take`, in order.
    fn stream(
        &mut self,
        tensor: &SourceTensor,
        mut take: impl FnMut(&mut Self, &[u8]) -> Result<(), ConvertError> + Send,
    ) -> Result<(), ConvertError> {
        match &tensor.origin {
            Some(Origin::Stack(pieces)) => pieces
                .iter()
                .try_for_each(|piece| self.stream_from(&piece.origin, &piece.shape, &mut take)),
            Some(Origin::Towers) => {
                let towers = self.inventory.towers.expect("they were asked");
                self.stream_tensor(towers, &tensor.info.name, &mut take)
            }
            Some(origin) => self.stream_from(origin, &tensor.info.shape, &mut take),
            None => unreachable!("only tensors with an origin are written"),
        }
    }

    /// Hands a matrix or a copied tensor of the packed checkpoint to `take`.
    fn stream_from(
        &mut self,
        origin: &Origin,
        shape: &[usize],
        take: &mut (impl FnMut(&mut Self, &[u8]) -> Result<(), ConvertError> + Send),
    ) -> Result<(), ConvertError> {
        let packed = self.inventory.packed;
        match (origin, shape) {
            (Origin::Packed(module), &[rows, columns]) => {
                let mut module =
                    PackedModule::open(packed, &self.sidecar, module, [rows, columns])?;
                pump(|block| module.next_block(block), |bytes| take(self, bytes))
            }
            (Origin::Copied(name), _) => self.stream_tensor(packed, name, take),
            _ => unreachable!("a packed module is a matrix, and a stack is no part of another"),
        }
    }

    fn stream_tensor(
        &mut self,
        checkpoint: &Checkpoint,
        name: &str,
        take: &mut (impl FnMut(&mut Self, &[u8]) -> Result<(), ConvertError> + Send),
    ) -> Result<(), ConvertError> {
        let located = checkpoint.tensor(name).ok_or_else(|| checkpoint.missing(name))?;
        let begin = located.shard.header.data_start() + located.info.begin;
        let source = &**checkpoint.source();
        let path = &located.shard.path;
        blocks::stream(source, path, begin, located.info.bytes(), |_, bytes| take(self, bytes))
    }

    fn advance(&mut self, bytes: u64) -> Result<(), ConvertError> {
        self.done += bytes;
        tell(self.progress, Stage::Restore, self.done, self.files.weight_bytes())
    }
}

fn check_file(
    path: &str,
    wanted: Option<&String>,
    found: impl FnOnce() -> String,
) -> Result<(), ConvertError> {
    let Some(wanted) = wanted else { return Ok(()) };
    let found = found();
    if found == *wanted {
        return Ok(());
    }
    Err(ConvertError::FileDiffers { file: path.into(), found, wanted: wanted.clone() })
}
