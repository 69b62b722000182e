//! What a device's slots hold, taken out and put back: the ground of prefix reuse.
//!
//! Full layers keep every position, so a sequence can be cut to any length. A sliding layer is a
//! ring of `window` positions in which position `p` takes the place of `p - window`: cut to `p`, the
//! next query needs the `window - 1` positions before `p`, and a ring that has gone further has
//! overwritten some. Hence [`reaches`], and copies of the rings ([`Rings`]) at points worth going
//! back to.

use super::Slot;
use crate::error::{Result, RuntimeError};

/// The rings of all sliding layers at one length of a sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rings {
    /// Positions the sequence had.
    pub positions: usize,
    /// By owning sliding layer: keys, then values, of the slots in use, in the device's own form.
    pub bytes: Vec<u8>,
}

/// All that a slot holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contents {
    /// By owning full layer: keys, then values, of every position, in the device's own form.
    pub full: Vec<u8>,
    /// The rings, and how many positions there are.
    pub rings: Rings,
}

/// Whether rings that have seen `positions` hold what a sequence cut to `target` needs.
pub fn reaches(positions: usize, target: usize, window: usize) -> bool {
    target <= positions && (target == 0 || positions <= window || positions - target <= 1)
}

/// Reading and changing what slots hold between steps. An error leaves the slot as it was.
pub trait SlotMemory {
    /// Positions that a slot holds.
    fn positions(&self, slot: Slot) -> Result<usize>;

    /// Bytes that a slot takes by itself, beside what the device took for all.
    fn slot_bytes(&self, slot: Slot) -> Result<usize>;

    /// A copy of a slot's rings.
    fn save_rings(&mut self, slot: Slot) -> Result<Rings>;

    /// Cuts a slot to `target` positions, with its own rings or with those saved of it earlier.
    ///
    /// Errors: the slot holds fewer positions; the rings do not reach back so far, or are of another
    /// shape.
    fn restore(&mut self, slot: Slot, target: usize, rings: Option<&Rings>) -> Result<()>;

    /// A copy of all that a slot holds.
    fn export(&mut self, slot: Slot) -> Result<Contents>;

    /// Replaces all that a slot holds.
    ///
    /// Errors: contents of another shape; more positions than the slot may have.
    fn import(&mut self, slot: Slot, contents: &Contents) -> Result<()>;

    /// What the bits of keys and values depend on besides weights and tokens: the device's way of
    /// computing and storing. Contents move between devices of equal words only.
    fn arithmetic(&self) -> String;

    /// Whether a token of an answer leaves the same bits behind as the same token in a prompt.
    /// Where not, an answer cannot stand for a prompt that repeats it.
    fn answers_serve_as_prompts(&self) -> bool;
}

/// Contents or a target that a slot cannot take.
pub(crate) fn unfit<T>(problem: String) -> Result<T> {
    Err(RuntimeError::Snapshot { problem })
}

/// Refuses a target that rings of `positions` do not reach.
pub(crate) fn check_reach(positions: usize, target: usize, window: usize) -> Result<()> {
    if reaches(positions, target, window) {
        return Ok(());
    }
    unfit(format!(
        "rings of {window} that have seen {positions} positions cannot go back to {target}"
    ))
}

/// Refuses a target before which rings do not have what it needs: `oldest` is the first position that they
/// all have the row of. They may have lost more than their length tells, by a cut before this one or by
/// tokens that were tried.
pub(crate) fn check_rows(oldest: usize, target: usize, window: usize) -> Result<()> {
    if target == 0 || oldest <= (target + 1).saturating_sub(window) {
        return Ok(());
    }
    unfit(format!("rings of {window} begin at position {oldest} and cannot go back to {target}"))
}

/// Refuses bytes of another number than the slot has.
pub(crate) fn check_bytes(what: &str, found: usize, expected: usize) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    unfit(format!("the {what} have {found} bytes, but {expected} are needed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By simulation: a ring that writes position `p` into slot `p % window`.
    #[test]
    fn rings_reach_what_they_still_hold() {
        for window in 1..7 {
            for positions in 0..20usize {
                let mut ring = vec![None; window];
                (0..positions).for_each(|position| ring[position % window] = Some(position));
                for target in 0..25usize {
                    let needed = target.saturating_sub(window - 1)..target;
                    let holds = |position: usize| ring[position % window] == Some(position);
                    let expected = target <= positions && needed.clone().all(holds);
                    let found = reaches(positions, target, window);
                    assert!(!found || expected, "{window}: {positions} to {target}");
                    // A window of 1 needs no earlier position and could go anywhere: not a case
                    // worth a rule of its own.
                    if window > 1 {
                        assert_eq!(found, expected, "{window}: {positions} to {target}");
                    }
                }
            }
        }
    }
}
