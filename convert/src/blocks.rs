//! Bytes in order, in blocks: while one is taken the next one is made.

use w4pack_format::source::Source;

use crate::ConvertError;

/// Source bytes read at a time: a whole number of groups, and little enough to stay in a core's cache
/// while it is hashed and recovered.
pub(crate) const BLOCK: u64 = 1 << 20;

/// Lets `produce` fill a block while `consume` takes the one before; an empty block ends it.
///
/// Two blocks are in memory, however much comes through.
pub(crate) fn pump(
    mut produce: impl FnMut(&mut Vec<u8>) -> Result<(), ConvertError> + Send,
    mut consume: impl FnMut(&[u8]) -> Result<(), ConvertError> + Send,
) -> Result<(), ConvertError> {
    let (mut current, mut next) = (Vec::new(), Vec::new());
    produce(&mut current)?;
    while !current.is_empty() {
        let (consumed, produced) = rayon::join(|| consume(&current), || produce(&mut next));
        consumed?;
        produced?;
        std::mem::swap(&mut current, &mut next);
    }
    Ok(())
}

/// Hands `length` bytes of a file from `begin` on to `take`, in order, with their offset from
/// `begin`.
///
/// Read, not mapped: a file that is cut meanwhile is an error and no SIGBUS, and none of its pages
/// counts as ours. They stay in the system's cache, where the next reader (verify, a second pass)
/// finds them; telling the system to drop them would make that one wait for the disk.
pub(crate) fn stream(
    source: &dyn Source,
    path: &str,
    begin: u64,
    length: u64,
    mut take: impl FnMut(u64, &[u8]) -> Result<(), ConvertError> + Send,
) -> Result<(), ConvertError> {
    let mut read = 0;
    let mut taken = 0;
    pump(
        |block| {
            let size = BLOCK.min(length - read);
            block.resize(size as usize, 0);
            if size > 0 {
                source.read_at(path, begin + read, block)?;
            }
            read += size;
            Ok(())
        },
        |block| {
            take(taken, block)?;
            taken += block.len() as u64;
            Ok(())
        },
    )
}
