//! A checkpoint that tests can change: tensors of one file, and the files beside it.

use std::sync::Arc;

use serde_json::Value;
use w4pack_format::checkpoint::Checkpoint;
use w4pack_format::digest::{blake3, sha256};
use w4pack_format::manifest::{
    Fate, FileRecord, HeaderRecord, MANIFEST_FILE, Manifest, Options, SCHEMA, SourceRecord,
    TensorRecord, TextRecord,
};
use w4pack_format::names::is_tower;
use w4pack_format::source::Source;

use super::memory::{Files, MemorySource};
use super::tensors::{Tensors, to_bytes};

/// A checkpoint in parts.
#[derive(Clone, Default)]
pub struct Parts {
    /// Tensors of `model.safetensors`.
    pub tensors: Tensors,
    /// All other files.
    pub files: Files,
}

impl Parts {
    /// The files, weights included: those of `tensors`, unless `files` holds the file itself.
    pub fn to_files(&self) -> Files {
        let mut files = self.files.clone();
        files.entry("model.safetensors".into()).or_insert_with(|| to_bytes(&self.tensors));
        files
    }

    /// The files as a source.
    pub fn source(&self) -> Arc<dyn Source> {
        MemorySource::shared(self.to_files())
    }

    /// Changes config.json.
    pub fn edit_config(&mut self, edit: impl FnOnce(&mut Value)) {
        let mut config: Value = serde_json::from_slice(&self.files["config.json"]).unwrap();
        edit(&mut config);
        self.files.insert("config.json".into(), config.to_string().into_bytes());
    }

    /// The bytes of a tensor.
    pub fn bytes_mut(&mut self, tensor: &str) -> &mut Vec<u8> {
        &mut self.tensors.get_mut(tensor).unwrap_or_else(|| panic!("no {tensor}")).bytes
    }

    /// Adds a manifest that is right in every word.
    pub fn with_manifest(mut self, source: &Arc<dyn Source>, scale_dtype: &str) -> Parts {
        let manifest = manifest(&self, source, scale_dtype);
        self.files.insert(MANIFEST_FILE.into(), manifest.to_bytes());
        self
    }
}

fn records(source: &dyn Source) -> Vec<FileRecord> {
    let record = |file: &w4pack_format::source::SourceFile| FileRecord {
        path: file.path.clone(),
        bytes: file.bytes,
        sha256: sha256(&source.read_file(&file.path).unwrap()),
    };
    let own = |file: &&w4pack_format::source::SourceFile| file.path != MANIFEST_FILE;
    source.files().iter().filter(own).map(record).collect()
}

/// The manifest that an honest writer, or an attacker who recomputes hashes, would write.
pub fn manifest(parts: &Parts, source: &Arc<dyn Source>, scale_dtype: &str) -> Manifest {
    let opened = Checkpoint::open(source.clone()).unwrap();
    let mut tensors = Vec::new();
    for shard in opened.shards() {
        for info in &shard.header.tensors {
            let text = info.name.replace("model.language_model.", "model.");
            let module = text.strip_suffix(".weight").unwrap_or(&text);
            let fate = if parts.tensors.contains_key(&format!("{module}.weight_packed")) {
                Fate::Packed
            } else if is_tower(&info.name) || !parts.tensors.contains_key(&text) {
                Fate::LeftOut
            } else {
                Fate::Copied
            };
            let bytes = opened.read(&info.name).unwrap();
            tensors.push(TensorRecord {
                name: info.name.clone(),
                file: shard.path.clone(),
                bytes: info.bytes(),
                blake3: blake3(&bytes),
                sha256: (fate != Fate::Packed).then(|| sha256(&bytes)),
                fate,
            });
        }
    }
    let header = |shard: &w4pack_format::checkpoint::Shard| HeaderRecord {
        path: shard.path.clone(),
        text: String::from_utf8(shard.header.text.clone()).unwrap(),
    };
    Manifest {
        schema: SCHEMA.into(),
        w4pack_version: "0.1.0".into(),
        created: "2026-01-01T00:00:00Z".into(),
        options: Options {
            layout: "emb4".into(),
            scale_dtype: scale_dtype.into(),
            towers: "drop".into(),
            allow_off_grid: false,
        },
        source: SourceRecord {
            name: source.name().into(),
            revision: source.revision().map(str::to_string),
            files: records(&**source),
            headers: opened.shards().iter().map(header).collect(),
            texts: ["config.json", "model.safetensors.index.json"]
                .into_iter()
                .filter(|path| source.size(path).is_some())
                .map(|path| TextRecord {
                    path: path.into(),
                    text: String::from_utf8(source.read_file(path).unwrap()).unwrap(),
                })
                .collect(),
            tensors,
        },
        files: records(&*parts.source()),
    }
}
