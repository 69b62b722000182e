//! A judging thread: one block of the source against what the result has in its place.

use std::sync::Arc;

use w4pack_format::Result;
use w4pack_format::checkpoint::Checkpoint;

use super::Task;
use super::tape::Block;
use crate::arithmetic::recover::{GROUP, Recovery, recover};
use crate::prove::{Judge, JudgedBlock};
use crate::ranges::Differences;

/// A block and what was found in it. The block's buffer stays in use until this is gathered.
pub struct Done {
    /// The block.
    pub block: Arc<Block>,
    /// What was found.
    pub found: Found,
}

/// What a block turned out to be.
pub enum Found {
    /// Groups.
    Groups(Box<JudgedBlock>),
    /// Bytes that should be the same.
    Copy {
        /// Where they are not.
        differences: Differences,
        /// How many of the result were read.
        bytes: u64,
        /// Whether a group off the grid is among them, where that matters.
        is_off_grid: bool,
    },
    /// Nothing to hold it against.
    Nothing,
}

impl Found {
    /// Bytes of the result that were read for it.
    pub fn result_bytes(&self) -> u64 {
        match self {
            Found::Groups(block) => block.result_bytes,
            Found::Copy { bytes, .. } => *bytes,
            Found::Nothing => 0,
        }
    }
}

/// What a judging thread keeps from block to block.
pub struct Worker<'a> {
    result: &'a Checkpoint,
    judge: Judge<'a>,
    theirs: Vec<u8>,
}

impl<'a> Worker<'a> {
    /// `with_evidence`: whether a sidecar is to be held against the groups.
    pub fn new(result: &'a Checkpoint, with_evidence: bool) -> Worker<'a> {
        Worker { result, judge: Judge::new(result, with_evidence), theirs: Vec::new() }
    }

    /// Does what the task says.
    pub fn judge(&mut self, task: Task<'_>, block: &Block) -> Result<Found> {
        match task {
            Task::Prove(pair) => {
                let judged = self.judge.block(pair, block.offset, block.bytes())?;
                Ok(Found::Groups(Box::new(judged)))
            }
            Task::Copy(pair) => {
                self.theirs.resize(block.bytes().len(), 0);
                self.result.read_range(&pair.result, block.offset, &mut self.theirs)?;
                let mut differences = Differences::default();
                differences.take(block.offset, &self.theirs, block.bytes());
                let is_off_grid = pair.is_kept && has_group_off_grid(block.bytes());
                Ok(Found::Copy { differences, bytes: self.theirs.len() as u64, is_off_grid })
            }
            Task::LeftOut | Task::Alone => Ok(Found::Nothing),
        }
    }
}

/// Whether some group of bf16 values is on no grid.
fn has_group_off_grid(bytes: &[u8]) -> bool {
    bytes.as_chunks::<{ 2 * GROUP }>().0.iter().any(|bytes| {
        let values: [u16; GROUP] =
            std::array::from_fn(|i| u16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]));
        matches!(recover(&values), Recovery::OffGrid | Recovery::NotFinite { .. })
    })
}
