//! From Google's bf16 to packed words, without losing anything.
//!
//! The data's way: [`plan`] decides from headers and configuration what becomes of every tensor and
//! file; [`convert`] streams the source once (twice if tensors need another layout than was tried
//! first), [`recover`] finds codes and steps of each group exactly, and [`pack`] writes words,
//! scales, config, sidecar and manifest and puts the folder in place when it is complete.

mod convert;
mod error;
mod llama_cpp;
mod options;
mod pack;
mod plan;
mod progress;
pub mod recover;
mod report;

pub use convert::convert;
pub use error::ConvertError;
pub use llama_cpp::GGUF_FILE;
pub use options::{Layout, Options, Towers};
pub use plan::{
    Companion, CompanionFate, Plan, PlannedShard, PlannedTensor, Reason, TowerTensor, Treatment,
    plan,
};
pub use progress::{Progress, Silent, Stage};
pub use report::{FellBack, KeptTensor, LeftOut, NotCopied, PackedTensor, Report, Tally};
