//! Any bytes as the index of a checkpoint with one small shard: no name leads outside.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::sync::Arc;
use w4pack_format::checkpoint::{Checkpoint, INDEX_FILE};
use w4pack_format::source::{Source, SourceFile};
use w4pack_format::{FormatError, Result};

const SHARD: &str = "model-00001-of-00001.safetensors";
const JSON: &str = r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}"#;

struct Folder {
    files: Vec<SourceFile>,
    index: Vec<u8>,
    shard: Vec<u8>,
}

impl Source for Folder {
    fn label(&self) -> &str {
        "fuzz"
    }
    fn name(&self) -> &str {
        "fuzz"
    }
    fn revision(&self) -> Option<&str> {
        None
    }
    fn files(&self) -> &[SourceFile] {
        &self.files
    }
    fn read_at(&self, path: &str, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let content = match path {
            INDEX_FILE => &self.index,
            SHARD => &self.shard,
            _ => panic!("`{path}` was asked for, which is not there"),
        };
        let piece = content.get(offset as usize..).and_then(|rest| rest.get(..buffer.len()));
        let wanted = buffer.len() as u64;
        let shrunk = || FormatError::Shrunk { file: path.into(), offset, wanted };
        buffer.copy_from_slice(piece.ok_or_else(shrunk)?);
        Ok(())
    }
}

fuzz_target!(|data: &[u8]| {
    let mut shard = (JSON.len() as u64).to_le_bytes().to_vec();
    shard.extend_from_slice(JSON.as_bytes());
    shard.extend_from_slice(&[0; 4]);
    let entry = |path: &str, bytes: usize| SourceFile { path: path.into(), bytes: bytes as u64 };
    let mut files = vec![entry(INDEX_FILE, data.len()), entry(SHARD, shard.len())];
    files.sort();
    let folder = Folder { files, index: data.to_vec(), shard };
    if let Ok(checkpoint) = Checkpoint::open(Arc::new(folder)) {
        assert_eq!(checkpoint.names().collect::<Vec<_>>(), ["a"]);
    }
});
