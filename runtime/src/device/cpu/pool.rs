//! A fixed pool of threads that share one piece of work at a time.
//!
//! A decode step is some 250 short pieces of work one after the other, each a few hundred
//! microseconds long, so what counts is the time between two of them, and what happens when another
//! program takes a core away.
//!
//! - Work comes as numbered units. Every thread owns a contiguous range of them and takes from its
//!   front; one that has none left takes from the back of others' ranges. So memory is read in order
//!   as long as nobody is late, and a late thread is relieved of all but the unit it is in.
//! - Whoever waits spins for a moment and then sleeps: a core that idles is one that the system can
//!   give to the thread that is waited for.
//!
//! Tried: whoever waits asks for the first 256 KiB of its share of the next matrix, as the token before had them.
//! 0.61 of a plain read with that and 0.62 without (medians of ten in turn, Zen 4, two threads, decoding).
//!
//! A claimed unit is the permission to call the work: [`Pool::run`] returns when all units are
//! finished, so the work outlives every claim. A thread that wakes late finds no unit and touches
//! nothing.

use crate::error::{Result, RuntimeError};
use std::any::Any;
use std::cell::UnsafeCell;
use std::hint::spin_loop;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, Thread};

/// Turns of a spinning wait before it sleeps: some 30 to 100 microseconds, more than the way from
/// one product to the next.
const SPINS: usize = 4_000;

type Work<'a> = dyn Fn(usize) + Sync + 'a;

/// Threads that wait for work; the thread that brings it is one of them.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Held while there is work.
    running: Mutex<()>,
}

struct Shared {
    /// Number of the present work; a change wakes the workers.
    epoch: AtomicUsize,
    /// The workers are to end.
    ended: AtomicBool,
    /// The present work. Written when no unit is claimed, read by who has claimed one.
    work: UnsafeCell<Option<*const Work<'static>>>,
    /// By thread: the units of its range that nobody has claimed.
    ranges: Vec<Unclaimed>,
    /// Units that are not finished.
    unfinished: AtomicUsize,
    /// Who waits for them.
    waiter: Mutex<Option<Thread>>,
    /// The first panic of a unit.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: the work is shared among threads as `&(dyn Fn + Sync)` allows; access to the cell follows
// the claims, see `Shared::work`.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Pool {
    /// A pool of `threads`, the caller's included.
    ///
    /// Errors: no threads asked for, or the system gives none.
    pub fn new(threads: usize) -> Result<Self> {
        if threads == 0 {
            return Err(RuntimeError::Setting {
                name: "threads",
                value: "0".into(),
                expected: "at least 1".into(),
            });
        }
        let shared = Arc::new(Shared {
            epoch: AtomicUsize::new(0),
            ended: AtomicBool::new(false),
            work: UnsafeCell::new(None),
            ranges: (0..threads).map(|_| Unclaimed::default()).collect(),
            unfinished: AtomicUsize::new(0),
            waiter: Mutex::new(None),
            panic: Mutex::new(None),
        });
        let mut pool = Self { shared, workers: Vec::new(), running: Mutex::new(()) };
        for number in 1..threads {
            let shared = pool.shared.clone();
            let worker = std::thread::Builder::new()
                .name(format!("w4pack-{number}"))
                .spawn(move || shared.serve(number))
                .map_err(|cause| RuntimeError::Threads { threads, cause: cause.to_string() })?;
            pool.workers.push(worker);
        }
        Ok(pool)
    }

    /// How many threads share the work.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `work` once with each number below `units`, on all threads, and waits for the last.
    ///
    /// # Panics
    /// When a unit panics: with the first one's payload, after all units are done.
    pub fn run(&self, units: usize, work: impl Fn(usize) + Sync) {
        // Work inside work, or of two threads at once: whoever comes second helps himself.
        let Some(running) = try_lock(&self.running) else { return (0..units).for_each(work) };
        if units < 2 || self.workers.is_empty() {
            return (0..units).for_each(work);
        }
        let shared = &*self.shared;
        let work: *const Work<'_> = &work;
        // SAFETY: only the lifetime changes. The pointer is used by who has claimed a unit, and this
        // function returns (or goes on panicking) only when all units are finished.
        let work: *const Work<'static> = unsafe { std::mem::transmute(work) };
        // SAFETY: no unit is claimed: the last work is finished, and this thread holds `running`.
        unsafe { *shared.work.get() = Some(work) };
        *lock(&shared.waiter) = Some(std::thread::current());
        shared.unfinished.store(units, Ordering::Relaxed);
        let threads = self.threads();
        for (number, range) in shared.ranges.iter().enumerate() {
            range.fill(number * units / threads..(number + 1) * units / threads);
        }
        shared.epoch.fetch_add(1, Ordering::Release);
        for worker in self.workers.iter().take(units - 1) {
            worker.thread().unpark();
        }
        shared.take_part(0);
        wait(|| shared.unfinished.load(Ordering::Acquire) == 0);
        let panic = lock(&shared.panic).take();
        if let Some(payload) = panic {
            drop(running);
            resume_unwind(payload);
        }
    }

    /// Calls `work` with the number and the elements of every `length` elements of `all`; the last
    /// chunk may be shorter.
    pub fn for_each_chunk<T: Send>(
        &self,
        all: &mut [T],
        length: usize,
        work: impl Fn(usize, &mut [T]) + Sync,
    ) {
        let total = all.len();
        let first = Shareable(all.as_mut_ptr());
        self.run(total.div_ceil(length), |number| {
            let begin = number * length;
            // SAFETY: chunks of different numbers do not overlap, every number comes once, and all
            // lie inside `all`, which is borrowed mutably until `run` returns.
            let chunk = unsafe {
                let first = first.get().add(begin);
                std::slice::from_raw_parts_mut(first, length.min(total - begin))
            };
            work(number, chunk);
        });
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
        self.shared.epoch.fetch_add(1, Ordering::Release);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // A worker catches the panics of its units; it has none of its own.
            let _ = worker.join();
        }
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Pool").field("threads", &self.threads()).finish()
    }
}

impl Shared {
    /// A worker's life.
    fn serve(&self, number: usize) {
        let mut seen = 0;
        loop {
            wait(|| self.epoch.load(Ordering::Acquire) != seen);
            seen = self.epoch.load(Ordering::Acquire);
            if self.ended.load(Ordering::Relaxed) {
                return;
            }
            self.take_part(number);
        }
    }

    /// Does units of the present work until none is unclaimed: the own ones from the front, then
    /// others' from the back.
    fn take_part(&self, number: usize) {
        let mut done = 0;
        while let Some(unit) = self.ranges[number].claim_first() {
            self.call(unit);
            done += 1;
        }
        for step in 1..self.ranges.len() {
            let late = &self.ranges[(number + step) % self.ranges.len()];
            while let Some(unit) = late.claim_last() {
                self.call(unit);
                done += 1;
            }
        }
        // Release: whoever waits sees what the units have written.
        if done > 0 && self.unfinished.fetch_sub(done, Ordering::AcqRel) == done {
            let waiter = lock(&self.waiter).clone();
            if let Some(waiter) = waiter {
                waiter.unpark();
            }
        }
    }

    /// Does a claimed unit.
    fn call(&self, unit: usize) {
        // SAFETY: this unit is claimed and not yet counted as finished, so the cell is not written
        // and the work lives; the claim has made both visible.
        let work = unsafe { (*self.work.get()).map(|work| &*work) };
        let work = work.expect("units come with their work");
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| work(unit))) {
            lock(&self.panic).get_or_insert(payload);
        }
    }
}

/// A range of units, begin and end in one word, on a cache line of its own.
#[derive(Default)]
#[repr(align(128))]
struct Unclaimed(AtomicU64);

impl Unclaimed {
    fn fill(&self, units: Range<usize>) {
        let word = |unit: usize| u64::from(u32::try_from(unit).expect("units fit 32 bits"));
        // Release: a claim sees the work.
        self.0.store(word(units.start) << 32 | word(units.end), Ordering::Release);
    }

    fn claim_first(&self) -> Option<usize> {
        self.claim(|begin, end| (begin, begin + 1, end))
    }

    fn claim_last(&self) -> Option<usize> {
        self.claim(|begin, end| (end - 1, begin, end - 1))
    }

    /// Takes a unit as `choose` says: (unit, new begin, new end).
    fn claim(&self, choose: impl Fn(u32, u32) -> (u32, u32, u32)) -> Option<usize> {
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            let (begin, end) = ((word >> 32) as u32, word as u32);
            if begin >= end {
                return None;
            }
            let (unit, begin, end) = choose(begin, end);
            let rest = u64::from(begin) << 32 | u64::from(end);
            // A range that looks the same may be a later work's: then this is a claim of that one.
            match self.0.compare_exchange_weak(word, rest, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some(unit as usize),
                Err(found) => word = found,
            }
        }
    }
}

/// A pointer that threads may share; what they do with it is their concern.
struct Shareable<T>(*mut T);

impl<T> Shareable<T> {
    fn get(&self) -> *mut T {
        self.0
    }
}

// SAFETY: `for_each_chunk` gives every element to one thread only, and `T` may be sent there.
unsafe impl<T: Send> Sync for Shareable<T> {}

/// Spins, then sleeps, until `done`. Whoever makes it so unparks this thread afterwards.
fn wait(done: impl Fn() -> bool) {
    for _ in 0..SPINS {
        if done() {
            return;
        }
        spin_loop();
    }
    while !done() {
        std::thread::park();
    }
}

/// A lock whose holder may have panicked: what it guards is whole at any moment.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(std::sync::TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(std::sync::TryLockError::WouldBlock) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    /// Each unit once, and all of them before `run` returns.
    fn check(pool: &Pool, units: usize) {
        let calls: Vec<AtomicU32> = (0..units).map(|_| AtomicU32::new(0)).collect();
        pool.run(units, |unit| {
            calls[unit].fetch_add(1, Ordering::Relaxed);
        });
        assert!(calls.iter().all(|calls| calls.load(Ordering::Relaxed) == 1));
    }

    #[test]
    fn every_unit_is_done_once() {
        for threads in [1, 2, 3, 8] {
            let pool = Pool::new(threads).expect("threads start");
            for round in 0..2_000 {
                check(&pool, [0, 1, 2, 3, 7, 8, 9, 64, 1_000][round % 9]);
            }
        }
    }

    /// More threads than cores, several pools, and pauses in which workers fall asleep: a lost
    /// wake-up would hang here, a stale work would read freed memory.
    #[test]
    fn pools_live_beside_each_other_and_sleep_between() {
        std::thread::scope(|scope| {
            for seed in 0..4u64 {
                scope.spawn(move || {
                    let pool = Pool::new(2 + seed as usize).expect("threads start");
                    for round in 0..400u64 {
                        let mixed = (round + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
                        check(&pool, mixed as usize % 40);
                        if mixed.is_multiple_of(16) {
                            std::thread::sleep(std::time::Duration::from_micros(mixed % 700));
                        }
                    }
                });
            }
        });
    }

    #[test]
    fn chunks_are_given_out_without_overlap() {
        let pool = Pool::new(3).expect("threads start");
        for (length, chunk) in [(0, 4), (1, 4), (4, 4), (5, 4), (1_001, 10)] {
            let mut numbers = vec![usize::MAX; length];
            pool.for_each_chunk(&mut numbers, chunk, |number, chunk| chunk.fill(number));
            let expected: Vec<usize> = (0..length).map(|index| index / chunk).collect();
            assert_eq!(numbers, expected);
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_goes_on() {
        let pool = Pool::new(3).expect("threads start");
        for broken in [0, 5, 9] {
            let finished = AtomicU32::new(0);
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                pool.run(10, |unit| {
                    assert_ne!(unit, broken, "unit {unit}");
                    finished.fetch_add(1, Ordering::Relaxed);
                });
            }));
            let payload = outcome.expect_err("a panic");
            let words = payload.downcast_ref::<String>().expect("words");
            assert!(words.contains(&format!("unit {broken}")), "{words}");
            assert_eq!(finished.load(Ordering::Relaxed), 9);
            check(&pool, 10);
        }
    }

    #[test]
    fn a_late_thread_is_relieved_of_its_units() {
        let pool = Pool::new(2).expect("threads start");
        let slow = std::thread::current().id();
        let (own, others) = (AtomicU32::new(0), AtomicU32::new(0));
        pool.run(64, |_| {
            if std::thread::current().id() != slow {
                others.fetch_add(1, Ordering::Relaxed);
                return;
            }
            own.fetch_add(1, Ordering::Relaxed);
            // Late until the other one has done more than its half, or ever so long.
            let begin = std::time::Instant::now();
            let limit = std::time::Duration::from_secs(2);
            while others.load(Ordering::Relaxed) < 33 && begin.elapsed() < limit {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        });
        assert!(own.load(Ordering::Relaxed) < 32, "nobody helped");
    }

    #[test]
    fn work_inside_work_is_done_by_its_own_thread() {
        let pool = Pool::new(2).expect("threads start");
        let inner = AtomicU32::new(0);
        pool.run(4, |_| {
            pool.run(3, |_| {
                inner.fetch_add(1, Ordering::Relaxed);
            });
        });
        assert_eq!(inner.load(Ordering::Relaxed), 12);
    }
}
