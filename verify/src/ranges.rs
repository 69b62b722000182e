//! Reading ranges of files in blocks: hashing them, comparing them.

use w4pack_format::Result;
use w4pack_format::checkpoint::{Checkpoint, Located};
use w4pack_format::digest::Hasher;
use w4pack_format::source::Source;

use crate::progress::Progress;

/// Bytes read at a time.
const BLOCK: u64 = 1 << 20;

/// A range of a file.
#[derive(Clone, Copy)]
pub struct Range<'a> {
    /// Where the file is.
    pub source: &'a dyn Source,
    /// The file.
    pub path: &'a str,
    /// First byte.
    pub offset: u64,
    /// How many.
    pub bytes: u64,
}

impl<'a> Range<'a> {
    /// A whole file.
    pub fn of_file(source: &'a dyn Source, path: &'a str) -> Range<'a> {
        Range { source, path, offset: 0, bytes: source.size(path).unwrap_or(0) }
    }

    /// A tensor's bytes.
    pub fn of_tensor(checkpoint: &'a Checkpoint, found: Located<'a>) -> Range<'a> {
        Range {
            source: &**checkpoint.source(),
            path: &found.shard.path,
            offset: found.shard.header.data_start() + found.info.begin,
            bytes: found.info.bytes(),
        }
    }

    /// Calls `take` with one block after the other and the block's place in the range, until it says
    /// `false`.
    pub fn for_each_block(&self, mut take: impl FnMut(u64, &[u8]) -> Result<bool>) -> Result<()> {
        let mut buffer = vec![0; self.bytes.min(BLOCK) as usize];
        let mut done = 0;
        while done < self.bytes {
            let length = (self.bytes - done).min(BLOCK) as usize;
            self.source.read_at(self.path, self.offset + done, &mut buffer[..length])?;
            if !take(done, &buffer[..length])? {
                break;
            }
            done += length as u64;
        }
        Ok(())
    }

    /// SHA-256 in hexadecimal.
    pub fn sha256(&self, progress: &dyn Progress) -> Result<String> {
        let mut hasher = Hasher::default();
        self.for_each_block(|_, block| {
            hasher.update(block);
            progress.advance(block.len() as u64);
            Ok(true)
        })?;
        Ok(hasher.finish())
    }

    /// Compares with a range of the same size; hashes this one on the way.
    pub fn compare(&self, other: &Range<'_>, progress: &dyn Progress) -> Result<Comparison> {
        let mut hasher = Hasher::default();
        let mut differences = Differences::default();
        let mut theirs = vec![0; self.bytes.min(BLOCK) as usize];
        self.for_each_block(|place, block| {
            let theirs = &mut theirs[..block.len()];
            other.source.read_at(other.path, other.offset + place, theirs)?;
            hasher.update(block);
            differences.take(place, block, theirs);
            progress.advance(2 * block.len() as u64);
            Ok(true)
        })?;
        Ok(Comparison { sha256: hasher.finish(), differences })
    }
}

/// The outcome of comparing two ranges.
pub struct Comparison {
    /// SHA-256 of the first range.
    pub sha256: String,
    /// Where they differ.
    pub differences: Differences,
}

/// Bytes that differ between two ranges.
#[derive(Default)]
pub struct Differences {
    /// How many.
    pub bytes: u64,
    /// The first one's place.
    pub first: Option<u64>,
}

impl Differences {
    /// Compares two pieces that begin at `place`.
    pub fn take(&mut self, place: u64, ours: &[u8], theirs: &[u8]) {
        if ours == theirs {
            return;
        }
        for (byte, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
            if ours != theirs {
                self.bytes += 1;
                self.first.get_or_insert(place + byte as u64);
            }
        }
    }

    /// Adds those of the piece that follows.
    pub fn add(&mut self, later: Differences) {
        self.bytes += later.bytes;
        self.first = self.first.or(later.first);
    }
}
