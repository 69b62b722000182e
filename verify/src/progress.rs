//! How far the proof has come, for whoever shows it.

/// Hears about bytes as they are checked, from any thread.
pub trait Progress: Sync {
    /// A stage begins that will read `bytes` bytes.
    fn begin(&self, stage: &str, bytes: u64);
    /// `bytes` more of them are done.
    fn advance(&self, bytes: u64);
}

/// Nobody listens.
impl Progress for () {
    fn begin(&self, _stage: &str, _bytes: u64) {}
    fn advance(&self, _bytes: u64) {}
}
