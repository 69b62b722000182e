//! What is behind the endpoints once the model is loaded.

use std::sync::Arc;
use w4pack_format::config::Config;

use super::error::ApiError;
use crate::chat::{ChatError, ChatText, Conversation, Most, Prompt};
use crate::constraint::Constraint;
use crate::sampling::Sampling;
use crate::scheduler::Scheduler;
use serde_json::Value;

/// For tests: makes the constraint of an answer from the request's messages, and takes the place of
/// the request's own. Forces outputs that a small model would not write.
#[doc(hidden)]
pub type ConstraintHook = Arc<dyn Fn(&[Value]) -> Option<Box<dyn Constraint>> + Send + Sync>;

/// Tokens of a prompt that the context does not hold are counted up to here, for the refusal; what is
/// longer costs no more than this.
const COUNTED: usize = 65_536;
/// Bytes of text that may stand in a row without a word's end.
const UNCUT: usize = 1 << 20;

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

    /// How much of a text is encoded.
    fn most(&self) -> Most {
        Most { tokens: self.scheduler.context().max(COUNTED), uncut: UNCUT }
    }

    /// The prompt of a conversation. For refusals, `field`: where it stands; `parameters`: where a
    /// tool's parameters stand in the tool.
    pub(super) fn prompt(
        &self,
        conversation: &Conversation<'_>,
        field: &str,
        parameters: &str,
    ) -> Result<Prompt, ApiError> {
        let prompt = self.text.prompt_within(conversation, self.most());
        let prompt = prompt.map_err(|error| {
            self.fault_of_a_tool(conversation, &error, parameters)
                .unwrap_or_else(|| self.refusal(error, field))
        })?;
        self.check_room(&prompt.ids, field)?;
        Ok(prompt)
    }

    /// The ids of a text that is a prompt as it is.
    pub(super) fn raw_prompt(&self, text: &str, field: &str) -> Result<Vec<u32>, ApiError> {
        let ids = self.text.tokenizer().encode_raw(text, self.most());
        ids.map_err(|error| self.refusal(error, field))
    }

    /// Refuses a prompt that leaves no room for an answer, before anything is made for one.
    pub(super) fn check_room(&self, ids: &[u32], field: &str) -> Result<(), ApiError> {
        let context = self.scheduler.context();
        match ids.len() < context {
            true => Ok(()),
            false => Err(ApiError::context(field, &ids.len().to_string(), context)),
        }
    }

    /// A template that fails says where in itself, and not at what. What it writes without any tool and
    /// not with a certain one, it fails at for that tool.
    fn fault_of_a_tool(
        &self,
        conversation: &Conversation<'_>,
        error: &ChatError,
        parameters: &str,
    ) -> Option<ApiError> {
        let ChatError::Rendering { finding, .. } = error else { return None };
        let fails = |tools: &[Value]| {
            let prompt =
                self.text.prompt_within(&Conversation { tools, ..*conversation }, self.most());
            matches!(prompt, Err(ChatError::Rendering { .. }))
        };
        if fails(&[]) {
            return None;
        }
        let tools = conversation.tools;
        let tool = (0..tools.len()).find(|tool| fails(&tools[*tool..*tool + 1]))?;
        let path = format!("tools[{tool}]{parameters}");
        let message = format!("`{path}`: the model's chat template cannot write it: {finding}");
        Some(ApiError::unsupported(&path, message))
    }

    fn refusal(&self, error: ChatError, field: &str) -> ApiError {
        match error {
            ChatError::TooLong { most } => {
                let context = self.scheduler.context();
                ApiError::context(field, &format!("more than {most}"), context)
            }
            ChatError::Uncut { .. } => ApiError::unsupported(field, format!("`{field}`: {error}")),
            error => error.into(),
        }
    }
}
