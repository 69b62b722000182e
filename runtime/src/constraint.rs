//! What holds an answer to a form: a JSON schema, a call of a declared tool, or a test's own ids.

use crate::error::Result;

/// The tokens that may come next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allowed<'a> {
    /// Every token. Costs nothing: greedy answers keep their short way.
    Anything,
    /// Token `i` is allowed if bit `i % 32` of word `i / 32` is set; ids beyond the words are not.
    Only(&'a [u32]),
}

/// Follows an answer and says at each of its tokens which may come.
///
/// The engine asks [`Constraint::next`] exactly once before each token and reports the chosen one
/// exactly once, the stop id that ends the answer included.
pub trait Constraint: Send {
    /// What may come next. An error ends this answer and no other.
    fn next(&mut self) -> Result<Allowed<'_>>;

    /// The token that was chosen.
    fn accept(&mut self, id: u32) -> Result<()>;

    /// The same for another answer, as far as this one has come. It costs less than making it anew.
    fn fork(&self) -> Box<dyn Constraint>;
}
