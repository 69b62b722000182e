//! What can be wrong with a checkpoint, each fault under its own name.

use crate::gguf::GgufFault;
use std::io;

/// Result of this crate.
pub type Result<T, E = FormatError> = std::result::Result<T, E>;

/// A checkpoint that cannot be read, with the file (and tensor or field) at fault.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// The operating system refused.
    #[error("could not {attempt} `{path}`: {cause}")]
    Io {
        /// What was tried: "open", "read", ...
        attempt: &'static str,
        /// The file or folder.
        path: String,
        /// The system's answer.
        cause: io::Error,
    },
    /// A file ended before the bytes that its header or its size at opening promised.
    #[error(
        "`{file}` ended early: {wanted} bytes wanted at offset {offset}; the file was cut or changed while it was read"
    )]
    Shrunk {
        /// The file.
        file: String,
        /// Where the read began.
        offset: u64,
        /// How many bytes were asked for.
        wanted: u64,
    },
    /// A safetensors header that cannot be trusted.
    #[error("`{file}` is not a sound safetensors file: {fault}")]
    Header {
        /// The file.
        file: String,
        /// What is wrong with it.
        fault: HeaderFault,
    },
    /// A GGUF file that cannot be trusted.
    #[error("`{file}` is not a sound GGUF file: {fault}")]
    Gguf {
        /// The file.
        file: String,
        /// What is wrong with it.
        fault: GgufFault,
    },
    /// `model.safetensors.index.json` does not fit the files beside it.
    #[error("`{file}` does not describe this checkpoint: {problem}")]
    Index {
        /// The index file.
        file: String,
        /// What is wrong with it, entry named.
        problem: String,
    },
    /// A file name that leads out of the checkpoint's folder.
    #[error("refusing the file name `{path}` in `{named_in}`: {problem}")]
    UnsafePath {
        /// The name as written.
        path: String,
        /// The file or folder that names it.
        named_in: String,
        /// Why it is refused.
        problem: String,
    },
    /// The folder holds no checkpoint.
    #[error("`{place}` holds no checkpoint: {problem}")]
    NoCheckpoint {
        /// The folder.
        place: String,
        /// What was looked for.
        problem: String,
    },
    /// A JSON file with a wrong or missing field.
    #[error("`{file}`: field `{field}`: {problem}")]
    Field {
        /// The file.
        file: String,
        /// Path of the field, dots between levels.
        field: String,
        /// What was found and what was expected.
        problem: String,
    },
    /// A file that is not JSON at all.
    #[error("`{file}` is not JSON: {problem}")]
    Json {
        /// The file.
        file: String,
        /// The parser's message, with line and column.
        problem: String,
    },
    /// A tensor that is asked for and not there.
    #[error("`{place}` has no tensor `{tensor}`")]
    MissingTensor {
        /// The checkpoint.
        place: String,
        /// The tensor.
        tensor: String,
    },
    /// A tensor that is there but is not what it must be.
    #[error("tensor `{tensor}` in `{file}`: {problem}")]
    Tensor {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// What was found and what was expected.
        problem: String,
    },
}

impl FormatError {
    /// The next step, when there is one.
    pub fn hint(&self) -> Option<String> {
        match self {
            FormatError::Shrunk { .. } => {
                Some("compare the file's size with the publisher's and download it again".into())
            }
            FormatError::Header { fault: HeaderFault::Truncated { .. }, .. }
            | FormatError::Gguf {
                fault: GgufFault::Truncated { .. } | GgufFault::Ends { .. },
                ..
            } => {
                Some("the download is incomplete; fetch the file again".into())
            }
            FormatError::NoCheckpoint { .. } => Some(
                "give a folder that holds config.json and model.safetensors (or its index and shards)"
                    .into(),
            ),
            _ => None,
        }
    }
}

/// The ways in which a safetensors header can be wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HeaderFault {
    /// Shorter than the eight bytes of the length field.
    #[error("{bytes} bytes are too few for a header (8 bytes of length come first)")]
    TooShort {
        /// Size of the file.
        bytes: u64,
    },
    /// A header of no bytes.
    #[error("its header length is 0")]
    Empty,
    /// A header longer than any honest one.
    #[error("its header length {length} exceeds the limit of {limit} bytes")]
    TooLong {
        /// As read from the file.
        length: u64,
        /// [`crate::header::HEADER_LIMIT`].
        limit: u64,
    },
    /// The header runs past the end of the file.
    #[error("its header needs {needed} bytes, the file has {bytes}")]
    PastEnd {
        /// Length field plus header.
        needed: u64,
        /// Size of the file.
        bytes: u64,
    },
    /// The header is not text.
    #[error("its header is not UTF-8 (first bad byte at {offset})")]
    NotUtf8 {
        /// Offset inside the header.
        offset: usize,
    },
    /// The header is text but not the JSON object it must be.
    #[error("its header is not valid JSON: {problem}")]
    NotJson {
        /// The parser's message.
        problem: String,
    },
    /// One name twice.
    #[error("the name `{name}` appears twice in its header")]
    Duplicate {
        /// The tensor.
        name: String,
    },
    /// `__metadata__` is not a map of strings.
    #[error("`__metadata__` is not a map from strings to strings: {problem}")]
    Metadata {
        /// What was found.
        problem: String,
    },
    /// An entry with missing or unknown keys, or a value of the wrong kind.
    #[error("tensor `{tensor}`: {problem}")]
    Entry {
        /// The tensor.
        tensor: String,
        /// What was found.
        problem: String,
    },
    /// An element type this crate does not know.
    #[error("tensor `{tensor}` has the unknown dtype `{dtype}`")]
    Dtype {
        /// The tensor.
        tensor: String,
        /// As written.
        dtype: String,
    },
    /// `data_offsets` is not a pair.
    #[error("tensor `{tensor}` has {count} data_offsets instead of 2")]
    OffsetCount {
        /// The tensor.
        tensor: String,
        /// How many there are.
        count: usize,
    },
    /// The end lies before the beginning.
    #[error("tensor `{tensor}` ends at {end}, before its beginning {begin}")]
    Inverted {
        /// The tensor.
        tensor: String,
        /// First byte.
        begin: u64,
        /// One past the last byte.
        end: u64,
    },
    /// The element count does not fit 64 bits.
    #[error("tensor `{tensor}`: its shape {shape:?} overflows 64 bits")]
    Overflow {
        /// The tensor.
        tensor: String,
        /// As written.
        shape: Vec<usize>,
    },
    /// Offsets that disagree with dtype and shape.
    #[error(
        "tensor `{tensor}`: {dtype} {shape:?} needs {needed} bytes, its data_offsets span {spanned}"
    )]
    Size {
        /// The tensor.
        tensor: String,
        /// Element type.
        dtype: &'static str,
        /// Shape.
        shape: Vec<usize>,
        /// Bytes by dtype and shape.
        needed: u64,
        /// Bytes by offsets.
        spanned: u64,
    },
    /// Two tensors share bytes.
    #[error("tensors `{first}` and `{second}` overlap")]
    Overlap {
        /// The one that begins first.
        first: String,
        /// The one that begins before the first one ends.
        second: String,
    },
    /// Bytes that belong to no tensor.
    #[error("{bytes} bytes before tensor `{tensor}` belong to no tensor")]
    Gap {
        /// The tensor behind the hole.
        tensor: String,
        /// Size of the hole.
        bytes: u64,
    },
    /// The file is shorter than its header says.
    #[error(
        "truncated: the header describes {needed} bytes, the file has {bytes} (tensor `{tensor}` is cut)"
    )]
    Truncated {
        /// The first tensor that does not fit.
        tensor: String,
        /// Bytes the header describes, header included.
        needed: u64,
        /// Size of the file.
        bytes: u64,
    },
    /// The file is longer than its header says.
    #[error("{bytes} bytes follow behind the last tensor")]
    Trailing {
        /// How many.
        bytes: u64,
    },
}
