//! From Google's bf16 to packed words, without losing anything.
//!
//! The data's way: [`plan`] decides from headers and configuration what becomes of every tensor and
//! file; [`convert`] streams the source once (twice if tensors need another layout than was tried
//! first), [`recover`] finds codes and steps of each group exactly, and [`pack`] writes words,
//! scales, config, sidecar and manifest and puts the folder in place when it is complete.
//! [`restore`](mod@restore) goes the whole way back.

mod blocks;
mod convert;
mod error;
mod llama_cpp;
mod memory;
mod options;
mod pack;
mod plan;
mod progress;
pub mod recover;
mod report;
pub mod restore;
mod staging;

pub use convert::convert;
pub use error::{ConvertError, TensorDifference};
pub use llama_cpp::GGUF_FILE;
pub use options::{Layout, Options, Towers};
pub use plan::{
    Companion, CompanionFate, FileForecast, Forecast, Part, Plan, PlannedShard, PlannedTensor,
    Probe, Reason, TensorForecast, TowerTensor, Treatment, forecast, plan,
};
pub use progress::{Progress, Silent, Stage};
pub use report::{
    ByDtype, ByReader, FellBack, KeptTensor, LeftOut, NotCopied, PackedTensor, Report, Tally,
};
pub use restore::restore;

/// `threads` threads to work on, 0 for as many as the machine has.
fn thread_pool(threads: usize) -> Result<rayon::ThreadPool, ConvertError> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
    pool.map_err(|cause| ConvertError::Threads { threads, cause: cause.to_string() })
}
