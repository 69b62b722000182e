//! Modules that the source has packed already: words as they are, steps as they are.

use w4pack_format::group::{PACKED_BYTES, unpack, words_from_bytes};
use w4pack_format::scale::ScaleDtype;

use crate::report::Tally;

/// A step that cannot be written.
pub(super) struct BadStep {
    /// The group's number among those given.
    pub group: usize,
    /// The step.
    pub step: f32,
    /// Why not.
    pub problem: String,
}

/// Steps in the dtype of the output. Nothing is rounded: a step that the dtype does not have is
/// refused, and so is one that makes no number of its codes.
pub(super) fn steps(scales: &[u8], from: ScaleDtype, to: ScaleDtype) -> Result<Vec<u8>, BadStep> {
    let mut written = Vec::with_capacity(scales.len() / from.bytes() * to.bytes());
    for (group, scale) in scales.chunks_exact(from.bytes()).enumerate() {
        let step = from.read(scale);
        let bad = |problem| Err(BadStep { group, step, problem });
        if step == 0.0 || !step.is_finite() {
            return bad("it makes no number of its codes".into());
        }
        let begin = written.len();
        to.write(step, &mut written);
        if to.read(&written[begin..]) != step {
            return bad(format!("{to} has no such number"));
        }
    }
    Ok(written)
}

/// Counts over groups. Of values that differ nothing is known: there are none to compare with.
pub(super) fn tally(words: &[u8], scales: &[u8], dtype: ScaleDtype) -> Tally {
    let mut tally = Tally::default();
    let (words, _) = words.as_chunks::<PACKED_BYTES>();
    for (words, scale) in words.iter().zip(scales.chunks_exact(dtype.bytes())) {
        let codes = unpack(&words_from_bytes(words));
        let peak = codes.iter().map(|code| code.unsigned_abs()).max().unwrap_or(0);
        tally.groups += 1;
        tally.peak_levels[usize::from(peak)] += 1;
        match (peak, dtype.read(scale) < 0.0) {
            (0, _) => tally.zero += 1,
            (_, true) => tally.negative += 1,
            (_, false) => tally.positive += 1,
        }
    }
    tally
}
