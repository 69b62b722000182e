//! How far a conversion is, for whoever wants to show it.

use crate::ConvertError;

/// What the bytes are counted of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Reading the source, recovering and writing.
    Convert,
    /// Reading the source a second time: some tensors need another layout than was tried first.
    ConvertAgain,
    /// Reading the output back to hash what really lies there.
    Hash,
    /// Giving the source back.
    Restore,
}

/// Receives progress. Called between blocks of a few MiB, from one thread at a time.
pub trait Progress: Sync {
    /// `done` of `total` bytes of a stage; starts at 0 and ends at the total.
    fn report(&self, stage: Stage, done: u64, total: u64);

    /// Whether to stop, cleaning up; asked as often as progress is reported.
    fn cancelled(&self) -> bool {
        false
    }
}

/// Reports, and stops where that is wanted.
pub(crate) fn tell(
    progress: &dyn Progress,
    stage: Stage,
    done: u64,
    total: u64,
) -> Result<(), ConvertError> {
    progress.report(stage, done, total);
    if progress.cancelled() { Err(ConvertError::Cancelled) } else { Ok(()) }
}

/// Shows nothing.
pub struct Silent;

impl Progress for Silent {
    fn report(&self, _stage: Stage, _done: u64, _total: u64) {}
}
