//! A source of byte ranges in memory.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use w4pack_format::source::{FolderSource, Source, SourceFile};
use w4pack_format::{FormatError, Result};

/// Files by path.
pub type Files = BTreeMap<String, Vec<u8>>;

/// Files in memory, seen as a source.
pub struct MemorySource {
    files: Files,
    list: Vec<SourceFile>,
    /// Reads of this file fail from this offset on, as if it had been cut after opening.
    pub cut: Option<(String, u64)>,
    /// The commit, if it has one.
    pub revision: Option<String>,
}

impl MemorySource {
    pub fn new(files: Files) -> MemorySource {
        let list = files
            .iter()
            .map(|(path, content)| SourceFile { path: path.clone(), bytes: content.len() as u64 })
            .collect();
        MemorySource { files, list, cut: None, revision: None }
    }

    pub fn shared(files: Files) -> Arc<dyn Source> {
        Arc::new(MemorySource::new(files))
    }
}

impl Source for MemorySource {
    fn label(&self) -> &str {
        "memory"
    }

    fn name(&self) -> &str {
        "memory"
    }

    fn revision(&self) -> Option<&str> {
        self.revision.as_deref()
    }

    fn files(&self) -> &[SourceFile] {
        &self.list
    }

    fn read_at(&self, path: &str, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let end = offset + buffer.len() as u64;
        let content = self.files.get(path).map(Vec::as_slice).unwrap_or_default();
        let cut = self.cut.as_ref().filter(|(cut, at)| cut == path && end > *at);
        if cut.is_some() || end > content.len() as u64 {
            let wanted = buffer.len() as u64;
            return Err(FormatError::Shrunk { file: path.into(), offset, wanted });
        }
        buffer.copy_from_slice(&content[offset as usize..end as usize]);
        Ok(())
    }
}

/// All files of a folder, read whole.
pub fn folder(path: &Path) -> Files {
    let source = FolderSource::open(path).unwrap();
    let read = |file: &SourceFile| (file.path.clone(), source.read_file(&file.path).unwrap());
    source.files().iter().map(read).collect()
}
