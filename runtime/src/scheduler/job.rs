//! What goes into a scheduler and what comes out.

use crate::constraint::Constraint;
use crate::error::RuntimeError;
use crate::generation::FinishReason;
use crate::sampling::{Adjustments, Chosen, Sampling};
use crate::speculation::Drafted;
use std::ops::ControlFlow;
use std::time::Duration;

/// Hears what becomes of a job.
///
/// It runs on the engine's thread and must be quick: every running answer waits for it. `Break`
/// ends the answer with that reason and frees its slot at once; what it returns for
/// [`Event::Ended`] and [`Event::Failed`] means nothing.
pub type Listener = Box<dyn FnMut(Event<'_>) -> ControlFlow<FinishReason> + Send>;

/// An answer to generate.
pub struct Job {
    /// Ids of the prompt, `<bos>` included if there is to be one.
    pub prompt: Vec<u32>,
    /// Tokens to generate at most.
    pub max_tokens: usize,
    /// Ids that end the answer; the one that does is its last token.
    pub stop_ids: Vec<u32>,
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// Penalties and bias.
    pub adjustments: Adjustments,
    /// With log-probabilities of each chosen token and of so many likeliest ones.
    pub logprobs: Option<usize>,
    /// What holds the answer to a form.
    pub constraint: Option<Box<dyn Constraint>>,
    /// Hears what becomes of it.
    pub listener: Listener,
}

/// What happens to a job. The last event is [`Event::Ended`] or [`Event::Failed`], always one.
#[derive(Debug)]
pub enum Event<'e> {
    /// No slot is free yet. Now and then, so that a client that leaves frees its place in the queue.
    Waiting,
    /// Before the first chunk of the prompt and after each.
    Reading {
        /// Tokens of the prompt that the cache holds by now, `cached` included.
        read: usize,
        /// Those it held before.
        cached: usize,
        /// Tokens of the prompt.
        prompt: usize,
    },
    /// A token was chosen.
    Token(&'e Chosen),
    /// The answer is complete or was broken off.
    Ended(&'e Summary),
    /// The answer cannot go on. Others do.
    Failed(RuntimeError),
}

/// An answer that has ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Summary {
    /// Why.
    pub finish: FinishReason,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Those of them that the cache held already.
    pub cached_tokens: usize,
    /// Tokens generated, a stop id included.
    pub completion_tokens: usize,
    /// The seed that repeats the answer; `None` for a greedy one.
    pub seed: Option<u64>,
    /// From submission until a slot was taken.
    pub queued: Duration,
    /// From then until the first token was chosen.
    pub prefill: Duration,
    /// From then until the last was chosen: one step fewer than there are tokens.
    pub decode: Duration,
    /// What was guessed ahead of it.
    pub drafted: Drafted,
}

/// Why a job was not taken.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// As many wait as may.
    #[error("{waiting} requests are waiting and {limit} may; try again later")]
    QueueFull {
        /// Jobs that wait for a slot.
        waiting: usize,
        /// How many may.
        limit: usize,
    },
    /// The context does not hold it.
    #[error(
        "{prompt} prompt tokens and {max_tokens} to generate need {} positions, but the context has {context}",
        prompt.saturating_add(*max_tokens)
    )]
    Context {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens that may be generated.
        max_tokens: usize,
        /// Positions there are.
        context: usize,
    },
    /// A setting out of range, an empty prompt, an id that is no token.
    #[error(transparent)]
    Setting(RuntimeError),
    /// The scheduler is stopping.
    #[error("the server is shutting down")]
    ShuttingDown,
}

impl From<RuntimeError> for Refusal {
    fn from(error: RuntimeError) -> Self {
        match error {
            RuntimeError::ContextExceeded { prompt, max_tokens, context } => {
                Refusal::Context { prompt, max_tokens, context }
            }
            other => Refusal::Setting(other),
        }
    }
}
