//! A plain read of the weights: the yardstick of every speed on the CPU.

use super::Pool;
use crate::model::Weights;
use std::hint::black_box;
use std::time::Instant;
use w4pack_kernels::cpu::Kernels;

/// Bytes that a thread reads before it looks for the next piece.
const PIECE: usize = 4 << 20;
/// Less is read again and again: what lies in a cache would not be a read of memory, and a short
/// read says little.
const LEAST: usize = 256 << 20;

/// Bytes a second with which the threads of `pool` read all matrices but the per-layer table: by narrow or by
/// wide loads, whichever is faster.
///
/// A small model lies in the processor's caches; its figure is theirs.
pub(super) fn bandwidth(pool: &Pool, weights: &Weights) -> f64 {
    let mut pieces = Vec::new();
    for matrix in weights.matrices() {
        pieces.extend(matrix.memory().into_iter().flat_map(|bytes| bytes.chunks(PIECE)));
    }
    let bytes: usize = pieces.iter().map(|piece| piece.len()).sum();
    let repetitions = LEAST.div_ceil(bytes.max(1));
    let by = |kernels: &Kernels| {
        let begin = Instant::now();
        for _ in 0..repetitions {
            pool.run(pieces.len(), |piece| {
                black_box(kernels.sum_words(pieces[piece]));
            });
        }
        (repetitions * bytes) as f64 / begin.elapsed().as_secs_f64()
    };
    // Slowest first: the narrowest loads.
    by(Kernels::available()[0]).max(by(Kernels::best()))
}
