//! Why a conversion is refused.

use std::io;
use std::path::Path;

use w4pack_format::FormatError;

use crate::Layout;
use crate::recover::Misfit;

/// A conversion or a restoration that did not happen; nothing was left under a final name.
#[derive(Debug, thiserror::Error)]
pub enum ConvertError {
    /// The source cannot be read.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The source says that it is packed, and is not.
    #[error("the config.json of `{place}` has a quantization_config, but no tensor is packed")]
    NothingPacked {
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
    #[error("tensor `{tensor}` in `{file}`, row {row}, group {group}: {misfit}")]
    Group {
        /// The file.
        file: String,
        /// Full name in the source.
        tensor: String,
        /// Row of the matrix.
        row: u64,
        /// Group within the row (columns 32·group and on).
        group: u64,
        /// What is wrong with it.
        misfit: Misfit,
    },
    /// A step of a packed source that cannot go over as it is.
    #[error("tensor `{tensor}` in `{file}`, row {row}, group {group}: its step {step}: {problem}")]
    Step {
        /// The file.
        file: String,
        /// Full name in the source.
        tensor: String,
        /// Row of the matrix.
        row: u64,
        /// Group within the row.
        group: u64,
        /// The step.
        step: f32,
        /// What is wrong with it.
        problem: String,
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
    /// The disk has too little room to begin with.
    #[error(
        "`{place}` has too little room: at least {needed} bytes are needed, {free} are free on its disk"
    )]
    NoSpace {
        /// The folder to write in.
        place: String,
        /// What is known of the output: all but the sidecar and the manifest.
        needed: u64,
        /// What an ordinary user may write.
        free: u64,
    },
    /// The disk filled up on the way.
    #[error(
        "the disk of `{place}` is full: more than {needed} bytes are needed, {free} were to be had"
    )]
    DiskFull {
        /// The folder to write in.
        place: String,
        /// What was known of the output before.
        needed: u64,
        /// What was free, with what had been written already.
        free: u64,
    },
    /// Whoever asked for it does not want it any more.
    #[error("stopped before it was done; nothing was left behind")]
    Cancelled,
    /// A packed checkpoint that lacks what a restoration needs.
    #[error("`{place}` cannot be restored: {problem}")]
    NotRestorable {
        /// The packed checkpoint.
        place: String,
        /// What is missing.
        problem: String,
    },
    /// The checkpoint that is to supply what a packed one lacks is another release.
    #[error(
        "`{place}` does not have what was left out of the packed checkpoint: `{tensor}` is {found} \
         there, and was {wanted} in the source's `{file}`"
    )]
    OtherTowers {
        /// The checkpoint named with `--towers-from`.
        place: String,
        /// Full name.
        tensor: String,
        /// The source file it lay in.
        file: String,
        /// Element type and shape there, or that it is not there.
        found: String,
        /// Element type and shape in the source.
        wanted: String,
    },
    /// A tensor that does not come back as it was.
    #[error(transparent)]
    TensorDiffers(Box<TensorDifference>),
    /// A file that does not come back as it was.
    #[error("`{file}`, as it was given back, has SHA-256 {found}, the source's had {wanted}")]
    FileDiffers {
        /// The source file.
        file: String,
        /// Hash of what came back.
        found: String,
        /// Hash in the manifest.
        wanted: String,
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

/// A tensor that does not come back as it was.
#[derive(Debug, thiserror::Error)]
#[error(
    "tensor `{tensor}` of `{file}`, as `{place}` gives it, has BLAKE3 {found}, the source's had {wanted}"
)]
pub struct TensorDifference {
    /// The checkpoint that its bytes come from.
    pub place: String,
    /// Full name in the source.
    pub tensor: String,
    /// The source file.
    pub file: String,
    /// Hash of what came back.
    pub found: String,
    /// Hash in the manifest.
    pub wanted: String,
    /// Whether it was supplied beside the packed checkpoint.
    pub supplied: bool,
}

impl ConvertError {
    /// The next step, when there is one.
    pub fn hint(&self) -> Option<String> {
        match self {
            ConvertError::Format(error) => error.hint(),
            ConvertError::Group { misfit: Misfit::OffGrid(_), tensor, .. } => {
                Some(format!("is this a QAT release? --allow-off-grid keeps `{tensor}` in bf16"))
            }
            ConvertError::NoSpace { .. } | ConvertError::DiskFull { .. } => {
                Some("free some space, or give a folder on another disk with --out".into())
            }
            ConvertError::OtherTowers { .. } => {
                Some("--towers-from must name the very release that was converted".into())
            }
            ConvertError::TensorDiffers(difference) if difference.supplied => {
                Some("--towers-from must name the very release that was converted".into())
            }
            ConvertError::TensorDiffers(_) | ConvertError::FileDiffers { .. } => {
                Some("the packed checkpoint is damaged; `w4pack verify` says where".into())
            }
            ConvertError::Layout { layout: Layout::Gguf, .. } => {
                Some("`--layout emb4` holds it, for other readers".into())
            }
            ConvertError::Layout { .. } => Some("`--layout emb4` leaves it packed".into()),
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
