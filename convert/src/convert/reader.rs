//! A tensor's bytes in order, in blocks.

use w4pack_format::source::Source;

use crate::ConvertError;

/// Source bytes read at a time: a whole number of groups.
const BLOCK: u64 = 4 << 20;

/// Hands `length` bytes of a file from `begin` on to `take`, in order, with their offset from
/// `begin`; while a block is taken the next one is read.
pub(super) fn stream(
    source: &dyn Source,
    path: &str,
    begin: u64,
    length: u64,
    mut take: impl FnMut(u64, &[u8]) -> Result<(), ConvertError> + Send,
) -> Result<(), ConvertError> {
    let read = |first: u64, buffer: &mut Vec<u8>| {
        let end = (first + BLOCK).min(length);
        buffer.resize(end.saturating_sub(first) as usize, 0);
        if buffer.is_empty() { Ok(()) } else { source.read_at(path, begin + first, buffer) }
    };
    let (mut current, mut next) = (Vec::new(), Vec::new());
    let mut first = 0;
    read(first, &mut current)?;
    while !current.is_empty() {
        let following = first + current.len() as u64;
        let (taken, ahead) = rayon::join(|| take(first, &current), || read(following, &mut next));
        taken?;
        ahead?;
        first = following;
        std::mem::swap(&mut current, &mut next);
    }
    Ok(())
}
