//! Constraints for the engine: which tokens may come next.

use llguidance::Matcher;
use llguidance::toktrie::SimpleVob;

use crate::constraint::{Allowed, Constraint};
use crate::error::{Result, RuntimeError};

/// An answer that follows a grammar from its first token to its last. Clones share what the grammar
/// has learned of its texts; a fork has its own.
#[derive(Clone)]
pub(super) struct Held {
    matcher: Matcher,
    /// What may come next, as soon as it has been asked for.
    mask: Option<SimpleVob>,
}

impl Held {
    /// Looks what may come first: most of what can be wrong with a grammar shows there, while whoever
    /// asked for it can still be told.
    ///
    /// # Errors What is wrong.
    pub(super) fn begin(mut matcher: Matcher) -> Result<Self, String> {
        let mask = matcher.compute_mask_or_eos().map_err(|error| format!("{error:#}"))?;
        Ok(Self { matcher, mask: Some(mask) })
    }

    fn apart(&self) -> Self {
        Self { matcher: self.matcher.deep_clone(), mask: self.mask.clone() }
    }
}

impl Constraint for Held {
    fn next(&mut self) -> Result<Allowed<'_>> {
        let mask = match self.mask.take() {
            Some(mask) => mask,
            None => self.matcher.compute_mask_or_eos().map_err(broken)?,
        };
        Ok(Allowed::Only(self.mask.insert(mask).as_slice()))
    }

    fn accept(&mut self, id: u32) -> Result<()> {
        self.mask = None;
        // Where nothing but a stop id could come, the grammar has ended and takes no more.
        if self.matcher.is_stopped() && self.matcher.stop_reason().is_ok() {
            return Ok(());
        }
        self.matcher.consume_token(id).map_err(broken)
    }

    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(self.apart())
    }
}

fn broken(error: impl std::fmt::Display) -> RuntimeError {
    RuntimeError::Constraint { problem: format!("{error:#}") }
}

/// A free answer in which every call that is begun follows the grammar of calls.
pub(super) struct UntilCall {
    rules: UntilCallRules,
    state: State,
    stops: Vec<u32>,
}

/// What [`UntilCall`] goes by.
pub(super) struct UntilCallRules {
    /// One call, from behind `<|tool_call>` to `<tool_call|>`; nothing of it has come yet.
    pub(super) one_call: Held,
    /// `<|tool_call>`.
    pub(super) call: u32,
    /// `<tool_call|>`.
    pub(super) call_end: u32,
    /// `<|channel>`.
    pub(super) channel: u32,
    /// `<channel|>`.
    pub(super) channel_end: u32,
    /// Whether the prompt has opened a thought.
    pub(super) thinking: bool,
    /// What may end the answer.
    pub(super) stop_ids: Vec<u32>,
    /// Whether more than one call may come.
    pub(super) several: bool,
}

enum State {
    /// Anything may come, a call too.
    Free,
    /// In a thought nothing is a call.
    Thought,
    /// Inside a call.
    Call(Box<Held>),
    /// The one call has been made.
    Done,
}

impl UntilCall {
    pub(super) fn new(rules: UntilCallRules) -> Self {
        let mut stops = Vec::new();
        for &id in &rules.stop_ids {
            let (word, bit) = (id as usize / 32, id % 32);
            stops.resize(stops.len().max(word + 1), 0);
            stops[word] |= 1 << bit;
        }
        let state = if rules.thinking { State::Thought } else { State::Free };
        Self { rules, state, stops }
    }
}

impl Constraint for UntilCall {
    fn next(&mut self) -> Result<Allowed<'_>> {
        match &mut self.state {
            State::Free | State::Thought => Ok(Allowed::Anything),
            State::Call(held) => held.next(),
            State::Done => Ok(Allowed::Only(&self.stops)),
        }
    }

    fn accept(&mut self, id: u32) -> Result<()> {
        match &mut self.state {
            State::Free if id == self.rules.call => {
                self.state = State::Call(Box::new(self.rules.one_call.clone()));
            }
            State::Free if id == self.rules.channel => self.state = State::Thought,
            State::Thought if id == self.rules.channel_end => self.state = State::Free,
            State::Call(held) => {
                held.accept(id)?;
                if id == self.rules.call_end {
                    self.state = if self.rules.several { State::Free } else { State::Done };
                }
            }
            State::Free | State::Thought | State::Done => {}
        }
        Ok(())
    }

    fn fork(&self) -> Box<dyn Constraint> {
        let one_call = self.rules.one_call.apart();
        let rules =
            UntilCallRules { one_call, stop_ids: self.rules.stop_ids.clone(), ..self.rules };
        let state = match &self.state {
            State::Free => State::Free,
            State::Thought => State::Thought,
            State::Call(held) => State::Call(Box::new(held.apart())),
            State::Done => State::Done,
        };
        Box::new(Self { rules, state, stops: self.stops.clone() })
    }
}
