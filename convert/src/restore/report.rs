//! What a restoration gave back, and what not.

use serde::Serialize;
use w4pack_format::manifest::FileRecord;

/// The whole report.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The packed checkpoint, as the user named it.
    pub packed: String,
    /// The output folder.
    pub out: String,
    /// The source's name: `owner/name` on the Hub.
    pub source: String,
    /// Its commit, where it had one.
    pub revision: Option<String>,
    /// Whether every weight file of the source is there, byte for byte.
    pub complete: bool,
    /// Tensors given back, each with the BLAKE3 that it had in the source.
    pub tensors: usize,
    /// How many of them came from packed words.
    pub tensors_unpacked: usize,
    /// The checkpoint that was named to supply what the packed one lacks.
    pub towers_from: Option<String>,
    /// How many of them were read from it.
    pub tensors_from_towers: usize,
    /// Files with the SHA-256 that they had in the source.
    pub identical_files: Vec<FileRecord>,
    /// Source tensors whose bytes are nowhere.
    pub missing: Vec<Missing>,
    /// Files of the source beside its weights that are not given back.
    pub not_restored: Vec<String>,
    /// Bytes written.
    pub bytes: u64,
    /// Seconds from the first read to the final name.
    pub seconds: f64,
    /// Bytes written (in units of 10^9) by second.
    pub gigabytes_per_second: f64,
    /// The most bytes of memory that the process held at a time, program text included.
    pub peak_memory_bytes: Option<u64>,
}

/// A source tensor that is not given back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Missing {
    /// The source file it lay in.
    pub file: String,
    /// Full name.
    pub tensor: String,
    /// Size.
    pub bytes: u64,
}
