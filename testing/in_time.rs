//! Limits of time, for tests of every crate (`#[path = "../../testing/in_time.rs"]`).
//!
//! A machine has other work as well, and may stand still for seconds. So no test holds one attempt to a
//! limit: what is too slow by itself is too slow in all of several.

use std::fmt::Display;
use std::time::{Duration, Instant};

/// How often something may take too long before that is its own fault.
const ATTEMPTS: usize = 5;

/// Does something that must take less than `limit`, till it has; gives what came of it then.
pub fn in_time<T>(what: impl Display, limit: Duration, mut attempt: impl FnMut() -> T) -> T {
    let mut least = Duration::MAX;
    for _ in 0..ATTEMPTS {
        let begun = Instant::now();
        let outcome = attempt();
        let took = begun.elapsed();
        if took < limit {
            return outcome;
        }
        least = least.min(took);
    }
    panic!("{what} took {least:?} in the quickest of {ATTEMPTS} attempts")
}
