//! A prompt on disk.
//!
//! | bytes | what |
//! |---|---|
//! | 8 | `w4prompt` |
//! | 4 | version, 1 |
//! | 32 | identity: BLAKE3 of the weights' hash and of how the device computes and stores |
//! | 8 | tokens held |
//! | 8 | how many of them serve as tokens of a prompt |
//! | 4 | copies of rings, the current ones first |
//! | 8 | bytes of the full layers |
//! | 16 for each copy | positions, bytes |
//! | 4 for each token | its id |
//! | 32 | BLAKE3 of all before it |
//! | | the full layers, then each copy of the rings |
//! | 32 | BLAKE3 of all before it |
//!
//! All numbers are little-endian. The first checksum lets a listing read no more than the head; the
//! second one covers every byte. Whatever does not agree is no prompt.

use crate::device::{Contents, Rings};
use crate::scheduler::held::Held;
use std::io::{self, Read, Write};

const MAGIC: &[u8; 8] = b"w4prompt";
const VERSION: u32 = 1;
/// Bytes before the list of copies.
const FIXED: usize = 8 + 4 + 32 + 8 + 8 + 4 + 8;
/// Bytes of a checksum.
const SUM: usize = blake3::OUT_LEN;
/// More tokens or copies than any model has: a head that says so is not read further.
const MOST: u64 = 1 << 24;

/// What can be said of a prompt without its keys and values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::scheduler) struct Head {
    /// What wrote it.
    pub identity: [u8; 32],
    /// The tokens held.
    pub tokens: Vec<u32>,
    /// How many of them serve as tokens of a prompt.
    pub serving: usize,
    /// Positions and bytes of the copies of the rings, the current ones first.
    pub rings: Vec<(usize, usize)>,
    /// Bytes of the full layers.
    pub full: usize,
}

/// A prompt with its keys and values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::scheduler) struct Record {
    /// What wrote it.
    pub identity: [u8; 32],
    /// The tokens held.
    pub tokens: Vec<u32>,
    /// How many of them serve as tokens of a prompt.
    pub serving: usize,
    /// Their keys and values.
    pub contents: Contents,
    /// Earlier copies of the rings.
    pub checkpoints: Vec<Rings>,
}

impl Head {
    /// The name of its content: what wrote it and which tokens.
    pub fn key(&self) -> String {
        key(&self.identity, &self.tokens)
    }

    /// Bytes of the whole file; `None` beyond all numbers.
    pub fn file_bytes(&self) -> Option<u64> {
        let rings = self.rings.iter().try_fold(0u64, |sum, &(_, b)| sum.checked_add(b as u64))?;
        let head = (FIXED + 16 * self.rings.len() + 4 * self.tokens.len() + SUM) as u64;
        head.checked_add(self.full as u64)?.checked_add(rings)?.checked_add(SUM as u64)
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(self.identity);
        bytes.extend((self.tokens.len() as u64).to_le_bytes());
        bytes.extend((self.serving as u64).to_le_bytes());
        bytes.extend((self.rings.len() as u32).to_le_bytes());
        bytes.extend((self.full as u64).to_le_bytes());
        for &(positions, size) in &self.rings {
            bytes.extend((positions as u64).to_le_bytes());
            bytes.extend((size as u64).to_le_bytes());
        }
        bytes.extend(self.tokens.iter().flat_map(|id| id.to_le_bytes()));
        bytes
    }

    /// Reads and checks a head, its checksum included; everything read goes into `sum`.
    ///
    /// `None`: it is none of ours, torn, or says what cannot be.
    pub fn read(file: &mut impl Read, sum: &mut blake3::Hasher) -> io::Result<Option<Self>> {
        let mut fixed = [0; FIXED];
        if !read_whole(file, &mut fixed, sum)? {
            return Ok(None);
        }
        let mut rest = &fixed[..];
        let magic: [u8; 8] = take(&mut rest);
        let version = u32::from_le_bytes(take(&mut rest));
        let identity: [u8; 32] = take(&mut rest);
        let tokens = u64::from_le_bytes(take(&mut rest));
        let serving = u64::from_le_bytes(take(&mut rest));
        let rings = u32::from_le_bytes(take(&mut rest));
        let full = u64::from_le_bytes(take(&mut rest));
        let sane = magic == *MAGIC
            && version == VERSION
            && (1..=MOST).contains(&tokens)
            && serving <= tokens
            && (1..=MOST).contains(&u64::from(rings));
        if !sane {
            return Ok(None);
        }
        let mut list = vec![0; 16 * rings as usize + 4 * tokens as usize];
        if !read_whole(file, &mut list, sum)? {
            return Ok(None);
        }
        let expected = sum.finalize();
        let mut found = [0; SUM];
        if !read_whole(file, &mut found, sum)? || expected != found {
            return Ok(None);
        }
        let mut rest = &list[..];
        let mut number = || u64::from_le_bytes(take(&mut rest)) as usize;
        let rings: Vec<(usize, usize)> = (0..rings).map(|_| (number(), number())).collect();
        let tokens = (0..tokens).map(|_| u32::from_le_bytes(take(&mut rest))).collect();
        let (serving, full) = (serving as usize, full as usize);
        Ok(Some(Self { identity, tokens, serving, rings, full }))
    }
}

impl Record {
    /// What a slot holds.
    pub fn of(identity: [u8; 32], held: &Held, contents: Contents) -> Self {
        let (tokens, serving) = (held.tokens().to_vec(), held.serving());
        Self { identity, tokens, serving, contents, checkpoints: held.checkpoints().to_vec() }
    }

    /// What the slot holds that has taken its contents.
    pub fn into_held(self) -> Held {
        Held::from_parts(self.tokens, self.serving, self.checkpoints)
    }

    /// Everything but keys and values.
    pub fn head(&self) -> Head {
        let current = std::iter::once(&self.contents.rings);
        let rings = current.chain(&self.checkpoints);
        Head {
            identity: self.identity,
            tokens: self.tokens.clone(),
            serving: self.serving,
            rings: rings.map(|rings| (rings.positions, rings.bytes.len())).collect(),
            full: self.contents.full.len(),
        }
    }

    /// Writes the whole file.
    pub fn write(&self, file: &mut impl Write) -> io::Result<()> {
        let mut sum = blake3::Hasher::new();
        let mut put = |bytes: &[u8]| {
            sum.update(bytes);
            file.write_all(bytes)?;
            Ok::<_, io::Error>(sum.finalize())
        };
        let checksum = put(&self.head().bytes())?;
        put(checksum.as_bytes())?;
        let mut checksum = put(&self.contents.full)?;
        for rings in std::iter::once(&self.contents.rings).chain(&self.checkpoints) {
            checksum = put(&rings.bytes)?;
        }
        file.write_all(checksum.as_bytes())
    }

    /// Reads a whole file of `length` bytes; `None` if anything in it is not what it must be.
    pub fn read(file: &mut impl Read, length: u64) -> io::Result<Option<Self>> {
        let mut sum = blake3::Hasher::new();
        let Some(head) = Head::read(file, &mut sum)? else { return Ok(None) };
        if head.file_bytes() != Some(length) {
            return Ok(None);
        }
        let mut body = |bytes: usize| -> io::Result<Option<Vec<u8>>> {
            let mut part = Vec::new();
            if part.try_reserve_exact(bytes).is_err() {
                return Err(io::ErrorKind::OutOfMemory.into());
            }
            part.resize(bytes, 0);
            Ok(read_whole(file, &mut part, &mut sum)?.then_some(part))
        };
        let Some(full) = body(head.full)? else { return Ok(None) };
        let mut copies = Vec::new();
        for &(positions, bytes) in &head.rings {
            let Some(bytes) = body(bytes)? else { return Ok(None) };
            copies.push(Rings { positions, bytes });
        }
        let expected = sum.finalize();
        let mut found = [0; SUM];
        if !read_whole(file, &mut found, &mut sum)? || expected != found {
            return Ok(None);
        }
        let rings = copies.remove(0);
        if rings.positions != head.tokens.len() {
            return Ok(None);
        }
        let Head { identity, tokens, serving, .. } = head;
        let contents = Contents { full, rings };
        Ok(Some(Self { identity, tokens, serving, contents, checkpoints: copies }))
    }
}

/// The name of a prompt: 64 hexadecimal digits.
pub(in crate::scheduler) fn key(identity: &[u8; 32], tokens: &[u32]) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(identity);
    for id in tokens {
        hasher.update(&id.to_le_bytes());
    }
    hasher.finalize().to_hex().to_string()
}

/// Fills the buffer and adds it to the sum; `false` if the file ends before.
fn read_whole(
    file: &mut impl Read,
    buffer: &mut [u8],
    sum: &mut blake3::Hasher,
) -> io::Result<bool> {
    match file.read_exact(buffer) {
        Ok(()) => {
            sum.update(buffer);
            Ok(true)
        }
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

/// The next bytes of a part whose length is known.
fn take<const N: usize>(rest: &mut &[u8]) -> [u8; N] {
    let (first, behind) = rest.split_first_chunk().expect("the part is as long as its fields");
    *rest = behind;
    *first
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        let rings = |positions, size| Rings { positions, bytes: vec![positions as u8; size] };
        Record {
            identity: [7; 32],
            tokens: vec![2, 300, 5, 70_000, 9],
            serving: 4,
            contents: Contents { full: (0..40).collect(), rings: rings(5, 16) },
            checkpoints: vec![rings(2, 8), rings(4, 16)],
        }
    }

    fn bytes(record: &Record) -> Vec<u8> {
        let mut bytes = Vec::new();
        record.write(&mut bytes).expect("memory can be written");
        bytes
    }

    fn read(bytes: &[u8]) -> Option<Record> {
        Record::read(&mut &bytes[..], bytes.len() as u64).expect("memory can be read")
    }

    #[test]
    fn a_record_comes_back_whole_and_its_head_alone() {
        let (record, bytes) = (record(), bytes(&record()));
        assert_eq!(read(&bytes), Some(record.clone()));
        let mut sum = blake3::Hasher::new();
        let head = Head::read(&mut &bytes[..], &mut sum).expect("memory can be read");
        let head = head.expect("it is whole");
        assert_eq!(head, record.head());
        assert_eq!(head.file_bytes(), Some(bytes.len() as u64));
        assert_eq!(head.key().len(), 64);
    }

    /// Every length and every bit: in each field, in both checksums, in keys and values.
    #[test]
    fn no_torn_and_no_changed_file_is_a_record() {
        let bytes = bytes(&record());
        for length in 0..bytes.len() {
            assert_eq!(read(&bytes[..length]), None, "cut to {length}");
        }
        let mut longer = bytes.clone();
        longer.push(0);
        assert_eq!(read(&longer), None, "a byte too many");
        for bit in 0..8 * bytes.len() {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(read(&changed), None, "bit {bit}");
        }
    }

    #[test]
    fn the_name_is_of_tokens_and_of_what_made_them() {
        let name = key(&[1; 32], &[2, 3]);
        assert_eq!(name, key(&[1; 32], &[2, 3]));
        assert_ne!(name, key(&[2; 32], &[2, 3]));
        assert_ne!(name, key(&[1; 32], &[2, 3, 4]));
        assert_ne!(name, key(&[1; 32], &[3, 2]));
    }
}
