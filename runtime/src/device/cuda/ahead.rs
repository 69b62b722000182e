//! Which greedy step the card runs ahead of the host, and whether one pays: no card is needed to know.
//!
//! The card knows the token of an answer's next step before the host does. So the next step is launched before
//! the host waits for what this one has chosen, and the card never waits for the host. It is a guess that the
//! host will ask for just that step; where it asks for something else, the step has run for nothing: its keys
//! and values lie behind the end of the sequence, where nobody reads them.

use super::When;
use crate::device::Slot;

/// Steps that go on from each other and together save what one that runs for nothing takes: about 3 % of a step
/// each. By the rule below, what is lost is never much more than what has been gained.
const PAYS: usize = 32;

/// The steps of an answer use the card's two `Step`s in turn.
pub(super) type Turn = usize;

/// The turn of a step that the host begins.
pub(super) const BEGUN_BY_HOST: Turn = 0;

/// The one behind it and before it.
pub(super) fn other(turn: Turn) -> Turn {
    1 - turn
}

/// The greedy step that goes on from the last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Next {
    slot: Slot,
    position: usize,
    /// What the last step has chosen, once the host knows.
    token: Option<u32>,
    /// If the card is at it already.
    under_way: Option<Turn>,
}

/// What is under way, and what came of those before.
#[derive(Debug)]
pub(super) struct Ahead {
    run: When,
    next: Option<Next>,
    /// Steps that have gone on from the one before, up to now.
    in_row: usize,
    /// So many of them come before a step is run ahead.
    needed: usize,
    /// Steps run ahead that were of use since one was not.
    used: usize,
    /// All that ever were.
    taken: usize,
}

impl Ahead {
    pub fn new(run: When) -> Self {
        Self { run, next: None, in_row: 0, needed: 1, used: 0, taken: 0 }
    }

    /// Steps that were taken while under way.
    pub fn taken(&self) -> usize {
        self.taken
    }

    /// Whether the step behind the one that is asked for should be run ahead.
    pub fn pays(&self) -> bool {
        match self.run {
            When::Never => false,
            When::WhenItPays => self.in_row >= self.needed,
            When::Always => true,
        }
    }

    /// The host asks for a greedy step: the turn in which the card is at just this one, if it is.
    ///
    /// Slot, position and token tell whether it is. A slot that was cut or given back meanwhile is not at this
    /// position, and comes there again by other work of the card only; before that [`Self::forget`] is called.
    pub fn take(&mut self, slot: Slot, position: usize, token: u32) -> Option<Turn> {
        let is_asked_for =
            |next: &Next| (next.slot, next.position, next.token) == (slot, position, Some(token));
        let Some(next) = self.next.take_if(|next| is_asked_for(next)) else {
            self.in_row = 0;
            return None;
        };
        self.in_row += 1;
        if next.under_way.is_some() {
            self.used += 1;
            self.taken += 1;
        }
        next.under_way
    }

    /// The card begins with the step behind the last one, whose choice nobody knows yet.
    pub fn begins(&mut self, slot: Slot, position: usize, turn: Turn) {
        self.next = Some(Next { slot, position, token: None, under_way: Some(turn) });
    }

    /// The last step has chosen what would come next.
    pub fn chose(&mut self, slot: Slot, position: usize, token: u32) {
        let under_way = self.next.and_then(|next| next.under_way);
        self.next = Some(Next { slot, position, token: Some(token), under_way });
    }

    /// The card is wanted for something else. Returns whether it is at a step that was run for nothing.
    pub fn forget(&mut self) -> bool {
        let Some(next) = self.next.take() else { return false };
        self.in_row = 0;
        let is_lost = next.under_way.is_some();
        if is_lost {
            self.needed = if self.used >= PAYS { 1 } else { PAYS };
            self.used = 0;
        }
        is_lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOT: Slot = Slot(2);

    /// A greedy step of the device: whether it was under way. Step `position` chooses `position + 100`.
    fn step(ahead: &mut Ahead, slot: Slot, position: usize, token: u32) -> bool {
        let taken = ahead.take(slot, position, token);
        if taken.is_none() {
            // The device gives the card other work.
            ahead.forget();
        }
        if ahead.pays() {
            ahead.begins(slot, position + 1, other(taken.unwrap_or(BEGUN_BY_HOST)));
        }
        ahead.chose(slot, position + 1, position as u32 + 100);
        taken.is_some()
    }

    /// Steps that go on from `position` on, the first one with any token: how many were under way.
    fn steps(ahead: &mut Ahead, position: usize, count: usize) -> usize {
        let run = (position..position + count)
            .filter(|&at| step(ahead, SLOT, at, if at == position { 7 } else { at as u32 + 99 }));
        run.count()
    }

    #[test]
    fn only_the_step_that_goes_on_is_taken() {
        for (slot, position, token) in [(Slot(0), 6, 105), (SLOT, 5, 105), (SLOT, 6, 106)] {
            let mut ahead = Ahead::new(When::Always);
            assert!(!step(&mut ahead, SLOT, 5, 1));
            assert!(!step(&mut ahead, slot, position, token), "{slot:?} {position} {token}");
        }
        let mut ahead = Ahead::new(When::Always);
        assert!(!step(&mut ahead, SLOT, 5, 1));
        assert!(step(&mut ahead, SLOT, 6, 105));
        assert!(step(&mut ahead, SLOT, 7, 106));
        assert!(ahead.forget());
        assert!(!ahead.forget(), "there is nothing any more");
        assert!(!step(&mut ahead, SLOT, 8, 107), "other work came between");
    }

    /// A step whose choice the host never came to know is no one's, and is waited for.
    #[test]
    fn a_step_behind_a_fault_is_not_taken() {
        let mut ahead = Ahead::new(When::Always);
        ahead.begins(SLOT, 6, 1);
        assert_eq!(ahead.take(SLOT, 6, 105), None);
        assert!(ahead.forget());
    }

    #[test]
    fn turns_alternate() {
        let mut ahead = Ahead::new(When::Always);
        step(&mut ahead, SLOT, 5, 1);
        for position in 6..10 {
            let turn = ahead.take(SLOT, position, position as u32 + 99).expect("it is under way");
            assert_eq!(turn, (position + 1) % 2);
            ahead.begins(SLOT, position + 1, other(turn));
            ahead.chose(SLOT, position + 1, position as u32 + 100);
        }
    }

    #[test]
    fn never_is_never() {
        let mut ahead = Ahead::new(When::Never);
        assert_eq!(steps(&mut ahead, 5, 100), 0);
        assert!(!ahead.forget());
    }

    /// The second step has gone on from the first one, so the third is under way.
    #[test]
    fn steps_are_run_ahead_as_soon_as_one_goes_on() {
        let mut ahead = Ahead::new(When::WhenItPays);
        assert_eq!(steps(&mut ahead, 5, 1), 0);
        assert!(!ahead.forget(), "a single step has nothing behind it");
        assert_eq!(steps(&mut ahead, 5, 40), 38);
    }

    /// Long answers go on at once behind each other; behind a short one, steps must first have gone on for as
    /// long as the loss weighs.
    #[test]
    fn what_is_lost_is_not_more_than_what_was_gained() {
        let mut ahead = Ahead::new(When::WhenItPays);
        for answer in 0..5 {
            assert_eq!(steps(&mut ahead, 1000 * answer, PAYS + 2), PAYS);
            assert!(ahead.forget());
        }
        assert_eq!(steps(&mut ahead, 9000, PAYS + 1), PAYS - 1);
        assert!(ahead.forget());
        for answer in 10..15 {
            assert_eq!(steps(&mut ahead, 1000 * answer, PAYS), 0);
            assert!(!ahead.forget(), "nothing is lost by short answers any more");
        }
        assert_eq!(steps(&mut ahead, 20_000, 2 * PAYS + 1), PAYS);
        assert!(ahead.forget());
        assert_eq!(steps(&mut ahead, 30_000, 3), 1);
    }
}
