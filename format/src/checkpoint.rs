//! One or many safetensors files seen as one set of named tensors.

use crate::header::{Header, TensorInfo};
use crate::source::{FolderSource, Source, check_file_name};
use crate::{FormatError, Result, json};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// The file of a checkpoint that is not sharded.
pub const SINGLE_FILE: &str = "model.safetensors";
/// The file that names the shards.
pub const INDEX_FILE: &str = "model.safetensors.index.json";

/// One safetensors file of a checkpoint.
#[derive(Debug, Clone)]
pub struct Shard {
    /// File name.
    pub path: String,
    /// Size of the file.
    pub bytes: u64,
    /// Its header.
    pub header: Header,
}

/// A tensor and the file it lies in.
#[derive(Debug, Clone, Copy)]
pub struct Located<'a> {
    /// The file.
    pub shard: &'a Shard,
    /// Its entry in the file's header.
    pub info: &'a TensorInfo,
}

/// An opened checkpoint: headers read and checked, weights untouched.
pub struct Checkpoint {
    source: Arc<dyn Source>,
    shards: Vec<Shard>,
    /// Tensor name -> (shard, position in the shard's header).
    tensors: BTreeMap<String, (usize, usize)>,
    index: Option<Index>,
    strays: Vec<String>,
}

struct Index {
    weight_map: BTreeMap<String, String>,
    total_size: Option<u64>,
}

impl Checkpoint {
    /// Opens a folder on a disk.
    pub fn open_folder(path: &Path) -> Result<Checkpoint> {
        Self::open(Arc::new(FolderSource::open(path)?))
    }

    /// Reads `model.safetensors`, or the index and the shards it names.
    ///
    /// Errors: neither is there; a hostile or truncated file; an index that does not say exactly
    /// what the shards hold; a shard name that leads outside.
    pub fn open(source: Arc<dyn Source>) -> Result<Checkpoint> {
        let index = match source.size(INDEX_FILE) {
            Some(_) => Some(read_index(&*source)?),
            None => None,
        };
        let mut paths: Vec<String> = match &index {
            Some(index) => index.weight_map.values().cloned().collect(),
            None if source.size(SINGLE_FILE).is_some() => vec![SINGLE_FILE.into()],
            None => return Err(no_checkpoint(&*source)),
        };
        paths.sort();
        paths.dedup();
        let mut shards = Vec::with_capacity(paths.len());
        for path in &paths {
            shards.push(open_shard(&*source, path, index.is_some())?);
        }
        let tensors = collect_tensors(&*source, &shards)?;
        let strays = source
            .files()
            .iter()
            .filter(|file| file.path.ends_with(".safetensors") && !file.path.contains('/'))
            .filter(|file| !paths.contains(&file.path))
            .map(|file| file.path.clone())
            .collect();
        let checkpoint = Checkpoint { source, shards, tensors, index, strays };
        checkpoint.check_index()?;
        Ok(checkpoint)
    }

    /// Where the bytes come from.
    pub fn source(&self) -> &Arc<dyn Source> {
        &self.source
    }

    /// A file of the checkpoint for messages: with the folder or name as the user gave it.
    pub fn place(&self, path: &str) -> String {
        format!("{}/{path}", self.source.label())
    }

    /// The files, sorted by name.
    pub fn shards(&self) -> &[Shard] {
        &self.shards
    }

    /// The index's file name, if the checkpoint has one.
    pub fn index_path(&self) -> Option<&'static str> {
        self.index.as_ref().map(|_| INDEX_FILE)
    }

    /// The index's `metadata.total_size`, if it gives one, beside the sum of all tensors' bytes.
    pub fn index_total_size(&self) -> Option<(u64, u64)> {
        let stated = self.index.as_ref()?.total_size?;
        Some((stated, self.tensor_bytes()))
    }

    /// safetensors files of the top level that belong to no index: leftovers, or a second model.
    pub fn strays(&self) -> &[String] {
        &self.strays
    }

    /// Bytes of all tensors.
    pub fn tensor_bytes(&self) -> u64 {
        self.shards.iter().map(|shard| shard.header.data_bytes()).sum()
    }

    /// All tensor names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// A tensor by its full name.
    pub fn tensor(&self, name: &str) -> Option<Located<'_>> {
        let &(shard, position) = self.tensors.get(name)?;
        let shard = &self.shards[shard];
        Some(Located { shard, info: &shard.header.tensors[position] })
    }

    /// All bytes of a tensor.
    pub fn read(&self, name: &str) -> Result<Vec<u8>> {
        let located = self.tensor(name).ok_or_else(|| self.missing(name))?;
        let mut bytes = vec![0; located.info.bytes() as usize];
        self.read_range(name, 0, &mut bytes)?;
        Ok(bytes)
    }

    /// Fills `buffer` from byte `first` of a tensor.
    ///
    /// Errors: no such tensor; the range leaves the tensor; the file ends early.
    pub fn read_range(&self, name: &str, first: u64, buffer: &mut [u8]) -> Result<()> {
        let Located { shard, info } = self.tensor(name).ok_or_else(|| self.missing(name))?;
        let inside = first.checked_add(buffer.len() as u64).is_some_and(|end| end <= info.bytes());
        if !inside {
            return Err(FormatError::Tensor {
                file: shard.path.clone(),
                tensor: name.into(),
                problem: format!(
                    "{} bytes from byte {first} were asked for, it has {}",
                    buffer.len(),
                    info.bytes()
                ),
            });
        }
        self.source.read_at(&shard.path, shard.header.data_start() + info.begin + first, buffer)
    }

    /// The error for a tensor that is not there.
    pub fn missing(&self, name: &str) -> FormatError {
        FormatError::MissingTensor { place: self.source.label().into(), tensor: name.into() }
    }

    /// The index must name every tensor, in the shard that holds it, and none besides.
    fn check_index(&self) -> Result<()> {
        let Some(index) = &self.index else { return Ok(()) };
        let fail = |problem| Err(FormatError::Index { file: INDEX_FILE.into(), problem });
        for (name, path) in &index.weight_map {
            match self.tensor(name) {
                None => return fail(format!("it places `{name}` in `{path}`, which lacks it")),
                Some(found) if found.shard.path != *path => {
                    let held = &found.shard.path;
                    return fail(format!("it places `{name}` in `{path}`, `{held}` holds it"));
                }
                Some(_) => {}
            }
        }
        match self.tensors.keys().find(|name| !index.weight_map.contains_key(*name)) {
            Some(name) => fail(format!("it does not name the tensor `{name}`")),
            None => Ok(()),
        }
    }
}

fn read_index(source: &dyn Source) -> Result<Index> {
    let value = json::parse(INDEX_FILE, &source.read_file(INDEX_FILE)?)?;
    let fail = |problem: String| FormatError::Index { file: INDEX_FILE.into(), problem };
    let entries = value
        .get("weight_map")
        .and_then(Value::as_object)
        .ok_or_else(|| fail("it has no `weight_map` object".into()))?;
    let mut weight_map = BTreeMap::new();
    for (tensor, path) in entries {
        let path =
            path.as_str().ok_or_else(|| fail(format!("entry `{tensor}` is {path}, not a name")))?;
        check_file_name(path, &format!("{INDEX_FILE}, entry `{tensor}`"))?;
        weight_map.insert(tensor.clone(), path.to_string());
    }
    if weight_map.is_empty() {
        return Err(fail("its `weight_map` is empty".into()));
    }
    // Some writers store the number as a float.
    let total_size = value.pointer("/metadata/total_size");
    let total_size =
        total_size.and_then(|size| size.as_u64().or_else(|| size.as_f64().map(|size| size as u64)));
    Ok(Index { weight_map, total_size })
}

fn open_shard(source: &dyn Source, path: &str, from_index: bool) -> Result<Shard> {
    let bytes = source.size(path).ok_or_else(|| {
        debug_assert!(from_index, "a single file was seen before it is opened");
        let problem = format!("it names the file `{path}`, which is not there");
        FormatError::Index { file: INDEX_FILE.into(), problem }
    })?;
    let file = format!("{}/{path}", source.label());
    let header =
        Header::parse(&file, bytes, &mut |offset, buffer| source.read_at(path, offset, buffer))?;
    Ok(Shard { path: path.into(), bytes, header })
}

fn collect_tensors(
    source: &dyn Source,
    shards: &[Shard],
) -> Result<BTreeMap<String, (usize, usize)>> {
    let mut tensors = BTreeMap::new();
    for (number, shard) in shards.iter().enumerate() {
        for (position, info) in shard.header.tensors.iter().enumerate() {
            if let Some((first, _)) = tensors.insert(info.name.clone(), (number, position)) {
                let other: &Shard = &shards[first];
                return Err(FormatError::Tensor {
                    file: format!("{}/{}", source.label(), shard.path),
                    tensor: info.name.clone(),
                    problem: format!("`{}` holds a tensor of the same name", other.path),
                });
            }
        }
    }
    Ok(tensors)
}

fn no_checkpoint(source: &dyn Source) -> FormatError {
    let others: Vec<&str> = source
        .files()
        .iter()
        .map(|file| file.path.as_str())
        .filter(|path| path.ends_with(".safetensors") && !path.contains('/'))
        .collect();
    let problem = if others.is_empty() {
        format!("neither `{SINGLE_FILE}` nor `{INDEX_FILE}`")
    } else {
        format!("neither `{SINGLE_FILE}` nor `{INDEX_FILE}`, only {}", others.join(", "))
    };
    FormatError::NoCheckpoint { place: source.label().into(), problem }
}
