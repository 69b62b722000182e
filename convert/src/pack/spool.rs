//! Byte streams of unknown length, several at once, that take little memory.
//!
//! All streams share one scratch file: each collects a piece in memory and appends it to the file
//! when it is full, remembering where its pieces lie.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Bytes a stream collects before they go to the file.
const PIECE: usize = 64 << 10;

/// The scratch file.
pub(super) struct Spool {
    path: PathBuf,
    file: File,
    end: u64,
}

/// One stream. It belongs to the [`Spool`] that is passed to its methods.
#[derive(Default)]
pub(super) struct Stream {
    pending: Vec<u8>,
    pieces: Vec<(u64, usize)>,
    spooled: u64,
}

impl Spool {
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        let file = File::options().read(true).write(true).create_new(true).open(path)?;
        Ok(Spool { path: path.to_path_buf(), file, end: 0 })
    }

    /// Where the scratch file lies, for messages.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the scratch file; the streams are lost.
    pub(super) fn remove(self) -> io::Result<()> {
        std::fs::remove_file(&self.path)
    }
}

impl Stream {
    pub(super) fn bytes(&self) -> u64 {
        self.spooled + self.pending.len() as u64
    }

    pub(super) fn push(&mut self, spool: &mut Spool, bytes: &[u8]) -> io::Result<()> {
        self.pending.extend_from_slice(bytes);
        if self.pending.len() >= PIECE { self.flush(spool) } else { Ok(()) }
    }

    /// Moves what is left in memory to the file.
    pub(super) fn flush(&mut self, spool: &mut Spool) -> io::Result<()> {
        if !self.pending.is_empty() {
            spool.file.write_all_at(&self.pending, spool.end)?;
            self.pieces.push((spool.end, self.pending.len()));
            self.spooled += self.pending.len() as u64;
            spool.end += self.pending.len() as u64;
            self.pending = Vec::new();
        }
        Ok(())
    }

    /// Hands the bytes of a flushed stream to `take`, in order.
    pub(super) fn replay(
        &self,
        spool: &Spool,
        take: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut piece = Vec::new();
        for &(offset, length) in &self.pieces {
            piece.resize(length, 0);
            spool.file.read_exact_at(&mut piece, offset)?;
            take(&piece)?;
        }
        take(&self.pending)
    }
}

/// A stream being read from its beginning, in whatever portions.
pub(super) struct Reader<'s> {
    stream: &'s Stream,
    /// The next piece of the stream's; behind the last one comes what is pending.
    next: usize,
    piece: Vec<u8>,
    at: usize,
}

impl Stream {
    pub(super) fn reader(&self) -> Reader<'_> {
        Reader { stream: self, next: 0, piece: Vec::new(), at: 0 }
    }
}

impl Reader<'_> {
    /// Fills the buffer. Errors: the stream ends before.
    pub(super) fn read(&mut self, spool: &Spool, mut buffer: &mut [u8]) -> io::Result<()> {
        while !buffer.is_empty() {
            if self.at == self.piece.len() {
                self.fetch(spool)?;
            }
            let length = buffer.len().min(self.piece.len() - self.at);
            let (now, later) = buffer.split_at_mut(length);
            now.copy_from_slice(&self.piece[self.at..][..length]);
            self.at += length;
            buffer = later;
        }
        Ok(())
    }

    fn fetch(&mut self, spool: &Spool) -> io::Result<()> {
        self.at = 0;
        match self.stream.pieces.get(self.next) {
            Some(&(offset, length)) => {
                self.piece.resize(length, 0);
                spool.file.read_exact_at(&mut self.piece, offset)?;
            }
            None if self.next == self.stream.pieces.len() && !self.stream.pending.is_empty() => {
                self.piece.clone_from(&self.stream.pending);
            }
            None => return Err(io::ErrorKind::UnexpectedEof.into()),
        }
        self.next += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interleaved_streams_come_back_whole() {
        let folder = tempfile::tempdir().unwrap();
        let mut spool = Spool::create(&folder.path().join("spool")).unwrap();
        let mut streams = [Stream::default(), Stream::default()];
        let mut expected = [Vec::new(), Vec::new()];
        for round in 0..40_000_u32 {
            let bytes = round.to_le_bytes();
            let which = (round % 3 == 0) as usize;
            streams[which].push(&mut spool, &bytes).unwrap();
            expected[which].extend(bytes);
        }
        streams[0].flush(&mut spool).unwrap();
        for (stream, expected) in streams.iter().zip(&expected) {
            let mut found = Vec::new();
            let mut take = |bytes: &[u8]| -> io::Result<()> {
                found.extend_from_slice(bytes);
                Ok(())
            };
            stream.replay(&spool, &mut take).unwrap();
            assert_eq!(&found, expected);
            assert_eq!(stream.bytes(), expected.len() as u64);
            // Once more, in portions that fit no piece.
            let mut reader = stream.reader();
            let mut portion = [0; 997];
            for expected in expected.chunks(997) {
                let portion = &mut portion[..expected.len()];
                reader.read(&spool, portion).unwrap();
                assert_eq!(portion, expected);
            }
            assert!(reader.read(&spool, &mut [0]).is_err(), "it has ended");
        }
        spool.remove().unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
