//! What can go wrong between a checkpoint and an answer.

use crate::chat::ChatError;
use w4pack_format::FormatError;

/// Result of this crate.
pub type Result<T, E = RuntimeError> = std::result::Result<T, E>;

/// A checkpoint that cannot be run or a request that cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// The checkpoint cannot be read, or a tensor is not what it must be.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// Tokenizer or template of a checkpoint cannot be used.
    #[error(transparent)]
    Chat(#[from] ChatError),
    /// A model that can be converted and not run.
    #[error("`{place}` is {what}")]
    Unsupported {
        /// The checkpoint.
        place: String,
        /// What it is, and what is run.
        what: String,
    },
    /// Tensors that the configuration demands are not there.
    #[error("`{place}` lacks {} that its config.json demands: {}", counted(names.len(), "tensor"), list(names))]
    Missing {
        /// The checkpoint.
        place: String,
        /// Every missing tensor.
        names: Vec<String>,
    },
    /// Tensors that nothing would read.
    #[error("`{place}` holds {} that no part of this model reads: {}", counted(names.len(), "tensor"), list(names))]
    Unexpected {
        /// The checkpoint.
        place: String,
        /// Every such tensor.
        names: Vec<String>,
    },
    /// A step that makes no number of its codes.
    #[error("tensor `{tensor}` in `{file}`: the scale of row {row}, group {group} is {value}")]
    Scale {
        /// The file.
        file: String,
        /// The tensor of scales.
        tensor: String,
        /// Row of the matrix.
        row: usize,
        /// Group of 32 within the row.
        group: usize,
        /// The scale: 0, NaN or infinite.
        value: f32,
    },
    /// An id that is no row of a vocabulary table.
    #[error("token {position} of the prompt has the id {id}, but {table} has {rows} rows")]
    TokenId {
        /// The id.
        id: u32,
        /// Its position in the sequence, from 0.
        position: usize,
        /// `embed_tokens` or `embed_tokens_per_layer`.
        table: &'static str,
        /// Rows of that table.
        rows: usize,
    },
    /// A prompt without tokens.
    #[error("the prompt has no tokens")]
    EmptyPrompt,
    /// More positions than the context has.
    #[error(
        "{prompt} prompt tokens and {max_tokens} to generate need {} positions, but the context has {context}",
        prompt.saturating_add(*max_tokens)
    )]
    ContextExceeded {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens that may be generated.
        max_tokens: usize,
        /// Positions there are.
        context: usize,
    },
    /// A setting outside its range.
    #[error("{name} is {value}: {expected}")]
    Setting {
        /// The setting's name.
        name: &'static str,
        /// What was given.
        value: String,
        /// What is allowed.
        expected: String,
    },
    /// The logits hold a value that no comparison can rank.
    #[error("the logit of token {id} is {value}; the weights or an activation overflowed")]
    BrokenLogits {
        /// The token.
        id: usize,
        /// NaN or infinite.
        value: f32,
    },
    /// A constraint that leaves no token to choose.
    #[error("the constraint allows no token here")]
    NothingAllowed,
    /// A constraint that cannot go on.
    #[error("the constraint on the answer failed: {problem}")]
    Constraint {
        /// What it says.
        problem: String,
    },
    /// A fault of this program that ended one answer.
    #[error("a fault inside w4pack broke this answer off; the log has more")]
    Panic,
    /// The system gave no memory.
    #[error("no memory for {what}: {bytes} bytes were asked for")]
    Memory {
        /// What it was for.
        what: String,
        /// How much.
        bytes: usize,
    },
    /// Worker threads could not be started.
    #[error("could not start {threads} worker threads: {cause}")]
    Threads {
        /// How many.
        threads: usize,
        /// The system's answer.
        cause: String,
    },
    /// A card that cannot be used.
    #[error(transparent)]
    Cuda(#[from] w4pack_kernels::cuda::CudaError),
    /// A model whose shape the CUDA kernels do not cover.
    #[error("the CUDA kernels do not run this model: {problem}")]
    CudaShape {
        /// What they do not cover.
        problem: String,
    },
    /// The card, or the limit given, holds less than the model needs.
    #[error(
        "a context of {context} needs {} MiB on the card, but {} MiB may be used{}",
        needed.div_ceil(1 << 20), limit >> 20,
        longest.map_or_else(String::new, |longest| format!("; the longest context that fits is {longest}"))
    )]
    CardMemory {
        /// Bytes needed.
        needed: usize,
        /// Bytes that may be used.
        limit: usize,
        /// Positions asked for.
        context: usize,
        /// The longest context that fits; `None`: not even one position.
        longest: Option<usize>,
        /// Whether the per-layer table is on the card.
        table_on_card: bool,
    },
    /// Tokens guessed ahead on a device that runs one after another.
    #[error("cannot guess tokens ahead: {device} runs the tokens of this model one by one")]
    NoSpeculation {
        /// What it is.
        device: String,
    },
    /// More sequences than the device was planned for.
    #[error("all {slots} slots of the card are in use")]
    NoFreeSlot {
        /// How many there are.
        slots: usize,
    },
    /// A slot that was never made, or was given back.
    #[error("slot {slot} is not in use")]
    NoSlot {
        /// Its number.
        slot: usize,
    },
    /// Contents that a slot cannot take, or a length it cannot be cut to.
    #[error("a cache slot cannot be restored: {problem}")]
    Snapshot {
        /// What does not fit.
        problem: String,
    },
    /// The folder of prompts cannot be used.
    #[error("could not use `{folder}` to keep prompts: {cause}")]
    PromptCache {
        /// The folder.
        folder: String,
        /// The system's answer.
        cause: std::io::Error,
    },
    /// The program of a comparison does not do what it is to.
    #[error("could not measure with `{program}`: {problem}")]
    Rival {
        /// Its path.
        program: String,
        /// What it did instead.
        problem: String,
    },
    /// The model of a comparison is not ours.
    #[error("cannot compare with `{file}`: {problem}")]
    RivalModel {
        /// The file.
        file: String,
        /// What differs.
        problem: String,
    },
    /// A file could not be written.
    #[error("could not write `{path}`: {cause}")]
    Write {
        /// The file.
        path: String,
        /// The system's answer.
        cause: std::io::Error,
    },
}

impl RuntimeError {
    /// The next step, when there is one.
    pub fn hint(&self) -> Option<String> {
        match self {
            RuntimeError::Format(error) => error.hint(),
            RuntimeError::Chat(error) => error.hint(),
            RuntimeError::Scale { .. } => Some(
                "the checkpoint is broken; convert it again or check it with `w4pack verify`"
                    .into(),
            ),
            RuntimeError::ContextExceeded { prompt, context, .. } if prompt < context => Some(
                format!("give --max-tokens {} or less, or a larger --context", context - prompt),
            ),
            RuntimeError::ContextExceeded { .. } => {
                Some("shorten the prompt or give a larger --context".into())
            }
            RuntimeError::CardMemory { longest: Some(longest), .. } => {
                Some(format!("give --context {longest} or less, or a larger --gpu-memory"))
            }
            RuntimeError::CardMemory { table_on_card: true, .. } => {
                Some("keep the per-layer table off the card with --ple host".into())
            }
            RuntimeError::Cuda(_) | RuntimeError::CudaShape { .. } => {
                Some("run on the CPU with --device cpu".into())
            }
            RuntimeError::Rival { .. } => {
                Some("--rival wants the path of llama.cpp's llama-bench, of 2025 or later".into())
            }
            RuntimeError::RivalModel { .. } => {
                Some("`w4pack convert MODEL --layout gguf` writes the same weights as GGUF".into())
            }
            RuntimeError::NoSpeculation { .. } => Some("leave out --speculate ngram".into()),
            RuntimeError::Memory { .. } => Some("give a smaller --context".into()),
            _ => None,
        }
    }
}

/// `a tensor`, `3 tensors`.
pub(crate) fn counted(number: usize, noun: &str) -> String {
    match number {
        1 => format!("a {noun}"),
        _ => format!("{number} {noun}s"),
    }
}

/// The first names; a checkpoint of another model would fill the screen.
fn list(names: &[String]) -> String {
    const SHOWN: usize = 8;
    let shown: Vec<String> = names.iter().take(SHOWN).map(|name| format!("`{name}`")).collect();
    match names.len().checked_sub(SHOWN) {
        Some(more) if more > 0 => format!("{} and {more} more", shown.join(", ")),
        _ => shown.join(", "),
    }
}
