//! Holding packed groups against their source values, block by block.

mod block;
mod tally;

pub use block::{Judge, JudgedBlock};
pub use tally::{LISTED, Tally};
