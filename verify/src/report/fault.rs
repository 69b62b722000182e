//! Faults: what is wrong, and exactly where.

use serde::Serialize;
use w4pack_format::gguf::GgufFault;
use w4pack_format::{FormatError, HeaderFault};

/// Something that is not as the source demands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fault {
    /// What kind of fault.
    pub class: FaultClass,
    /// The file, below the result (or below the source, as `detail` then says).
    pub file: String,
    /// The tensor.
    pub tensor: Option<String>,
    /// Its row.
    pub row: Option<u64>,
    /// The group inside the row.
    pub group: Option<u64>,
    /// What was expected and what was found.
    pub detail: String,
}

impl Fault {
    /// A fault of a file.
    pub fn of_file(class: FaultClass, file: &str, detail: impl Into<String>) -> Fault {
        let detail = detail.into();
        Fault { class, file: file.into(), tensor: None, row: None, group: None, detail }
    }

    /// A fault of a tensor.
    pub fn of_tensor(
        class: FaultClass,
        file: &str,
        tensor: &str,
        detail: impl Into<String>,
    ) -> Fault {
        Fault { tensor: Some(tensor.into()), ..Fault::of_file(class, file, detail) }
    }

    /// The same fault at a group of a row.
    pub fn at(self, row: u64, group: u64) -> Fault {
        Fault { row: Some(row), group: Some(group), ..self }
    }
}

/// Kinds of faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FaultClass {
    /// Stored codes are not the recovered ones.
    Code,
    /// A step is unusable or not the canonical one.
    Scale,
    /// A copied tensor differs.
    TensorBytes,
    /// A tensor is not there.
    TensorMissing,
    /// A tensor that nothing demands.
    TensorExtra,
    /// A header is broken, or says another dtype or shape than it must.
    Header,
    /// A file is shorter or longer than its header says.
    Size,
    /// config.json is not what the layout makes of the source's.
    Config,
    /// A companion file differs, is missing, or is nobody's.
    CompanionFile,
    /// The index does not fit the files.
    Index,
    /// The manifest does not fit the result or the source.
    Manifest,
    /// The sidecar does not give back the source's values.
    Sidecar,
    /// The head is not what the tie flag says, or not the table's copy.
    Tie,
    /// Source values that are on no 4-bit grid.
    OffGrid,
    /// A file changed while it was read.
    SourceChanged,
}

impl FaultClass {
    /// As reports spell it.
    pub fn name(self) -> String {
        let spelled = serde_json::to_value(self).ok();
        spelled.as_ref().and_then(|class| class.as_str()).unwrap_or_default().to_string()
    }
}

/// The class that an unreadable file's error belongs to.
pub fn class_of(error: &FormatError) -> FaultClass {
    match error {
        FormatError::Shrunk { .. } | FormatError::Io { .. } => FaultClass::SourceChanged,
        FormatError::Header { fault, .. } => match fault {
            HeaderFault::TooShort { .. }
            | HeaderFault::PastEnd { .. }
            | HeaderFault::Truncated { .. }
            | HeaderFault::Trailing { .. } => FaultClass::Size,
            _ => FaultClass::Header,
        },
        FormatError::Index { .. } | FormatError::UnsafePath { .. } => FaultClass::Index,
        FormatError::NoCheckpoint { .. } | FormatError::MissingTensor { .. } => {
            FaultClass::TensorMissing
        }
        FormatError::Field { .. } | FormatError::Json { .. } => FaultClass::Config,
        FormatError::Gguf { fault, .. } => match fault {
            GgufFault::Ends { .. }
            | GgufFault::Count { .. }
            | GgufFault::Truncated { .. }
            | GgufFault::Trailing { .. } => FaultClass::Size,
            _ => FaultClass::Header,
        },
        FormatError::Tensor { .. } => FaultClass::Header,
    }
}
