//! A checkpoint in memory: files that can be changed, and seen as a source.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use serde_json::{Value, json};
use w4pack_format::checkpoint::{INDEX_FILE, SINGLE_FILE};
use w4pack_format::dtype::Dtype;
use w4pack_format::header::{Header, TensorInfo};
use w4pack_format::source::{Source, SourceFile};
use w4pack_format::{FormatError, Result};

/// Files by path. Cloning shares them until one is changed.
#[derive(Clone)]
pub struct Pack {
    files: BTreeMap<String, Arc<Vec<u8>>>,
    /// Weight files and their headers as they were before any damage.
    shards: Arc<Vec<(String, Header)>>,
}

impl Pack {
    /// Reads all files.
    pub fn read(source: &dyn Source) -> Result<Pack> {
        let mut files = BTreeMap::new();
        for file in source.files() {
            files.insert(file.path.clone(), Arc::new(source.read_file(&file.path)?));
        }
        Pack::of(files)
    }

    fn of(files: BTreeMap<String, Arc<Vec<u8>>>) -> Result<Pack> {
        let mut shards = Vec::new();
        let weights =
            files.iter().filter(|(path, _)| path.ends_with(".safetensors") && !path.contains('/'));
        for (path, content) in weights {
            let header = Header::parse(path, content.len() as u64, &mut |offset, buffer| {
                let begin = offset as usize;
                buffer.copy_from_slice(&content[begin..begin + buffer.len()]);
                Ok(())
            })?;
            shards.push((path.clone(), header));
        }
        Ok(Pack { files, shards: Arc::new(shards) })
    }

    /// The same tensors in two files and an index.
    pub fn in_two_shards(&self) -> Result<Pack> {
        let mut files = self.files.clone();
        files.remove(SINGLE_FILE);
        let (mut map, mut total) = (serde_json::Map::new(), 0);
        for part in 0..2 {
            let path = format!("model-{:05}-of-00002.safetensors", part + 1);
            let tensors: Vec<(&String, &TensorInfo)> =
                self.tensors().skip(part).step_by(2).collect();
            let list: Vec<(String, Dtype, Vec<usize>)> =
                tensors.iter().map(|(_, t)| (t.name.clone(), t.dtype, t.shape.clone())).collect();
            let mut bytes = Header::lay_out(&list)?.prefix();
            for (_, info) in tensors {
                map.insert(info.name.clone(), path.as_str().into());
                total += info.bytes();
                bytes.extend_from_slice(self.tensor(&info.name).unwrap_or_default());
            }
            files.insert(path, Arc::new(bytes));
        }
        let index = json!({"metadata": {"total_size": total}, "weight_map": map});
        files.insert(INDEX_FILE.into(), Arc::new(index.to_string().into_bytes()));
        let mut pack = Pack::of(files)?;
        pack.recompute_manifest()?;
        Ok(pack)
    }

    /// All files.
    pub fn files(&self) -> impl Iterator<Item = (&String, &Arc<Vec<u8>>)> {
        self.files.iter()
    }

    /// A file's content.
    pub fn file(&self, path: &str) -> Option<&[u8]> {
        self.files.get(path).map(|content| content.as_slice())
    }

    /// A file's content, to be changed.
    pub fn file_mut(&mut self, path: &str) -> Option<&mut Vec<u8>> {
        self.files.get_mut(path).map(Arc::make_mut)
    }

    /// Adds or replaces a file.
    pub fn put(&mut self, path: &str, content: Vec<u8>) {
        self.files.insert(path.into(), Arc::new(content));
    }

    /// Takes a file away.
    pub fn remove(&mut self, path: &str) {
        self.files.remove(path);
    }

    /// Every tensor of the undamaged weights and its file.
    pub fn tensors(&self) -> impl Iterator<Item = (&String, &TensorInfo)> {
        self.shards.iter().flat_map(|(path, header)| header.tensors.iter().map(move |t| (path, t)))
    }

    /// A tensor's file, entry and place in the file.
    pub fn locate(&self, name: &str) -> Option<(String, TensorInfo, Range<usize>)> {
        self.shards.iter().find_map(|(path, header)| {
            let info = header.tensors.iter().find(|tensor| tensor.name == name)?;
            let begin = header.data_start() as usize;
            let place = begin + info.begin as usize..begin + info.end as usize;
            Some((path.clone(), info.clone(), place))
        })
    }

    /// A tensor's bytes.
    pub fn tensor(&self, name: &str) -> Option<&[u8]> {
        let (path, _, place) = self.locate(name)?;
        self.file(&path)?.get(place)
    }

    /// A tensor's bytes, to be changed.
    pub fn tensor_mut(&mut self, name: &str) -> Option<&mut [u8]> {
        let (path, _, place) = self.locate(name)?;
        self.file_mut(&path)?.get_mut(place)
    }

    /// Modules that are packed, each with the file of its words.
    pub fn modules(&self) -> Vec<String> {
        let names = self.tensors().map(|(_, info)| &info.name);
        names.filter_map(|name| Some(name.strip_suffix(".weight_packed")?.to_string())).collect()
    }

    /// Changes the header of a weight file; the data stays.
    pub fn edit_header(&mut self, path: &str, edit: impl FnOnce(&mut Value)) -> Option<()> {
        let content = self.file(path)?;
        let length = u64::from_le_bytes(content.get(..8)?.try_into().ok()?) as usize;
        let mut header: Value = serde_json::from_slice(content.get(8..8 + length)?).ok()?;
        edit(&mut header);
        let text = header.to_string().into_bytes();
        let mut edited = (text.len() as u64).to_le_bytes().to_vec();
        edited.extend_from_slice(&text);
        edited.extend_from_slice(&content[8 + length..]);
        self.put(path, edited);
        Some(())
    }

    /// Changes a JSON file.
    pub fn edit_json<T>(&mut self, path: &str, edit: impl FnOnce(&mut Value) -> T) -> Option<T> {
        let mut value: Value = serde_json::from_slice(self.file(path)?).ok()?;
        let outcome = edit(&mut value);
        self.put(path, value.to_string().into_bytes());
        Some(outcome)
    }

    /// As a source for the verifier.
    pub fn into_source(self) -> Arc<dyn Source> {
        let list = self
            .files
            .iter()
            .map(|(path, content)| SourceFile { path: path.clone(), bytes: content.len() as u64 })
            .collect();
        Arc::new(InMemory { files: self.files, list })
    }
}

struct InMemory {
    files: BTreeMap<String, Arc<Vec<u8>>>,
    list: Vec<SourceFile>,
}

impl Source for InMemory {
    fn label(&self) -> &str {
        "memory"
    }

    fn name(&self) -> &str {
        "memory"
    }

    fn revision(&self) -> Option<&str> {
        None
    }

    fn files(&self) -> &[SourceFile] {
        &self.list
    }

    fn read_at(&self, path: &str, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let content = self.files.get(path).map(|content| content.as_slice()).unwrap_or_default();
        let piece = content.get(offset as usize..).and_then(|rest| rest.get(..buffer.len()));
        let Some(piece) = piece else {
            let wanted = buffer.len() as u64;
            return Err(FormatError::Shrunk { file: path.into(), offset, wanted });
        };
        buffer.copy_from_slice(piece);
        Ok(())
    }
}
