//! A repository's files read by byte ranges, none of them stored.
//!
//! Reads that follow each other go over one connection, which is asked for more and more bytes at a
//! time, and taken up again where it breaks off; others ask for exactly their bytes. Whatever is read
//! from the first byte to the last, in order, is held against the file's listed hash, and the read
//! that ends it fails if it differs.

use crate::check::FileHash;
use crate::http::{Answer, Call, Patience, io_in_words};
use crate::{Hub, HubError, RemoteFile, Result, Snapshot};
use std::collections::HashMap;
use std::io::{self, Read};
use std::sync::{Arc, Mutex, PoisonError};
use w4pack_format::FormatError;
use w4pack_format::source::{Source, SourceFile};

/// Files up to this size are fetched whole and kept.
const SMALL: u64 = 1 << 20;
/// Reads that followed each other before more is asked for than is wanted.
const IN_A_ROW: u32 = 2;
/// What is asked for then: so many times what was read in a row,
const AHEAD: u64 = 4;
/// but no less and no more than this.
const FEWEST_AHEAD: u64 = 64 << 10;
const MOST_AHEAD: u64 = 256 << 20;
/// What comes after a connection that broke off.
const GO_ON: &str = "going on from there";
/// Rows of reads that are remembered for each file, and connections that are kept.
const REMEMBERED: usize = 8;

/// See the module.
pub struct RangeSource {
    hub: Arc<Hub>,
    snapshot: Snapshot,
    files: Vec<SourceFile>,
    states: HashMap<String, Mutex<State>>,
}

/// What is known of a file that is being read.
struct State {
    /// A small file, once it was read.
    whole: Option<Arc<Vec<u8>>>,
    /// Where the redirects of the Hub led.
    direct: Option<String>,
    /// Rows of reads that followed each other; the newest last.
    rows: Vec<Row>,
    /// Connections that stand at a byte.
    open: Vec<Stream>,
    /// What was read in order from the first byte: its hash so far, and how far.
    tape: Option<(FileHash, u64)>,
}

/// Reads of which each began where the one before it ended.
#[derive(Clone, Copy, Default)]
struct Row {
    end: u64,
    reads: u32,
    bytes: u64,
}

impl Row {
    /// How much to ask for at once for the next read of the row.
    fn ahead(&self, wanted: u64) -> u64 {
        (AHEAD * self.bytes).clamp(FEWEST_AHEAD, MOST_AHEAD).max(wanted)
    }
}

/// A connection that gives the file's bytes from `at` to before `until`.
struct Stream {
    at: u64,
    until: u64,
    answer: Answer,
}

impl RangeSource {
    pub(crate) fn new(hub: Arc<Hub>, mut snapshot: Snapshot) -> RangeSource {
        // As in a folder: what lies in a folder like `.cache` is no part of a checkpoint.
        let folder =
            |file: &RemoteFile| file.path.rsplit_once('/').map(|(folder, _)| folder.to_string());
        let hidden = |file: &RemoteFile| {
            folder(file).is_some_and(|folder| folder.split('/').any(|level| level.starts_with('.')))
        };
        snapshot.files.retain(|file| !hidden(file));
        let listed = |file: &RemoteFile| SourceFile { path: file.path.clone(), bytes: file.bytes };
        let state = |file: &RemoteFile| {
            let tape = Some((FileHash::of(file), 0));
            let state =
                State { whole: None, direct: None, rows: Vec::new(), open: Vec::new(), tape };
            (file.path.clone(), Mutex::new(state))
        };
        RangeSource {
            hub,
            files: snapshot.files.iter().map(listed).collect(),
            states: snapshot.files.iter().map(state).collect(),
            snapshot,
        }
    }

    fn file(&self, path: &str) -> Option<&RemoteFile> {
        let files = &self.snapshot.files;
        files.binary_search_by(|file| file.path.as_str().cmp(path)).ok().map(|at| &files[at])
    }

    fn read(&self, file: &RemoteFile, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let state = &self.states[&file.path];
        let lock = || state.lock().unwrap_or_else(PoisonError::into_inner);
        if file.bytes <= SMALL {
            // Held while it is fetched, so that it is fetched once.
            let mut state = lock();
            let whole = match &state.whole {
                Some(whole) => whole.clone(),
                None => {
                    let mut content = vec![0; file.bytes as usize];
                    self.fetch(file, 0, &mut content, &mut None)?;
                    let mut hash = FileHash::of(file);
                    hash.update(&content);
                    hash.check(self.snapshot.name.as_str(), file)?;
                    state.whole.insert(Arc::new(content)).clone()
                }
            };
            buffer.copy_from_slice(&whole[offset as usize..][..buffer.len()]);
            return Ok(());
        }
        let (stream, mut row, mut direct) = {
            let mut state = lock();
            let open = state.open.iter().position(|stream| stream.at == offset);
            let row = state.rows.iter().position(|row| row.end == offset);
            let row = row.map_or_else(Row::default, |row| state.rows.remove(row));
            (open.map(|open| state.open.remove(open)), row, state.direct.clone())
        };
        let wanted = buffer.len() as u64;
        let stream = if stream.is_some() || row.reads >= IN_A_ROW {
            self.stream(file, stream, offset, row.ahead(wanted), buffer)?
        } else {
            self.fetch(file, offset, buffer, &mut direct)?;
            None
        };
        row = Row { end: offset + wanted, reads: row.reads + 1, bytes: row.bytes + wanted };
        let mut state = lock();
        state.direct = direct;
        state.rows.push(row);
        state.open.extend(stream);
        let (old_rows, old_streams) = (state.rows.len(), state.open.len());
        state.rows.drain(..old_rows.saturating_sub(REMEMBERED));
        state.open.drain(..old_streams.saturating_sub(REMEMBERED));
        self.follow(&mut state, file, offset, buffer)
    }

    /// Takes what was read into the file's hash where it goes on from there.
    fn follow(
        &self,
        state: &mut State,
        file: &RemoteFile,
        offset: u64,
        buffer: &[u8],
    ) -> Result<()> {
        let end = offset + buffer.len() as u64;
        let Some((hash, at)) = &mut state.tape else { return Ok(()) };
        if *at < offset || *at >= end {
            return Ok(());
        }
        hash.update(&buffer[(*at - offset) as usize..]);
        *at = end;
        match state.tape.take_if(|(_, at)| *at == file.bytes) {
            Some((hash, _)) => hash.check(self.snapshot.name.as_str(), file),
            None => Ok(()),
        }
    }

    /// Fills the buffer from a connection, which stays open where it has more to give.
    fn stream(
        &self,
        file: &RemoteFile,
        mut stream: Option<Stream>,
        offset: u64,
        ahead: u64,
        buffer: &mut [u8],
    ) -> Result<Option<Stream>> {
        let mut until = stream.as_ref().map_or(offset, |open| open.until);
        let mut done = 0;
        let mut patience = Patience::new(&self.hub.http);
        while done < buffer.len() {
            let at = offset + done as u64;
            if at == until {
                until = file.bytes.min(at + ahead);
            }
            let call = self.call(file, at, until);
            let mut open = match stream.take() {
                Some(open) => open,
                None => Stream { at, until, answer: self.part(file, &call, at)? },
            };
            let wanted = (buffer.len() - done).min((until - at) as usize);
            let (length, finding) = fill(&mut open.answer, &mut buffer[done..done + wanted]);
            done += length;
            open.at += length as u64;
            match finding {
                Some(finding) => {
                    patience.broken(&call, &open.answer.host, &finding, length as u64, GO_ON)?;
                }
                None if open.at == until => end(open.answer),
                None => stream = Some(open),
            }
        }
        Ok(stream)
    }

    /// Fills the buffer with a request for exactly its bytes.
    fn fetch(
        &self,
        file: &RemoteFile,
        offset: u64,
        buffer: &mut [u8],
        direct: &mut Option<String>,
    ) -> Result<()> {
        let mut done = 0;
        let mut patience = Patience::new(&self.hub.http);
        while done < buffer.len() {
            let at = offset + done as u64;
            let mut call = self.call(file, at, offset + buffer.len() as u64);
            let through_hub = call.url.clone();
            let is_direct = direct.is_some();
            call.url = direct.take().unwrap_or_else(|| through_hub.clone());
            let mut answer = match self.part(file, &call, at) {
                // An address that a redirect gave is good for some time only.
                Err(_) if is_direct => continue,
                other => other?,
            };
            *direct = Some(answer.address.clone()).filter(|address| *address != through_hub);
            let (length, finding) = fill(&mut answer, &mut buffer[done..]);
            done += length;
            match finding {
                Some(finding) => {
                    patience.broken(&call, &answer.host, &finding, length as u64, GO_ON)?;
                }
                None => end(answer),
            }
        }
        Ok(())
    }

    /// A request for the bytes of a file from `from` to before `end`.
    fn call(&self, file: &RemoteFile, from: u64, end: u64) -> Call<'_> {
        let Snapshot { name, commit, .. } = &self.snapshot;
        let url = self.hub.file_url(name, commit, &file.path);
        let call = Call::get(url, format!("read `{}` of `{name}`", file.path));
        // A whole small file is asked for as such; not every server knows ranges of those.
        if from == 0 && end == file.bytes {
            return call;
        }
        call.header("range", format!("bytes={from}-{}", end - 1))
    }

    /// Makes a request for a part. Errors: the server gives another one.
    fn part(&self, file: &RemoteFile, call: &Call<'_>, from: u64) -> Result<Answer> {
        let answer = self.hub.http.send(call)?;
        let whole = answer.status == 200 && answer.length().is_none_or(|n| n == file.bytes);
        let right = match answer.status {
            206 => answer.content_range() == Some((from, file.bytes)),
            _ => from == 0 && whole,
        };
        if right {
            return Ok(answer);
        }
        let problem = format!(
            "asked for bytes {from}- of {}, it has status {} and the range {:?}",
            file.bytes,
            answer.status,
            answer.content_range()
        );
        Err(HubError::Answer { attempt: call.attempt.clone(), host: answer.host, problem })
    }
}

/// Reads until the buffer is full; gives how much came, and what ended it too early.
fn fill(answer: &mut Answer, buffer: &mut [u8]) -> (usize, Option<String>) {
    let mut done = 0;
    while done < buffer.len() {
        match answer.read(&mut buffer[done..]) {
            Ok(0) => return (done, Some("ended the transfer".into())),
            Ok(length) => done += length,
            Err(error) => return (done, Some(io_in_words(&error))),
        }
    }
    (done, None)
}

/// Sees the end of an answer that has given all its bytes, so that its connection serves again.
fn end(mut answer: Answer) {
    // A fault there costs the connection, and nothing else.
    let _ = answer.read(&mut [0]);
}

impl Source for RangeSource {
    fn label(&self) -> &str {
        self.snapshot.name.as_str()
    }

    fn name(&self) -> &str {
        self.snapshot.name.as_str()
    }

    fn revision(&self) -> Option<&str> {
        Some(&self.snapshot.commit)
    }

    fn files(&self) -> &[SourceFile] {
        &self.files
    }

    fn read_at(&self, path: &str, offset: u64, buffer: &mut [u8]) -> w4pack_format::Result<()> {
        let place = || format!("{}/{path}", self.label());
        let Some(file) = self.file(path) else {
            let cause = io::Error::from(io::ErrorKind::NotFound);
            return Err(FormatError::Io { attempt: "read", path: place(), cause });
        };
        let wanted = buffer.len() as u64;
        if offset.checked_add(wanted).is_none_or(|end| end > file.bytes) {
            return Err(FormatError::Shrunk { file: place(), offset, wanted });
        }
        if buffer.is_empty() {
            return Ok(());
        }
        self.read(file, offset, buffer).map_err(|error| FormatError::Io {
            attempt: "read",
            path: place(),
            cause: io::Error::other(error),
        })
    }
}
