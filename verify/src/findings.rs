//! What the checks find on their way, gathered for the report.

use crate::ledger::Ledger;
use crate::report::{Fault, Item};

/// Grows from check to check.
#[derive(Default)]
pub struct Findings {
    /// What is wrong.
    pub faults: Vec<Fault>,
    /// What is accepted though it could be otherwise.
    pub notes: Vec<String>,
    /// Equal on both sides.
    pub copied: Vec<Item>,
    /// Not in the result.
    pub left_out: Vec<Item>,
    /// Where the bytes went.
    pub ledger: Ledger,
}

impl Findings {
    /// Notes something accepted.
    pub fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }
}
