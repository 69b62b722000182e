//! A plain read of the weights: the yardstick of every speed on the CPU.

use super::Pool;
use crate::model::Weights;
use std::hint::black_box;
use std::time::Instant;

/// Bytes that a thread reads before it looks for the next piece.
const PIECE: usize = 4 << 20;
/// Less is read again and again: what lies in a cache would not be a read of memory, and a short
/// read says little.
const LEAST: usize = 256 << 20;

/// Bytes a second with which the threads of `pool` read all matrices but the per-layer table.
///
/// A small model lies in the processor's caches; its figure is theirs.
pub(super) fn bandwidth(pool: &Pool, weights: &Weights) -> f64 {
    let mut pieces = Vec::new();
    for matrix in weights.matrices() {
        pieces.extend(matrix.memory().into_iter().flat_map(|bytes| bytes.chunks(PIECE)));
    }
    let bytes: usize = pieces.iter().map(|piece| piece.len()).sum();
    let repetitions = LEAST.div_ceil(bytes.max(1));
    let begin = Instant::now();
    for _ in 0..repetitions {
        pool.run(pieces.len(), |piece| {
            black_box(sum(pieces[piece]));
        });
    }
    (repetitions * bytes) as f64 / begin.elapsed().as_secs_f64()
}

/// The sum of the 64-bit words: eight at a time, which is more than memory delivers.
fn sum(bytes: &[u8]) -> u64 {
    let mut sums = [0u64; 8];
    for block in bytes.as_chunks::<64>().0 {
        for (sum, word) in sums.iter_mut().zip(block.as_chunks::<8>().0) {
            *sum = sum.wrapping_add(u64::from_ne_bytes(*word));
        }
    }
    sums.into_iter().fold(0, u64::wrapping_add)
}
