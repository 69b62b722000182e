//! The reference sets, for tests of every crate (`#[path = "../../testing/conformance.rs"]`).
//!
//! `W4PACK_CONFORMANCE` is the absolute path of the folder that holds `conformance/` and `data/`.
//! Where it is not set, tests that need the sets say so and pass; where it is set, a missing file
//! is a failure.

use std::path::{Path, PathBuf};

/// A path below the reference sets, or `None` with a line that says what was skipped.
pub fn conformance(relative: &str) -> Option<PathBuf> {
    let Some(root) = std::env::var_os("W4PACK_CONFORMANCE") else {
        let test = std::thread::current().name().unwrap_or("a test").to_string();
        eprintln!("skipped: {test}: W4PACK_CONFORMANCE is not set, `{relative}` is not at hand");
        return None;
    };
    let path = Path::new(&root).join(relative);
    assert!(path.exists(), "W4PACK_CONFORMANCE is set, but `{}` is missing", path.display());
    Some(path)
}
