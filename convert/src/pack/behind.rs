//! Hashing a file behind those who write it, in whatever order they do.
//!
//! Written ranges are kept merged; what reaches from the file's first byte without a hole can be
//! read back and hashed while the rest is still to come. So little is left to do at the end, and a
//! place that was never written shows.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;

use w4pack_format::digest::Hasher;

/// Bytes read back at a time.
const PIECE: usize = 256 << 10;

/// The hash of a file in the making.
#[derive(Default)]
pub(super) struct Behind {
    written: Mutex<Ranges>,
    hashed: Mutex<Hashed>,
}

/// Ranges that neither touch nor overlap: begin to end.
#[derive(Default)]
struct Ranges(BTreeMap<u64, u64>);

#[derive(Default)]
struct Hashed {
    hasher: Hasher,
    bytes: u64,
    piece: Vec<u8>,
}

impl Behind {
    /// Tells that these bytes lie in the file now, for good.
    pub(super) fn wrote(&self, begin: u64, length: usize) {
        // Nobody panics holding these locks; the data are right after each statement anyway.
        let mut written = self.written.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        written.add(begin, begin + length as u64);
    }

    /// How far the file reaches without a hole.
    pub(super) fn complete(&self) -> u64 {
        let written = self.written.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        written.0.first_key_value().map_or(0, |(&begin, &end)| if begin == 0 { end } else { 0 })
    }

    /// Reads back and hashes up to `most` bytes of what is complete. Returns how many of the file's
    /// bytes are hashed.
    pub(super) fn advance(&self, file: &File, most: u64) -> io::Result<u64> {
        let complete = self.complete();
        let mut hashed = self.hashed.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let Hashed { hasher, bytes, piece } = &mut *hashed;
        let end = complete.min(*bytes + most);
        piece.resize(PIECE, 0);
        while *bytes < end {
            let length = (end - *bytes).min(PIECE as u64) as usize;
            file.read_exact_at(&mut piece[..length], *bytes)?;
            hasher.update(&piece[..length]);
            *bytes += length as u64;
        }
        Ok(*bytes)
    }

    /// The hash of all that was hashed.
    pub(super) fn finish(self) -> String {
        self.hashed.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()).hasher.finish()
    }
}

impl Ranges {
    fn add(&mut self, mut begin: u64, mut end: u64) {
        if begin == end {
            return;
        }
        if let Some((&before, &before_end)) = self.0.range(..=begin).next_back()
            && before_end >= begin
        {
            begin = before;
            end = end.max(before_end);
        }
        while let Some((&next, &next_end)) = self.0.range(begin..=end).next() {
            self.0.remove(&next);
            end = end.max(next_end);
        }
        self.0.insert(begin, end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use w4pack_format::digest::sha256;

    proptest! {
        #[test]
        fn the_hash_is_that_of_the_file_in_any_order_of_writing(
            order in Just((0..40_usize).collect::<Vec<_>>()).prop_shuffle(),
            most in 1..3000_u64,
        ) {
            let content: Vec<u8> = (0..40 * 97).map(|byte| (byte % 251) as u8).collect();
            let file = tempfile::tempfile().unwrap();
            let behind = Behind::default();
            let mut done = [false; 40];
            for part in order {
                file.write_all_at(&content[97 * part..][..97], 97 * part as u64).unwrap();
                behind.wrote(97 * part as u64, 97);
                done[part] = true;
                let complete = 97 * done.iter().take_while(|&&done| done).count() as u64;
                prop_assert_eq!(behind.complete(), complete);
                prop_assert!(behind.advance(&file, most).unwrap() <= complete);
            }
            while behind.advance(&file, most).unwrap() < content.len() as u64 {}
            prop_assert_eq!(behind.finish(), sha256(&content));
        }
    }
}
