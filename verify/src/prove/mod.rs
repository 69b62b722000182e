//! Holding every packed group against its source values: streamed in blocks, on all cores.

mod block;
mod tally;

use rayon::prelude::*;
use w4pack_format::Result;
use w4pack_format::checkpoint::Checkpoint;
use w4pack_format::group::GROUP;

use crate::pair::PackedPair;
use crate::progress::Progress;
use crate::sidecar::ModuleSidecar;
use block::Block;
pub use tally::{LISTED, Tally};

/// Groups in a block: 1 MiB of source values.
const BLOCK: u64 = 16_384;

/// Proves one packed module; `sidecar` is what the sidecar says about it, if there is a sidecar.
///
/// Blocks are judged in parallel, a few at a time, and gathered in their order, so that the answer
/// does not depend on the number of threads and memory not on the size of the module.
pub fn prove(
    pair: &PackedPair,
    result: &Checkpoint,
    source: &Checkpoint,
    mut sidecar: Option<ModuleSidecar>,
    progress: &dyn Progress,
) -> Result<Tally> {
    let groups = (pair.shape[0] * pair.shape[1] / GROUP) as u64;
    let file = result
        .tensor(&format!("{}.weight_packed", pair.module))
        .map_or_else(String::new, |found| found.shard.path.clone());
    let source_file =
        source.tensor(&pair.source).map_or_else(String::new, |found| found.shard.path.clone());
    let mut tally = Tally::new(pair, file, source_file);
    let window = BLOCK * 2 * rayon::current_num_threads() as u64;
    for first in (0..groups).step_by(window as usize) {
        let end = groups.min(first + window);
        let starts: Vec<u64> = (first..end).step_by(BLOCK as usize).collect();
        let blocks: Vec<Block> = starts
            .into_par_iter()
            .map(|start| {
                let count = BLOCK.min(end - start);
                let block = Block::judge(pair, result, source, start, count)?;
                progress.advance(block.bytes_read);
                Ok(block)
            })
            .collect::<Result<_>>()?;
        for block in blocks {
            tally.take(block, sidecar.as_mut());
        }
    }
    if let Some(sidecar) = sidecar {
        tally.finish_sidecar(sidecar);
    }
    Ok(tally)
}
