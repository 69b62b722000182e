//! An answer with a status that promises content, and its bytes as they come.

use super::{Address, in_words};
use std::io::{self, Read};
use std::time::{Duration, Instant};
use ureq::Body;
use ureq::http::{HeaderMap, Response};

/// A server that gives fewer bytes a second than this is as good as silent.
const SLOWEST: f64 = 1024.0;

/// What came back.
pub(crate) struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    /// Who gave it, for messages.
    pub host: String,
    /// Where the redirects led.
    pub address: String,
    body: Body,
    pace: Pace,
}

impl Answer {
    /// `silence` is the time in which a server must give something.
    pub fn new(
        response: Response<Body>,
        host: String,
        address: &Address,
        silence: Duration,
    ) -> Answer {
        let (parts, body) = response.into_parts();
        Answer {
            status: parts.status.as_u16(),
            headers: parts.headers,
            host,
            address: address.as_str().into(),
            body,
            pace: Pace { silence, waited: Duration::ZERO, bytes: 0 },
        }
    }

    /// A header as text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The bytes that are announced.
    pub fn length(&self) -> Option<u64> {
        self.body.content_length()
    }

    /// First byte and size of the whole from `Content-Range: bytes 5-9/10`.
    pub fn content_range(&self) -> Option<(u64, u64)> {
        let (range, size) =
            self.header("content-range")?.strip_prefix("bytes ")?.split_once('/')?;
        Some((range.split_once('-')?.0.parse().ok()?, size.parse().ok()?))
    }

    /// The content, or so many bytes of it. Errors: in words, what ended it too early.
    pub fn content(&mut self, most: u64) -> Result<Vec<u8>, String> {
        let mut content = Vec::new();
        let read = Read::take(&mut *self, most).read_to_end(&mut content);
        read.map_err(|error| io_in_words(&error)).map(|_| content)
    }
}

impl Read for Answer {
    /// Errors: the connection broke off, or hardly gives anything.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let begin = Instant::now();
        let length = self.body.as_reader().read(buffer)?;
        self.pace.note(begin.elapsed(), length)?;
        Ok(length)
    }
}

/// How fast bytes come, measured while they are waited for: a reader may take its time between.
struct Pace {
    silence: Duration,
    waited: Duration,
    bytes: usize,
}

impl Pace {
    fn note(&mut self, waited: Duration, bytes: usize) -> io::Result<()> {
        self.waited += waited;
        self.bytes += bytes;
        if self.waited < self.silence {
            return Ok(());
        }
        let seconds = self.waited.as_secs_f64();
        if bytes > 0 && (self.bytes as f64) < SLOWEST * seconds {
            let words = format!("{} bytes in {seconds:.0} s", self.bytes);
            return Err(io::Error::new(io::ErrorKind::TimedOut, words));
        }
        (self.waited, self.bytes) = (Duration::ZERO, 0);
        Ok(())
    }
}

/// What ended an answer too early.
pub(crate) fn io_in_words(error: &io::Error) -> String {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<ureq::Error>()) {
        Some(inner) => in_words(inner),
        None if error.kind() == io::ErrorKind::TimedOut => {
            format!("hardly gives anything ({error})")
        }
        None => format!("broke off ({error})"),
    }
}
