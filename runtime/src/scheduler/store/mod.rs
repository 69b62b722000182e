//! Prompts that survive a restart: a folder of [`Record`]s, bounded, the least recently used
//! dropped first.
//!
//! A file is named after its content. It is written beside its name by a thread of its own and
//! renamed when it is whole; a file that is torn, changed or of something else is a miss. Files are
//! readable by their owner only: prompts are private.

mod record;

pub(super) use record::{Head, Record};

use crate::error::{Result, RuntimeError};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

/// What files of ours end in.
const SUFFIX: &str = ".w4prompt";
/// What files that are being written begin with.
const PARTIAL: &str = ".w4pack-partial-";
/// A file still being written after so long was left behind by a process that was killed.
const ABANDONED: Duration = Duration::from_secs(3600);

/// Where prompts are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PromptCache {
    /// The folder; made if it is not there.
    pub folder: PathBuf,
    /// Bytes that all its prompts may take together.
    pub limit: u64,
    /// What the weights are, see [`crate::weights::fingerprint`].
    pub weights: [u8; 32],
}

/// The prompts of a folder.
pub(super) struct Store {
    identity: [u8; 32],
    index: Arc<Mutex<Index>>,
    writer: Option<mpsc::SyncSender<Box<Record>>>,
    thread: Option<JoinHandle<()>>,
}

/// What is known of the folder.
struct Index {
    folder: PathBuf,
    limit: u64,
    /// Records that could not be written.
    failures: u64,
    /// By key.
    entries: BTreeMap<String, Entry>,
}

struct Entry {
    head: Head,
    bytes: u64,
    used: SystemTime,
}

impl Store {
    /// Looks through the folder and starts the writing thread.
    ///
    /// `arithmetic`: what keys and values depend on besides weights and tokens. Errors: the folder
    /// cannot be made or read.
    pub fn open(cache: &PromptCache, arithmetic: &str) -> Result<Self> {
        let PromptCache { folder, limit, weights } = cache;
        let fail =
            |cause| RuntimeError::PromptCache { folder: folder.display().to_string(), cause };
        make_private(folder).map_err(fail)?;
        let mut hasher = blake3::Hasher::new_derive_key("w4pack prompt cache, what made a prompt");
        hasher.update(weights);
        hasher.update(arithmetic.as_bytes());
        let identity = *hasher.finalize().as_bytes();
        let entries = look_through(folder).map_err(fail)?;
        let mut index = Index { folder: folder.clone(), limit: *limit, failures: 0, entries };
        index.keep_within(0);
        let index = Arc::new(Mutex::new(index));
        // One is written while one waits: more would hold more memory than slots do.
        let (writer, records) = mpsc::sync_channel(1);
        let shared = index.clone();
        let thread = std::thread::Builder::new()
            .name("w4pack-prompts".into())
            .spawn(move || write_all(&records, &shared))
            .map_err(|cause| RuntimeError::Threads { threads: 1, cause: cause.to_string() })?;
        Ok(Self { identity, index, writer: Some(writer), thread: Some(thread) })
    }

    /// What writes records here.
    pub fn identity(&self) -> [u8; 32] {
        self.identity
    }

    /// Bytes of all prompts.
    pub fn bytes(&self) -> u64 {
        locked(&self.index).bytes()
    }

    /// Records that could not be written.
    pub fn failures(&self) -> u64 {
        locked(&self.index).failures
    }

    /// Whether these very tokens are kept.
    pub fn holds(&self, tokens: &[u32]) -> bool {
        locked(&self.index).entries.contains_key(&record::key(&self.identity, tokens))
    }

    /// The key of the record that `reuse` likes best, and how much it likes it.
    pub fn best(&self, reuse: impl Fn(&Head) -> usize) -> Option<(String, usize)> {
        let index = locked(&self.index);
        let own = index.entries.iter().filter(|(_, entry)| entry.head.identity == self.identity);
        let liked = own.map(|(key, entry)| (key, reuse(&entry.head)));
        liked.max_by_key(|&(_, reuse)| reuse).map(|(key, reuse)| (key.clone(), reuse))
    }

    /// Has a record read by a thread of its own; `None` is a miss, and so is a sender dropped.
    pub fn load_elsewhere(&self, key: String, loaded: mpsc::Sender<Option<Record>>) {
        let (identity, index) = (self.identity, self.index.clone());
        let work = move || {
            // The job may have been broken off meanwhile.
            let _ = loaded.send(load(&key, &identity, &index));
        };
        // Without a thread the sender is dropped.
        let _ = std::thread::Builder::new().name("w4pack-load".into()).spawn(work);
    }

    /// Has a record written; `false` if the thread is still busy with others.
    pub fn save(&self, record: Record) -> bool {
        self.writer.as_ref().is_some_and(|writer| writer.try_send(Box::new(record)).is_ok())
    }

    /// The same, waiting for the thread.
    pub fn save_patiently(&self, record: Record) {
        // Fails only if the thread has panicked, and then nothing more can be kept.
        let _ = self.writer.as_ref().map(|writer| writer.send(Box::new(record)));
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        drop(self.writer.take());
        // Had it ended by a panic, the panic's own message has been printed.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn locked(index: &Mutex<Index>) -> MutexGuard<'_, Index> {
    index.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Index {
    fn path(&self, key: &str) -> PathBuf {
        self.folder.join(format!("{key}{SUFFIX}"))
    }

    fn bytes(&self) -> u64 {
        self.entries.values().map(|entry| entry.bytes).sum()
    }

    fn touch(&mut self, key: &str) {
        let now = SystemTime::now();
        if let Some(entry) = self.entries.get_mut(key) {
            entry.used = now;
        }
        // The next start orders by these times; one that cannot be set is an older one.
        let _ = File::options().append(true).open(self.path(key)).and_then(|f| f.set_modified(now));
    }

    fn remove(&mut self, key: &str) {
        self.entries.remove(key);
        // It may be gone already, or another process's.
        let _ = fs::remove_file(self.path(key));
    }

    /// Drops the earlier states of a conversation that `head` serves as well.
    fn remove_what_serves_no_more(&mut self, head: &Head) {
        let replaced = |earlier: &Head| {
            let end = earlier.tokens.len();
            earlier.identity == head.identity
                && end < head.tokens.len()
                && head.tokens.starts_with(&earlier.tokens)
                && earlier.serving <= head.serving
                && head.rings.iter().any(|&(positions, _)| positions == end)
        };
        let entries = self.entries.iter().filter(|(_, entry)| replaced(&entry.head));
        let keys: Vec<String> = entries.map(|(key, _)| key.clone()).collect();
        keys.iter().for_each(|key| self.remove(key));
    }

    /// Drops what was not used for longest until `more` bytes have room.
    fn keep_within(&mut self, more: u64) {
        while self.bytes().saturating_add(more) > self.limit {
            let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.used);
            let Some(key) = oldest.map(|(key, _)| key.clone()) else { return };
            self.remove(&key);
        }
    }
}

/// Reads a record; `None` is a miss.
fn load(key: &str, identity: &[u8; 32], index: &Mutex<Index>) -> Option<Record> {
    let path = locked(index).path(key);
    let own = |record: &Record| record.identity == *identity && record.head().key() == key;
    let record = read(&path).ok().flatten().filter(own);
    let mut index = locked(index);
    match &record {
        Some(_) => index.touch(key),
        None => index.remove(key),
    }
    record
}

/// Makes the folder, for its owner only.
fn make_private(folder: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}

/// Every whole head in the folder. Files of ours that have none are removed, others left alone.
fn look_through(folder: &Path) -> io::Result<BTreeMap<String, Entry>> {
    let mut entries = BTreeMap::new();
    for file in fs::read_dir(folder)? {
        let file = file?;
        let Ok(name) = file.file_name().into_string() else { continue };
        let Ok(data) = file.metadata() else { continue };
        let used = data.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        if name.starts_with(PARTIAL) && used.elapsed().is_ok_and(|age| age > ABANDONED) {
            // Another start may be removing it as well.
            let _ = fs::remove_file(file.path());
        }
        let Some(key) = name.strip_suffix(SUFFIX).filter(|key| is_key(key)) else { continue };
        let head = File::open(file.path())
            .and_then(|file| Head::read(&mut BufReader::new(file), &mut blake3::Hasher::new()));
        match head {
            Ok(Some(head)) if head.key() == key && head.file_bytes() == Some(data.len()) => {
                entries.insert(key.to_string(), Entry { head, bytes: data.len(), used });
            }
            Ok(_) => drop(fs::remove_file(file.path())),
            // What cannot be read is a miss.
            Err(_) => {}
        }
    }
    Ok(entries)
}

fn is_key(name: &str) -> bool {
    name.len() == 64 && name.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn read(path: &Path) -> io::Result<Option<Record>> {
    let file = File::open(path)?;
    let length = file.metadata()?.len();
    Record::read(&mut BufReader::with_capacity(1 << 20, file), length)
}

/// The writing thread: until the store is dropped.
fn write_all(records: &mpsc::Receiver<Box<Record>>, index: &Mutex<Index>) {
    for record in records {
        let head = record.head();
        let Some(bytes) = head.file_bytes() else { continue };
        let (folder, limit) = {
            let index = locked(index);
            (index.folder.clone(), index.limit)
        };
        if bytes > limit {
            continue;
        }
        locked(index).keep_within(bytes);
        let path = locked(index).path(&head.key());
        if let Err(error) = write(&folder, &path, &record) {
            // The answer is not touched by this; the next prompt may find room.
            locked(index).failures += 1;
            eprintln!("could not keep a prompt in `{}`: {error}", folder.display());
            continue;
        }
        let mut index = locked(index);
        index.remove_what_serves_no_more(&head);
        let entry = Entry { bytes, used: SystemTime::now(), head };
        index.entries.insert(entry.head.key(), entry);
    }
}

fn write(folder: &Path, path: &Path, record: &Record) -> io::Result<()> {
    let mut file = tempfile::Builder::new().prefix(PARTIAL).tempfile_in(folder)?;
    let mut buffered = BufWriter::with_capacity(1 << 20, file.as_file_mut());
    record.write(&mut buffered)?;
    buffered.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
    file.persist(path)?;
    Ok(())
}
