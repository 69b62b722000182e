//! Why a conversion is refused.

use std::io;
use std::path::Path;

use w4pack_format::FormatError;

use crate::Layout;
use crate::recover::Misfit;

/// A conversion that did not happen; nothing was left under a final name.
#[derive(Debug, thiserror::Error)]
pub enum ConvertError {
    /// The source cannot be read.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The source is packed already.
    #[error("`{place}` is packed already: its config.json has a quantization_config")]
    AlreadyPacked {
        /// The source.
        place: String,
    },
    /// Towers that are to be kept are not there.
    #[error("`{place}` has no towers to keep: {problem}")]
    NoTowers {
        /// The source.
        place: String,
        /// What was found.
        problem: &'static str,
    },
    /// A model or an option that a layout cannot hold.
    #[error("layout {layout} cannot hold this: {problem}")]
    Layout {
        /// The layout asked for.
        layout: Layout,
        /// Why not.
        problem: String,
    },
    /// A tensor that the configuration demands is not there.
    #[error(
        "`{place}` has no tensor `{tensor}`, which its config.json demands with shape {shape:?}"
    )]
    MissingTensor {
        /// The source.
        place: String,
        /// Full name.
        tensor: String,
        /// The shape by the configuration's arithmetic.
        shape: Vec<usize>,
    },
    /// A tensor that belongs to no known part of the model.
    #[error(
        "`{file}` holds the tensor `{tensor}` {shape:?}, which its config.json does not account for"
    )]
    UnknownTensor {
        /// The file.
        file: String,
        /// Full name.
        tensor: String,
        /// Its shape.
        shape: Vec<usize>,
    },
    /// A tensor that is not what the configuration says.
    #[error("tensor `{tensor}` in `{file}`: {problem}")]
    Tensor {
        /// The file.
        file: String,
        /// Full name.
        tensor: String,
        /// What was found and what was expected.
        problem: String,
    },
    /// A group that has no codes.
    #[error("tensor `{tensor}`, row {row}, group {group}: {misfit}")]
    Group {
        /// Full name in the source.
        tensor: String,
        /// Row of the matrix.
        row: u64,
        /// Group within the row (columns 32·group and on).
        group: u64,
        /// What is wrong with it.
        misfit: Misfit,
    },
    /// The output would overwrite what is not ours, or the source.
    #[error("cannot write to `{out}`: {problem}")]
    Output {
        /// The output folder.
        out: String,
        /// Why not.
        problem: String,
    },
    /// The operating system refused to write.
    #[error("could not {attempt} `{path}`: {cause}")]
    Io {
        /// What was tried: "create", "write", ...
        attempt: &'static str,
        /// The file or folder.
        path: String,
        /// The system's answer.
        cause: io::Error,
    },
    /// The source gave other bytes the second time it was read.
    #[error("`{file}` in `{place}` changed while it was converted")]
    SourceChanged {
        /// The source.
        place: String,
        /// The file.
        file: String,
    },
    /// The threads could not be started.
    #[error("could not start {threads} threads: {cause}")]
    Threads {
        /// How many were asked for.
        threads: usize,
        /// The system's answer.
        cause: String,
    },
}

impl ConvertError {
    /// The next step, when there is one.
    pub fn hint(&self) -> Option<String> {
        match self {
            ConvertError::Format(error) => error.hint(),
            ConvertError::Group { misfit: Misfit::OffGrid(_), tensor, .. } => {
                Some(format!("is this a QAT release? --allow-off-grid keeps `{tensor}` in bf16"))
            }
            ConvertError::Layout { .. } => {
                Some("the other layouts hold every Gemma 4 that w4pack converts".into())
            }
            ConvertError::NoTowers { .. } => {
                Some("leave out --towers keep: the result is the text model either way".into())
            }
            ConvertError::Output { .. } => Some("give another folder with --out".into()),
            _ => None,
        }
    }

    pub(crate) fn io(attempt: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.display().to_string();
        move |cause| ConvertError::Io { attempt, path, cause }
    }
}
