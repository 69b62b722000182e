//! What the scales of a module are like, as far as loaders care.

use w4pack_format::Result;
use w4pack_format::checkpoint::Checkpoint;
use w4pack_format::scale::ScaleDtype;

/// Bytes read at a time, a multiple of every scale's size.
const BLOCK: u64 = 4 << 20;

/// Facts about the scales of a module.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct ScaleFacts {
    /// The largest magnitude.
    pub largest: f32,
    /// How many are 0, NaN or infinite.
    pub faulty: u64,
}

impl ScaleFacts {
    /// Reads every scale of a tensor.
    pub(super) fn of(checkpoint: &Checkpoint, name: &str, dtype: ScaleDtype) -> Result<ScaleFacts> {
        let mut facts = ScaleFacts::default();
        let Some(found) = checkpoint.tensor(name) else { return Ok(facts) };
        let (bytes, mut at) = (found.info.bytes(), 0);
        let mut block = vec![0; BLOCK.min(bytes) as usize];
        while at < bytes {
            let length = (bytes - at).min(BLOCK) as usize;
            checkpoint.read_range(name, at, &mut block[..length])?;
            for scale in block[..length].chunks_exact(dtype.bytes()) {
                let scale = dtype.read(scale);
                if scale == 0.0 || !scale.is_finite() {
                    facts.faulty += 1;
                } else {
                    facts.largest = facts.largest.max(scale.abs());
                }
            }
            at += length as u64;
        }
        Ok(facts)
    }
}
