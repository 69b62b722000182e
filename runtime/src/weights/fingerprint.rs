//! What a checkpoint's weights are, in 32 bytes.

use crate::error::Result;
use w4pack_format::checkpoint::Checkpoint;

/// Bytes read at once.
const PIECE: usize = 4 << 20;

/// BLAKE3 of config.json and of every tensor's name, dtype, shape and bytes, in the order of their
/// names. Reads the whole checkpoint.
pub fn fingerprint(checkpoint: &Checkpoint) -> Result<[u8; 32]> {
    let mut hasher = blake3::Hasher::new_derive_key("w4pack weights, config.json and all tensors");
    // Lengths before contents: no two checkpoints make the same stream of bytes.
    let part = |bytes: &[u8], hasher: &mut blake3::Hasher| {
        hasher.update(&(bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    };
    part(&checkpoint.source().read_file("config.json")?, &mut hasher);
    let mut buffer = vec![0; PIECE];
    for name in checkpoint.names() {
        let Some(tensor) = checkpoint.tensor(name) else { continue };
        let info = tensor.info;
        part(name.as_bytes(), &mut hasher);
        part(info.dtype.name().as_bytes(), &mut hasher);
        part(format!("{:?}", info.shape).as_bytes(), &mut hasher);
        hasher.update(&info.bytes().to_le_bytes());
        let mut first = 0;
        while first < info.bytes() {
            let piece = &mut buffer[..(info.bytes() - first).min(PIECE as u64) as usize];
            checkpoint.read_range(name, first, piece)?;
            hasher.update(piece);
            first += piece.len() as u64;
        }
    }
    Ok(*hasher.finalize().as_bytes())
}
