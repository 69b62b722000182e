//! Does the proof see what it should? A good checkpoint is damaged at random places, in every known
//! way and under three disguises, and each time the verifier must say what, where, in which class.
//!
//! Read [`damages`] for the ways, [`disguise`](Disguise) for what an attacker does to the manifest,
//! [`checkpoint`] for the checkpoint in memory that is damaged.

mod checkpoint;
mod damages;
mod edits;
pub(crate) mod random;
mod table;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use w4pack_format::Result;
use w4pack_format::exact::EXACT_FILE;
use w4pack_format::manifest::{FileRecord, MANIFEST_FILE, Manifest};
use w4pack_format::source::Source;

use crate::report::{Fault, FaultClass, Report, Verdict};
use crate::{Options, Progress, verify};
use checkpoint::Pack;
use damages::{DAMAGES, Subject};
use random::Random;
pub use table::{Row, SelfTest};

/// What becomes of the manifest after the damage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Disguise {
    /// It stays as it was, so that its hashes tell of the damage as well.
    Stale,
    /// It is deleted.
    Deleted,
    /// Its hashes of the result are computed again, as an attacker would.
    Recomputed,
}

impl Disguise {
    /// All three.
    pub const ALL: [Disguise; 3] = [Disguise::Stale, Disguise::Deleted, Disguise::Recomputed];
}

/// Where a fault must be found. What is `None` may be anything.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Expected {
    class: Option<FaultClass>,
    file: String,
    tensor: Option<String>,
    row: Option<u64>,
    group: Option<u64>,
}

impl Expected {
    fn is_of(&self, fault: &Fault) -> bool {
        self.class == Some(fault.class)
            && self.file == fault.file
            && self.tensor == fault.tensor
            && (self.row.is_none() || self.row == fault.row)
            && (self.group.is_none() || self.group == fault.group)
    }
}

impl fmt::Display for Expected {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let class = self.class.map(FaultClass::name).unwrap_or_default();
        write!(out, "of class {class} in {}", self.file)?;
        if let Some(tensor) = &self.tensor {
            write!(out, ", {tensor}")?;
        }
        if let Some(row) = self.row {
            write!(out, ", row {row}")?;
        }
        if let Some(group) = self.group {
            write!(out, ", group {group}")?;
        }
        Ok(())
    }
}

/// What came of one trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// The damage was found at its place; or, undamaged, the checkpoint was proved.
    Right,
    /// The verdict was as if nothing had happened.
    Missed,
    /// Something was found, but not this, or not here.
    Elsewhere,
    /// The checkpoint holds no place for this damage.
    NoPlace,
}

/// Damages `packed`, which `source` proves, `trials` times.
///
/// Trial `n` is the same in every run with the same `seed`, whatever the number of threads: kinds
/// and disguises take turns, places are random. One trial in fifty leaves the checkpoint as it is.
/// Both sides are held in memory.
///
/// Errors: a side cannot be read; the checkpoint as it is is not proved.
pub fn self_test(
    packed: &Arc<dyn Source>,
    source: &Arc<dyn Source>,
    trials: u64,
    seed: u64,
    options: &Options,
    progress: &dyn Progress,
) -> Result<SelfTest> {
    let begin = Instant::now();
    let original = verify(packed.clone(), Some(source.clone()), options, &());
    if original.verdict != Verdict::Proved {
        return Ok(SelfTest::not_proved(original));
    }
    let pack = Pack::read(&**packed)?;
    let source = Pack::read(&**source)?.into_source();
    let sharded = pack.in_two_shards()?;
    let trial = Trial { pack: &pack, sharded: &sharded, source: &source, seed };
    progress.begin("damaging", trials);
    let next = AtomicU64::new(0);
    let threads = match options.threads {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        threads => threads,
    };
    let found = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|_| {
                scope.spawn(|| {
                    let mut found = Vec::new();
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        if number >= trials {
                            return Ok(found);
                        }
                        found.push(trial.run(number)?);
                        progress.advance(1);
                    }
                })
            })
            .collect();
        let join = "a thread of the self-test panicked";
        workers.into_iter().map(|worker| worker.join().expect(join)).collect::<Result<Vec<_>>>()
    })?;
    let mut rows = BTreeMap::new();
    for Found { kind, outcome, example } in found.into_iter().flatten() {
        let row: &mut Row = rows.entry(kind).or_insert_with(|| Row::of(DAMAGES.get(kind)));
        row.count(outcome, example);
    }
    Ok(SelfTest {
        trials,
        seed,
        seconds: begin.elapsed().as_secs_f64(),
        bytes: original.bytes,
        rows: rows.into_values().collect(),
        not_proved: None,
    })
}

/// What all trials share.
struct Trial<'a> {
    pack: &'a Pack,
    sharded: &'a Pack,
    source: &'a Arc<dyn Source>,
    seed: u64,
}

/// A trial's kind (the number of kinds: undamaged), outcome, and the report's words if it failed.
struct Found {
    kind: usize,
    outcome: Outcome,
    example: Option<(u64, String)>,
}

impl Trial<'_> {
    fn run(&self, number: u64) -> Result<Found> {
        let mut random = Random::of(self.seed, number);
        let disguise = Disguise::ALL[(number % 3) as usize];
        if number % 50 == 49 {
            return self.undamaged(number, disguise);
        }
        let kind = (number / 3) as usize % DAMAGES.len();
        let damage = &DAMAGES[kind];
        let sharded = damage.subject == Subject::Index || random.below(8) == 0;
        let mut pack = if sharded { self.sharded.clone() } else { self.pack.clone() };
        let found = |outcome, example| Ok(Found { kind, outcome, example });
        let expected = if damage.subject == Subject::Manifest {
            // A manifest that lies; deleting it would undo that.
            if disguise == Disguise::Recomputed {
                pack.recompute_manifest()?;
            }
            (damage.apply)(&mut pack, &mut random)
        } else {
            let expected = (damage.apply)(&mut pack, &mut random);
            match disguise {
                Disguise::Stale => {}
                Disguise::Deleted => pack.remove(MANIFEST_FILE),
                Disguise::Recomputed => pack.recompute_manifest()?,
            }
            expected
        };
        let Some(expected) = expected else { return found(Outcome::NoPlace, None) };
        let report = self.verify(pack);
        let outcome = if report.faults.is_empty() || report.exit_code() == 0 {
            Outcome::Missed
        } else if report.faults.iter().any(|fault| expected.is_of(fault)) {
            Outcome::Right
        } else {
            Outcome::Elsewhere
        };
        let wrong = outcome != Outcome::Right;
        found(outcome, wrong.then(|| (number, format!("expected a fault {expected}; {report}"))))
    }

    /// The checkpoint as it is, without its manifest, with one computed again, and, here and there,
    /// without its sidecar or in two shards: none of it is a fault.
    fn undamaged(&self, number: u64, disguise: Disguise) -> Result<Found> {
        let sharded = number / 50 % 3 == 1;
        let mut pack = if sharded { self.sharded.clone() } else { self.pack.clone() };
        if number / 50 % 3 == 2 && disguise != Disguise::Stale {
            pack.remove(EXACT_FILE);
        }
        match disguise {
            Disguise::Stale => {}
            Disguise::Deleted => pack.remove(MANIFEST_FILE),
            Disguise::Recomputed => pack.recompute_manifest()?,
        }
        let report = self.verify(pack);
        let right = report.verdict == Verdict::Proved;
        Ok(Found {
            kind: DAMAGES.len(),
            outcome: if right { Outcome::Right } else { Outcome::Elsewhere },
            example: (!right).then(|| (number, report.to_string())),
        })
    }

    fn verify(&self, pack: Pack) -> Report {
        let options = Options { threads: 1, ..Options::default() };
        verify(pack.into_source(), Some(self.source.clone()), &options, &())
    }
}

/// The files of a checkpoint, hashed anew.
fn records(pack: &Pack) -> Vec<FileRecord> {
    let record = |(path, content): (&String, &Arc<Vec<u8>>)| FileRecord {
        path: path.clone(),
        bytes: content.len() as u64,
        sha256: w4pack_format::digest::sha256(content),
    };
    pack.files().filter(|(path, _)| *path != MANIFEST_FILE).map(record).collect()
}

impl Pack {
    /// Gives the manifest the hashes of the files as they are.
    fn recompute_manifest(&mut self) -> Result<()> {
        let Some(old) = self.file(MANIFEST_FILE) else { return Ok(()) };
        let mut manifest = Manifest::parse(old)?;
        manifest.files = records(self);
        self.put(MANIFEST_FILE, manifest.to_bytes());
        Ok(())
    }
}
