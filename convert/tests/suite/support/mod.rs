//! What the tests of this crate share.

pub mod oracle;
pub mod restore;
pub mod small;

#[path = "../../../../testing/conformance.rs"]
mod conformance_path;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use w4pack_convert::{ConvertError, Options, Report, Silent, convert};
use w4pack_format::checkpoint::Checkpoint;
use w4pack_format::scale::ScaleDtype;
use w4pack_format::source::FolderSource;

/// A reference set; `None`, with a line that says so, if the sets are not at hand.
pub fn reference(name: &str) -> Option<PathBuf> {
    conformance_path::conformance(&format!("conformance/{name}"))
}

/// Steps in `scale_dtype`, two threads, nothing off the grid.
pub fn options(scale_dtype: ScaleDtype) -> Options {
    Options { scale_dtype, threads: 2, ..Options::default() }
}

/// Converts a folder.
pub fn run(source: &Path, out: &Path, options: &Options) -> Result<Report, ConvertError> {
    convert(Arc::new(FolderSource::open(source)?), out, options, &Silent)
}

/// Opens a folder that must be a checkpoint.
pub fn open(folder: &Path) -> Checkpoint {
    Checkpoint::open_folder(folder).unwrap()
}

/// Copies the files of a folder.
pub fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// File names of a folder, sorted; empty if it does not exist.
pub fn names_in(folder: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// The bf16 bit patterns of little-endian bytes.
pub fn bf16_bits(bytes: &[u8]) -> Vec<u16> {
    bytes.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]])).collect()
}
