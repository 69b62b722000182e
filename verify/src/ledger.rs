//! The account: every byte of both sides falls into exactly one class.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use w4pack_format::checkpoint::Checkpoint;
use w4pack_format::source::Source;

/// Which side a byte belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// What was converted.
    Source,
    /// What came out.
    Result,
}

impl fmt::Display for Side {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Side::Source => "source",
            Side::Result => "result",
        })
    }
}

/// What a byte turned out to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// A source tensor whose values were held against codes and steps; packed words.
    Codes,
    /// Scales.
    Scales,
    /// `weight_shape`.
    Shapes,
    /// A tensor that is the same on both sides, or the head's copy of the table.
    TensorCopied,
    /// config.json.
    Config,
    /// A companion file that is the same on both sides.
    FileCopied,
    /// safetensors headers, whose entries are compared one by one.
    Header,
    /// The shard index, which is checked against the headers.
    Index,
    /// Left out of the result, hashed.
    LeftOut,
    /// The manifest, whose every hash is compared.
    Manifest,
    /// The sidecar, which is held against the source's values.
    Sidecar,
    /// Documentation of the result itself: no loader reads it.
    Card,
}

/// Bytes by class, for both sides.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Accounted {
    /// Of the source.
    pub source: BTreeMap<Class, u64>,
    /// Of the result.
    pub result: BTreeMap<Class, u64>,
}

/// A file, or one tensor in it; of a safetensors file without a tensor: its header.
type Region = (Side, String, Option<String>);

/// All regions of both sides, claimed one by one.
#[derive(Default)]
pub struct Ledger {
    regions: BTreeMap<Region, (u64, Option<Class>)>,
}

impl Ledger {
    /// Enters every file of a side; safetensors files of the checkpoint by tensor.
    pub fn enter(&mut self, side: Side, checkpoint: &Checkpoint) {
        for file in checkpoint.source().files() {
            let whole = (side, file.path.clone(), None);
            let shard = checkpoint.shards().iter().find(|shard| shard.path == file.path);
            let Some(shard) = shard else {
                self.regions.insert(whole, (file.bytes, None));
                continue;
            };
            self.regions.insert(whole, (shard.header.data_start(), Some(Class::Header)));
            for tensor in &shard.header.tensors {
                let region = (side, file.path.clone(), Some(tensor.name.clone()));
                self.regions.insert(region, (tensor.bytes(), None));
            }
        }
    }

    /// Puts a file into a class.
    pub fn claim_file(&mut self, side: Side, file: &str, class: Class) {
        self.claim((side, file.into(), None), class);
    }

    /// Puts a tensor into a class.
    pub fn claim_tensor(&mut self, side: Side, checkpoint: &Checkpoint, name: &str, class: Class) {
        if let Some(found) = checkpoint.tensor(name) {
            self.claim((side, found.shard.path.clone(), Some(name.into())), class);
        }
    }

    fn claim(&mut self, region: Region, class: Class) {
        if let Some((_, claimed)) = self.regions.get_mut(&region) {
            debug_assert!(claimed.is_none(), "{region:?} is claimed twice");
            *claimed = Some(class);
        }
    }

    /// Files that no class claims yet.
    pub fn open_files(&self, side: Side) -> Vec<String> {
        let open = |(region, state): (&Region, &(u64, Option<Class>))| {
            (region.0 == side && region.2.is_none() && state.1.is_none()).then(|| region.1.clone())
        };
        self.regions.iter().filter_map(open).collect()
    }

    /// Files and tensors that no class claims: side, file, tensor and bytes of each.
    pub fn open(&self) -> impl Iterator<Item = (Side, &str, Option<&str>, u64)> {
        let open = self.regions.iter().filter(|(_, (_, class))| class.is_none());
        open.map(|((side, file, tensor), (bytes, _))| (*side, &**file, tensor.as_deref(), *bytes))
    }

    /// Bytes by class, and those of no class.
    pub fn close(&self) -> (Accounted, u64) {
        let mut accounted = Accounted::default();
        let mut unaccounted = 0;
        for ((side, ..), (bytes, class)) in &self.regions {
            match (side, class) {
                (_, None) => unaccounted += bytes,
                (Side::Source, Some(class)) => {
                    *accounted.source.entry(*class).or_default() += bytes
                }
                (Side::Result, Some(class)) => {
                    *accounted.result.entry(*class).or_default() += bytes
                }
            }
        }
        (accounted, unaccounted)
    }
}

/// Bytes of all files of a source.
pub fn total_bytes(source: &dyn Source) -> u64 {
    source.files().iter().map(|file| file.bytes).sum()
}
