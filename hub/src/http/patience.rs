//! How often an answer may break off before one gives up.

use super::{Call, Http};
use crate::Result;
use std::time::Duration;

/// A connection that gave less than this before it broke off was no use.
const USEFUL: u64 = 64 << 10;

/// See the module.
pub(crate) struct Patience<'a> {
    http: &'a Http,
    useless: u32,
    wait: Duration,
}

impl Patience<'_> {
    pub fn new(http: &Http) -> Patience<'_> {
        Patience { http, useless: 0, wait: http.retry.first_wait }
    }

    /// An answer of `host` broke off with `finding`, so many bytes after the one before: says so, with
    /// what comes next, and waits. Errors: that was once too often in a row.
    pub fn broken(
        &mut self,
        call: &Call<'_>,
        host: &str,
        finding: &str,
        gained: u64,
        next: &str,
    ) -> Result<()> {
        let retry = self.http.retry;
        let useful = gained >= USEFUL;
        self.useless = if useful { 1 } else { self.useless + 1 };
        if self.useless >= retry.tries {
            return Err(self.http.network(call, host, finding));
        }
        self.wait = if useful { retry.first_wait } else { self.wait * 2 };
        self.http.progress.note(&format!("{host} {finding}: {next}"));
        std::thread::sleep(self.wait.min(retry.longest_wait));
        Ok(())
    }
}
