//! One file a command.

pub mod convert;
pub mod demo;
pub mod eval;
pub mod fixture;
pub mod run;
pub mod verify;

/// Opens a source for `threads`: 0 means all cores, which is what no flag means.
fn threads(flag: Option<usize>) -> anyhow::Result<usize> {
    match flag {
        Some(0) => Err(crate::message::Usage::new("--threads is 0: at least 1").into()),
        Some(threads) => Ok(threads),
        None => Ok(0),
    }
}
