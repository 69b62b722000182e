//! HTTP/1.1 as far as a Hub and its clients speak it: requests in, answers out, and answers that break
//! off where a test wants it.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A request as it came in.
#[derive(Debug, Clone)]
pub struct Request {
    /// `GET`, ...
    pub method: String,
    /// Path with its percent signs resolved, without the query.
    pub path: String,
    /// What stands behind the question mark.
    pub query: String,
    /// Names in lower case.
    pub headers: BTreeMap<String, String>,
    /// All of it.
    pub body: Vec<u8>,
}

impl Request {
    /// A header, by its name in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    /// First and last byte of `Range: bytes=A-B`, of a file of so many bytes.
    pub fn range(&self, size: u64) -> Option<(u64, u64)> {
        let (first, last) = self.header("range")?.strip_prefix("bytes=")?.split_once('-')?;
        let last = if last.is_empty() { size.saturating_sub(1) } else { last.parse().ok()? };
        Some((first.parse().ok()?, last.min(size.saturating_sub(1))))
    }

    /// A parameter of the query.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        let pairs = self.query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.filter(|(key, _)| *key == name).map(|(_, value)| value).next()
    }
}

/// An answer.
#[derive(Debug, Clone)]
pub struct Answer {
    /// `200`, ...
    pub status: u16,
    /// Beside Content-Length.
    pub headers: Vec<(String, String)>,
    /// All of it; a HEAD request gets only its length.
    pub body: Arc<Vec<u8>>,
    /// Which bytes of the body are sent.
    pub part: std::ops::Range<usize>,
    /// The connection ends after so many of them, whatever was announced.
    pub cut: Option<usize>,
    /// So many at a time, after a pause.
    pub drip: Option<Box<(usize, Duration)>>,
    /// So many bytes, head included, and the others when this is true.
    pub held: Option<(usize, Arc<AtomicBool>)>,
    /// These bytes are sent instead of it all.
    pub raw: Option<Vec<u8>>,
}

impl Answer {
    /// With a body.
    pub fn new(status: u16, body: impl Into<Vec<u8>>) -> Answer {
        let body = Arc::new(body.into());
        let part = 0..body.len();
        let (headers, raw) = (Vec::new(), None);
        Answer { status, headers, part, body, cut: None, drip: None, held: None, raw }
    }

    /// With a JSON body.
    pub fn json(value: &serde_json::Value) -> Answer {
        Answer::new(200, value.to_string()).header("Content-Type", "application/json")
    }

    /// The Hub's way to say no: the code in a header, the words in JSON.
    pub fn error(status: u16, code: &str, message: &str) -> Answer {
        let body = serde_json::json!({"error": message}).to_string();
        Answer::new(status, body)
            .header("X-Error-Code", code)
            .header("X-Error-Message", message)
            .header("Content-Type", "application/json")
    }

    /// Adds a header.
    pub fn header(mut self, name: &str, value: impl Into<String>) -> Answer {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// The content, or the part of it that a range asks for.
    pub fn content(body: Arc<Vec<u8>>, request: &Request) -> Answer {
        let size = body.len() as u64;
        let mut answer = Answer::new(200, Vec::new()).header("Accept-Ranges", "bytes");
        (answer.part, answer.body) = (0..body.len(), body);
        match request.range(size) {
            None => answer,
            Some((first, _)) if first >= size => {
                Answer::new(416, "").header("Content-Range", format!("bytes */{size}"))
            }
            Some((first, last)) => {
                let part = first as usize..last as usize + 1;
                let range = format!("bytes {first}-{last}/{size}");
                Answer { status: 206, part, ..answer }.header("Content-Range", range)
            }
        }
    }

    /// Sends it; says whether the connection can go on.
    pub fn send(&self, stream: &mut TcpStream, is_head: bool) -> io::Result<bool> {
        if let Some(raw) = &self.raw {
            stream.write_all(raw)?;
            return Ok(false);
        }
        let mut head = format!("HTTP/1.1 {} Said\r\n", self.status);
        for (name, value) in &self.headers {
            head += &format!("{name}: {value}\r\n");
        }
        let length = self.part.len();
        head += &format!("Content-Length: {length}\r\n\r\n");
        if let Some((first, go_on)) = &self.held {
            let body: &[u8] = if is_head { &[] } else { &self.body[self.part.clone()] };
            let all = [head.as_bytes(), body].concat();
            let (first, others) = all.split_at(all.len().min(*first));
            stream.write_all(first)?;
            if !is_to_go_on(stream, go_on)? {
                return Ok(false);
            }
            stream.write_all(others)?;
            return Ok(true);
        }
        stream.write_all(head.as_bytes())?;
        if is_head {
            return Ok(true);
        }
        let sent = self.cut.map_or(length, |cut| cut.min(length));
        let (piece, pause) = self.drip.as_deref().copied().unwrap_or((usize::MAX, Duration::ZERO));
        for bytes in self.body[self.part.start..self.part.start + sent].chunks(piece) {
            std::thread::sleep(pause);
            stream.write_all(bytes)?;
        }
        stream.flush()?;
        Ok(self.cut.is_none())
    }
}

/// Waits until somebody says so; `false`: the client went before.
fn is_to_go_on(stream: &TcpStream, go_on: &AtomicBool) -> io::Result<bool> {
    let pause = Duration::from_millis(5);
    stream.set_read_timeout(Some(pause))?;
    while !go_on.load(Ordering::Relaxed) {
        match stream.peek(&mut [0]) {
            Ok(0) => return Ok(false),
            // It sends on meanwhile.
            Ok(_) => std::thread::sleep(pause),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock
                | io::ErrorKind::TimedOut
                | io::ErrorKind::Interrupted => {}
                _ => return Ok(false),
            },
        }
    }
    stream.set_read_timeout(None)?;
    Ok(true)
}

/// Reads the next request of a connection; `None` where it ends.
pub fn read(stream: &mut BufReader<TcpStream>) -> io::Result<Option<Request>> {
    let mut line = String::new();
    if stream.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split_whitespace();
    let (method, target) = (words.next().unwrap_or(""), words.next().unwrap_or("/"));
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let mut request = Request {
        method: method.into(),
        path: decoded(path),
        query: query.into(),
        headers: BTreeMap::new(),
        body: Vec::new(),
    };
    loop {
        let mut line = String::new();
        stream.read_line(&mut line)?;
        match line.trim_end().split_once(':') {
            None => break,
            Some((name, value)) => {
                request.headers.insert(name.to_ascii_lowercase(), value.trim().into());
            }
        }
    }
    if request.header("expect").is_some_and(|value| value.eq_ignore_ascii_case("100-continue")) {
        stream.get_mut().write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
    }
    if request.header("transfer-encoding") == Some("chunked") {
        loop {
            let mut line = String::new();
            stream.read_line(&mut line)?;
            let length = usize::from_str_radix(line.trim(), 16).map_err(io::Error::other)?;
            let mut chunk = vec![0; length + 2];
            stream.read_exact(&mut chunk)?;
            if length == 0 {
                break;
            }
            request.body.extend(&chunk[..length]);
        }
    } else if let Some(length) = request.header("content-length") {
        request.body = vec![0; length.parse().map_err(io::Error::other)?];
        stream.read_exact(&mut request.body)?;
    }
    Ok(Some(request))
}

/// Resolves percent signs.
pub fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let digits = (byte == b'%').then(|| [rest.next().unwrap_or(0), rest.next().unwrap_or(0)]);
        let number = digits
            .and_then(|digits| u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok());
        bytes.push(number.unwrap_or(byte));
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
