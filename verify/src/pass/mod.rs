//! One pass over the source: every byte is read once, and everything that wants it gets it.
//!
//! ```text
//! reader: reads a file from its first byte to its last, and takes its SHA-256 on the way
//!    ├─> digests: the hash of each tensor, in the order of the bytes
//!    └─> workers: blocks held against the result, in any order ─> gathered in order
//! beside them: the SHA-256 of the result's files
//! ```
//!
//! A SHA-256 has one end and one beginning, so each long one has a thread of its own; the judging
//! spreads over the others. There are as many blocks on the way as there are buffers, which bounds
//! the memory and keeps the reader from running ahead.

mod gather;
mod tape;
mod work;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use w4pack_format::checkpoint::Checkpoint;
use w4pack_format::digest::{Blake3Hasher, Hasher};
use w4pack_format::{FormatError, Result};

use crate::pair::{EqualPair, PackedPair, Pairing};
use crate::progress::Progress;
use crate::prove::Tally;
use crate::ranges::{Differences, Range};
use crate::report::Fault;
use crate::sidecar::Sidecar;
use gather::Gathered;
use tape::{Block, Buffers, Tape};
use work::{Done, Worker};

/// What a source tensor is held against.
#[derive(Clone, Copy)]
pub enum Task<'a> {
    /// Codes and steps.
    Prove(&'a PackedPair),
    /// The same bytes.
    Copy(&'a EqualPair),
    /// Nothing: it is left out, which its hash is to say.
    LeftOut,
    /// Nothing: it has no partner, and a fault says so.
    Alone,
}

/// A part of a source tensor and its task. Most tensors are one part; a stack of experts has one for
/// each matrix.
pub struct Part<'a> {
    /// Bytes of the tensor.
    pub bytes: std::ops::Range<u64>,
    /// What they are held against.
    pub task: Task<'a>,
}

/// The parts of every source tensor, in the order of their bytes, without gaps.
pub type Tasks<'a> = BTreeMap<&'a str, Vec<Part<'a>>>;

/// What is hashed beside what the tasks ask for.
#[derive(Clone, Copy, Default)]
pub struct Wanted {
    /// SHA-256 of the source's weight files, and the hash of every source tensor.
    pub source: bool,
    /// SHA-256 of the result's files.
    pub result: bool,
}

/// Both sides, and what the pass is to do.
pub struct Pass<'a> {
    /// The source.
    pub source: &'a Checkpoint,
    /// The result.
    pub result: &'a Checkpoint,
    /// The result's sidecar.
    pub sidecar: Option<&'a Sidecar>,
    /// What belongs to what.
    pub pairing: &'a Pairing,
    /// What is hashed.
    pub wanted: Wanted,
    /// Threads that judge; 0: as many as there are cores.
    pub threads: usize,
    /// Who hears of it.
    pub progress: &'a dyn Progress,
}

/// What the pass has found.
#[derive(Default)]
pub struct Outcome {
    /// Packed tensors, by module.
    pub tallies: BTreeMap<String, Tally>,
    /// Entries of the sidecar that cannot be read.
    pub sidecar_faults: Vec<Fault>,
    /// Copied tensors, by the result's name.
    pub copies: BTreeMap<String, Differences>,
    /// Copied tensors that the layout packs, and that have a group off the grid.
    pub off_grid: BTreeSet<String>,
    /// SHA-256.
    pub hashes: Hashes,
}

/// Hashes of what was read, in hexadecimal.
#[derive(Default)]
pub struct Hashes {
    /// SHA-256 of the source's weight files.
    pub source_files: BTreeMap<String, String>,
    /// Of source tensors.
    pub tensors: BTreeMap<String, TensorHashes>,
    /// SHA-256 of copied tensors, by the result's name.
    pub copies: BTreeMap<String, String>,
    /// SHA-256 of the result's files.
    pub result_files: BTreeMap<String, String>,
}

/// Hashes of one tensor.
#[derive(Default)]
pub struct TensorHashes {
    /// Where all source tensors are wanted.
    pub blake3: Option<String>,
    /// Of what is copied or left out as a whole.
    pub sha256: Option<String>,
}

/// The first thing that went wrong in any thread; the others stop when they see it.
#[derive(Default)]
struct Failure {
    seen: AtomicBool,
    error: Mutex<Option<FormatError>>,
}

impl Failure {
    fn is_seen(&self) -> bool {
        self.seen.load(Ordering::Relaxed)
    }

    /// Keeps an error, the first of all; gives the value of a success.
    fn keep<T>(&self, outcome: Result<T>) -> Option<T> {
        outcome
            .map_err(|error| {
                let mut first = self.error.lock().unwrap_or_else(PoisonError::into_inner);
                first.get_or_insert(error);
                self.seen.store(true, Ordering::Relaxed);
            })
            .ok()
    }
}

/// Hashes of one tensor, on the way.
struct TensorHashers {
    blake3: Option<Blake3Hasher>,
    sha256: Option<Hasher>,
}

impl TensorHashers {
    fn update(&mut self, bytes: &[u8]) {
        self.blake3.iter_mut().for_each(|blake3| blake3.update(bytes));
        self.sha256.iter_mut().for_each(|sha256| sha256.update(bytes));
    }

    fn finish(self) -> TensorHashes {
        TensorHashes {
            blake3: self.blake3.map(Blake3Hasher::finish),
            sha256: self.sha256.map(Hasher::finish),
        }
    }
}

impl Pass<'_> {
    /// Reads both sides and judges. The answer does not depend on the number of threads.
    ///
    /// Errors: a side cannot be read, or is shorter than when it was opened.
    pub fn run(self) -> Result<Outcome> {
        let threads = match self.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            threads => threads,
        };
        let tasks = self.tasks();
        let failure = Failure::default();
        let buffers = Buffers::new(2 * threads + 6);
        let (to_digests, for_digests) = channel();
        let (to_workers, for_workers) = channel();
        let (to_gather, for_gather) = channel();
        let for_workers = Mutex::new(for_workers);
        let tape = Tape {
            source: self.source,
            tasks: &tasks,
            hashed: self.wanted.source,
            progress: self.progress,
        };

        let mut outcome = std::thread::scope(|scope| {
            let (failure, tasks, pass, for_workers) = (&failure, &tasks, &self, &for_workers);
            let reader = scope.spawn(move || {
                let send = |block: Arc<Block>| {
                    // Both threads stay until this one hangs up.
                    let _ = to_digests.send(block.clone());
                    let _ = to_workers.send(block);
                    !failure.is_seen()
                };
                failure.keep(tape.play(&buffers, send)).unwrap_or_default()
            });
            let digests = scope.spawn(move || pass.digest(tasks, &for_digests));
            let result_files =
                scope.spawn(move || failure.keep(pass.hash_result(failure)).unwrap_or_default());
            for _ in 0..threads {
                let to_gather = to_gather.clone();
                scope.spawn(move || pass.work(tasks, for_workers, &to_gather, failure));
            }
            drop(to_gather);
            let Gathered { tallies, copies, off_grid, sidecar_faults } =
                Gathered::of(&for_gather, tasks, pass);
            let join = "a thread of the pass panicked";
            let (tensors, copied) = digests.join().expect(join);
            let hashes = Hashes {
                source_files: reader.join().expect(join),
                tensors,
                copies: copied,
                result_files: result_files.join().expect(join),
            };
            Outcome { tallies, sidecar_faults, copies, off_grid, hashes }
        });
        if let Some(error) = failure.error.into_inner().unwrap_or_else(PoisonError::into_inner) {
            return Err(error);
        }
        // What has no bytes came by in no block.
        let is_empty = |name: &str| self.source.tensor(name).is_some_and(|t| t.info.bytes() == 0);
        for (name, parts) in tasks.iter().filter(|(name, _)| is_empty(name)) {
            let hashes = self.hashers(parts).finish();
            if let [Part { task: Task::Copy(pair), .. }] = parts[..] {
                outcome.copies.insert(pair.result.clone(), Differences::default());
                outcome
                    .hashes
                    .copies
                    .extend(hashes.sha256.clone().map(|h| (pair.result.clone(), h)));
            }
            outcome.hashes.tensors.insert(name.to_string(), hashes);
        }
        Ok(outcome)
    }

    /// What each source tensor is held against.
    fn tasks(&self) -> Tasks<'_> {
        let pairing = self.pairing;
        let mut tasks: Tasks<'_> = BTreeMap::new();
        let mut add = |name, begin: u64, bytes: u64, task| {
            let bytes = begin..begin + bytes;
            tasks.entry(name).or_default().push(Part { bytes, task });
        };
        for pair in &pairing.packed {
            let [rows, columns] = pair.shape.map(|number| number as u64);
            let row = 2 * columns;
            add(&*pair.source, row * pair.source_first_row, row * rows, Task::Prove(pair));
        }
        for pair in &pairing.copies {
            let bytes = self.result.tensor(&pair.result).map_or(0, |found| found.info.bytes());
            add(&*pair.other, pair.other_begin, bytes, Task::Copy(pair));
        }
        for name in &pairing.left_out {
            let bytes = self.source.tensor(name).map_or(0, |found| found.info.bytes());
            add(name, 0, bytes, Task::LeftOut);
        }
        for name in self.source.names() {
            let bytes = self.source.tensor(name).map_or(0, |found| found.info.bytes());
            fill(tasks.entry(name).or_default(), bytes);
        }
        tasks
    }

    /// The thread that hashes tensors and copied parts of them, block after block.
    fn digest(
        &self,
        tasks: &Tasks<'_>,
        blocks: &Receiver<Arc<Block>>,
    ) -> (BTreeMap<String, TensorHashes>, BTreeMap<String, String>) {
        let (mut found, mut copied) = (BTreeMap::new(), BTreeMap::new());
        let mut open: Option<TensorHashers> = None;
        let mut open_part: Option<Hasher> = None;
        for block in blocks {
            let Some(parts) = tasks.get(&*block.tensor) else { continue };
            let hashers = open.get_or_insert_with(|| self.hashers(parts));
            hashers.update(block.bytes());
            if let (Task::Copy(pair), true) = (parts[block.part].task, parts.len() > 1) {
                open_part.get_or_insert_default().update(block.bytes());
                if block.is_last {
                    copied
                        .extend(open_part.take().map(|part| (pair.result.clone(), part.finish())));
                }
            }
            if block.ends_tensor
                && let Some(hashers) = open.take()
            {
                let hashes = hashers.finish();
                if let [Part { task: Task::Copy(pair), .. }] = parts[..] {
                    copied.extend(hashes.sha256.clone().map(|hash| (pair.result.clone(), hash)));
                }
                found.insert(block.tensor.to_string(), hashes);
            }
        }
        (found, copied)
    }

    /// The hashes that a tensor needs.
    fn hashers(&self, parts: &[Part<'_>]) -> TensorHashers {
        let is_listed = |part: &Part<'_>| matches!(part.task, Task::Copy(_) | Task::LeftOut);
        TensorHashers {
            blake3: self.wanted.source.then(Blake3Hasher::default),
            sha256: parts.iter().all(is_listed).then(Hasher::default),
        }
    }

    /// The thread that hashes the result's files.
    fn hash_result(&self, failure: &Failure) -> Result<BTreeMap<String, String>> {
        let mut hashes = BTreeMap::new();
        let files = &**self.result.source();
        for file in files.files().iter().filter(|_| self.wanted.result) {
            let mut hasher = Hasher::default();
            Range::of_file(files, &file.path).for_each_block(|_, block| {
                hasher.update(block);
                Ok(!failure.is_seen())
            })?;
            hashes.insert(file.path.clone(), hasher.finish());
        }
        Ok(hashes)
    }

    /// A thread that judges blocks.
    fn work(
        &self,
        tasks: &Tasks<'_>,
        blocks: &Mutex<Receiver<Arc<Block>>>,
        to_gather: &Sender<Done>,
        failure: &Failure,
    ) {
        let mut worker = Worker::new(self.result, self.sidecar.is_some());
        loop {
            let next = blocks.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok(block) = next else { return };
            let Some(parts) = tasks.get(&*block.tensor) else { continue };
            if failure.is_seen() {
                continue;
            }
            if let Some(found) = failure.keep(worker.judge(parts[block.part].task, &block)) {
                self.progress.advance(found.result_bytes());
                // The gatherer stays until all workers have hung up.
                let _ = to_gather.send(Done { block, found });
            }
        }
    }
}

/// Sorts the parts of a tensor of so many bytes, and names what nothing is held against.
fn fill(parts: &mut Vec<Part<'_>>, bytes: u64) {
    parts.sort_by_key(|part| part.bytes.start);
    let mut filled = Vec::with_capacity(parts.len());
    let mut end = 0;
    for part in parts.drain(..) {
        if part.bytes.start > end {
            filled.push(Part { bytes: end..part.bytes.start, task: Task::Alone });
        }
        end = part.bytes.end;
        filled.push(part);
    }
    if end < bytes || filled.is_empty() {
        filled.push(Part { bytes: end..bytes, task: Task::Alone });
    }
    *parts = filled;
}
