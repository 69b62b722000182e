//! One tool call, from behind `<|tool_call>` to `<tool_call|>`: `call:NAME{key:value,…}`.

use super::super::markers::{CALL, CALL_END, ENDS, EOS, QUOTE, RESPONSE, TURN_END, first};
use super::arguments;

/// A call of a function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCall {
    /// The function's name, as the model wrote it.
    pub name: String,
    /// The arguments: the text of a JSON object, keys in the order written, numbers digit for
    /// digit.
    pub arguments: String,
}

/// A call that is still being written.
pub(super) struct OpenCall {
    /// Bytes of the pending text that have been looked at.
    seen: usize,
    in_string: bool,
}

/// What the pending text says of an open call.
pub(super) enum Step {
    /// The call goes on.
    More,
    /// The call is whole, and so many bytes long, its end marker included.
    Whole { call: ToolCall, length: usize },
    /// So many bytes are no call.
    Broken { length: usize },
}

/// What matters outside a string.
const OUTSIDE: [&str; 6] = [QUOTE, CALL_END, CALL, TURN_END, RESPONSE, EOS];
const LONGEST_MARKER: usize = 16;

impl OpenCall {
    pub(super) fn new() -> Self {
        Self { seen: 0, in_string: false }
    }

    /// Looks on through the pending text (which begins behind `<|tool_call>`).
    pub(super) fn step(&mut self, pending: &str) -> Step {
        loop {
            let markers: &[&str] = if self.in_string { &[QUOTE] } else { &OUTSIDE };
            let Some((at, marker)) = first(&pending[self.seen..], markers) else {
                // A marker may have begun in the last bytes; look at those again.
                let looked = pending.len().saturating_sub(LONGEST_MARKER - 1).max(self.seen);
                self.seen = (self.seen..=looked)
                    .rev()
                    .find(|at| pending.is_char_boundary(*at))
                    .unwrap_or(self.seen);
                return Step::More;
            };
            let at = self.seen + at;
            self.seen = at + marker.len();
            match marker {
                QUOTE => self.in_string = !self.in_string,
                CALL_END => {
                    let length = self.seen;
                    return match parse(&pending[..at]) {
                        Some(call) => Step::Whole { call, length },
                        None => Step::Broken { length },
                    };
                }
                _ => return Step::Broken { length: at },
            }
        }
    }

    /// The answer has ended inside the call: how many bytes are lost to it. The rest may hold sound
    /// calls.
    pub(super) fn give_up(&self, pending: &str) -> usize {
        let mut borders = ENDS.to_vec();
        borders.push(CALL_END);
        match first(pending, &borders) {
            Some((at, CALL_END)) => at + CALL_END.len(),
            Some((at, _)) => at,
            None => pending.len(),
        }
    }
}

/// `call:NAME{…}`; the name is everything up to the first brace.
fn parse(text: &str) -> Option<ToolCall> {
    let text = text.trim().strip_prefix("call:")?;
    let brace = text.find('{')?;
    let name = text[..brace].trim();
    if name.is_empty() || name.contains(|c: char| c.is_whitespace() || c == '<' || c == '>') {
        return None;
    }
    let arguments = arguments::object_to_json(&text[brace..])?;
    Some(ToolCall { name: name.to_owned(), arguments })
}
