//! What is behind the endpoints once the model is loaded.

use std::sync::Arc;
use w4pack_format::config::Config;

use super::error::ApiError;
use crate::chat::{ChatText, Conversation, Prompt};
use crate::constraint::Constraint;
use crate::sampling::Sampling;
use crate::scheduler::Scheduler;
use serde_json::Value;

/// For tests: makes the constraint of an answer from the request's messages, and takes the place of
/// the request's own. Forces outputs that a small model would not write.
#[doc(hidden)]
pub type ConstraintHook = Arc<dyn Fn(&[Value]) -> Option<Box<dyn Constraint>> + Send + Sync>;

/// A loaded model, ready for requests.
pub struct Service {
    /// The engine's thread.
    pub scheduler: Scheduler,
    /// Tokenizer, template and stop ids.
    pub text: ChatText,
    /// What `generation_config.json` says.
    pub defaults: Sampling,
    /// Tests only, see [`ConstraintHook`].
    #[doc(hidden)]
    pub constraint_hook: Option<ConstraintHook>,
}

impl Service {
    /// A service of this model.
    pub fn new(scheduler: Scheduler, text: ChatText, defaults: Sampling) -> Self {
        Self { scheduler, text, defaults, constraint_hook: None }
    }

    /// The model's configuration.
    pub(super) fn config(&self) -> &Config {
        self.scheduler.config()
    }

    /// Ids there are.
    pub(super) fn vocabulary(&self) -> usize {
        self.config().text.vocab_size
    }

    /// The prompt of a conversation.
    pub(super) fn prompt(&self, conversation: &Conversation<'_>) -> Result<Prompt, ApiError> {
        self.text.prompt(conversation).map_err(ApiError::from)
    }
}
