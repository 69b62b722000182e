//! Reads a header forward through a window, so that a file is asked for a few large pieces, and
//! refuses every length that the file, or an honest header, has no room for.

use super::fault::GgufFault;
use super::file::HEADER_LIMIT;
use crate::{FormatError, Result};

/// Bytes read at a time.
const WINDOW: u64 = 256 << 10;

pub(super) struct Cursor<'a> {
    file: &'a str,
    file_bytes: u64,
    read: &'a mut dyn FnMut(u64, &mut [u8]) -> Result<()>,
    /// Offset of the next byte in the file.
    at: u64,
    window: Vec<u8>,
    /// Offset of the window in the file.
    begin: u64,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(
        file: &'a str,
        file_bytes: u64,
        read: &'a mut dyn FnMut(u64, &mut [u8]) -> Result<()>,
    ) -> Self {
        Cursor { file, file_bytes, read, at: 0, window: Vec::new(), begin: 0 }
    }

    pub(super) fn at(&self) -> u64 {
        self.at
    }

    pub(super) fn fail(&self, fault: GgufFault) -> FormatError {
        FormatError::Gguf { file: self.file.into(), fault }
    }

    /// Refuses `count` elements of at least `smallest` bytes that the file has no room for.
    pub(super) fn check_room(&self, count: u64, smallest: u64, what: &'static str) -> Result<()> {
        let room = self.file_bytes - self.at;
        if count.checked_mul(smallest).is_none_or(|wanted| wanted > room) {
            return Err(self.fail(GgufFault::Count { what, count, bytes: self.file_bytes }));
        }
        Ok(())
    }

    /// The next `length` bytes; `what` names them in errors.
    pub(super) fn take(&mut self, length: u64, what: &str) -> Result<&[u8]> {
        let end = self.at.checked_add(length).filter(|end| *end <= self.file_bytes);
        let Some(end) = end else {
            let (what, offset, bytes) = (what.into(), self.at, self.file_bytes);
            return Err(self.fail(GgufFault::Ends { what, offset, wanted: length, bytes }));
        };
        if end > HEADER_LIMIT {
            return Err(self.fail(GgufFault::TooLong { what: what.into(), limit: HEADER_LIMIT }));
        }
        if end > self.begin + self.window.len() as u64 {
            let size = length.max(WINDOW).min(self.file_bytes - self.at);
            self.window.resize(size as usize, 0);
            (self.read)(self.at, &mut self.window)?;
            self.begin = self.at;
        }
        let first = (self.at - self.begin) as usize;
        self.at = end;
        Ok(&self.window[first..first + length as usize])
    }

    fn exact<const N: usize>(&mut self, what: &str) -> Result<[u8; N]> {
        let bytes = self.take(N as u64, what)?;
        Ok(std::array::from_fn(|i| bytes[i]))
    }

    pub(super) fn u32(&mut self, what: &str) -> Result<u32> {
        Ok(u32::from_le_bytes(self.exact(what)?))
    }

    pub(super) fn u64(&mut self, what: &str) -> Result<u64> {
        Ok(u64::from_le_bytes(self.exact(what)?))
    }

    /// A text with its length in front.
    pub(super) fn text(&mut self, what: &str) -> Result<String> {
        let length = self.u64(what)?;
        let bytes = self.take(length, what)?;
        let text = std::str::from_utf8(bytes).map(String::from);
        text.map_err(|_| self.fail(GgufFault::NotUtf8 { what: what.into() }))
    }
}
