//! One file a command.

pub mod audit;
pub mod bench;
pub mod cards;
pub mod chat;
pub mod convert;
pub mod demo;
pub mod doctor;
pub mod engine;
pub mod eval;
pub mod fixture;
pub mod inspect;
pub mod open;
pub mod picture;
#[cfg(feature = "hub")]
pub mod publish;
pub mod restore;
pub mod run;
pub mod serve;
pub mod verify;

use crate::message::Usage;
use anyhow::Result;

/// More threads than machines have cores only cost memory and time.
const MOST_THREADS: usize = 512;

/// The number of threads of a flag, 0 (all cores) without one.
fn threads(flag: Option<usize>) -> Result<usize> {
    flag.map_or(Ok(0), check_threads)
}

fn check_threads(threads: usize) -> Result<usize> {
    if (1..=MOST_THREADS).contains(&threads) {
        return Ok(threads);
    }
    Err(Usage::new(format!("--threads is {threads}: 1 to {MOST_THREADS}")).into())
}
