//! What the tests share: reference sets, checkpoints in memory, and a small writer of packs.

pub mod checkpoint;
#[path = "../../../../testing/conformance.rs"]
mod conformance_path;
pub mod memory;
pub mod packer;
pub mod synthetic;
pub mod tensors;

use std::path::PathBuf;

/// The folder of a reference set, or `None` (with a printed reason) when the sets are not there.
pub fn conformance(set: &str) -> Option<PathBuf> {
    conformance_path::conformance(&format!("conformance/{set}"))
}
