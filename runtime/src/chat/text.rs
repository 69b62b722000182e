//! All that stands between people's text and a model's token ids, of one checkpoint: what `run`,
//! `chat` and `serve` share.

use std::sync::{Arc, OnceLock};

use serde_json::{Map, Value};
use w4pack_format::config::Config;
use w4pack_format::source::Source;

use super::error::ChatError;
use super::grammar::{GrammarError, Grammars};
use super::markers::{MODEL_TURN, RESPONSE_END, TURN_END};
use super::marks::{marked_map, marked_value, unmarked};
use super::template::{ChatTemplate, RenderRequest, TEMPLATE_FILE, TemplateWarning};
use super::tokenizer::{Most, Tokenizer};
use super::{messages, tools};
use crate::error::Result;
use crate::generation_config::GenerationDefaults;

const TOKENIZER_FILE: &str = "tokenizer.json";
const SETTINGS_FILE: &str = "tokenizer_config.json";
/// The template's variable that keeps thoughts of earlier turns.
const PRESERVE_THINKING: &str = "preserve_thinking";

/// What a prompt is made from.
#[derive(Debug, Clone, Copy, Default)]
pub struct Conversation<'r> {
    /// OpenAI's messages.
    pub messages: &'r [Value],
    /// OpenAI's tools: `{"type": "function", "function": {…}}`.
    pub tools: &'r [Value],
    /// Thinking on or off; `None` leaves it to the template.
    pub enable_thinking: Option<bool>,
    /// More variables for the template (`chat_template_kwargs`).
    pub extra: Option<&'r Map<String, Value>>,
}

/// A prompt, ready for the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// The text, for people and for [`OutputParser::after_prompt`](super::OutputParser). Text that a
    /// user wrote may look like control tokens here; in the ids it is none.
    pub text: String,
    /// The ids.
    pub ids: Vec<u32>,
}

/// Tokenizer, template and stop ids of a checkpoint.
pub struct ChatText {
    tokenizer: Arc<Tokenizer>,
    template: Option<ChatTemplate>,
    stop_ids: Vec<u32>,
    vocabulary_size: usize,
    grammars: OnceLock<Result<Grammars, GrammarError>>,
}

impl ChatText {
    /// Reads what a checkpoint has; `None` without a `tokenizer.json`, for such a model speaks ids
    /// alone.
    ///
    /// # Errors A file cannot be read or is none of Gemma's.
    pub fn load(source: &dyn Source, config: &Config) -> Result<Option<Self>> {
        let optional = |path: &str| source.size(path).map(|_| source.read_file(path)).transpose();
        let Some(tokenizer) = optional(TOKENIZER_FILE)? else { return Ok(None) };
        let settings = optional(SETTINGS_FILE)?;
        let bos = Some(config.text.bos_token_id);
        let tokenizer = Tokenizer::from_bytes(&tokenizer, settings.as_deref(), bos)?;
        let not_text = |_| ChatError::Json {
            file: TEMPLATE_FILE.to_owned(),
            finding: "is not UTF-8".to_owned(),
        };
        let file = optional(TEMPLATE_FILE)?.map(String::from_utf8).transpose().map_err(not_text)?;
        let named = tokenizer.named_tokens();
        let template = ChatTemplate::load(file.as_deref(), settings.as_deref(), named)?;
        let stop_ids = GenerationDefaults::load(source, config)?.stop_ids;
        let vocabulary_size = config.text.vocab_size;
        Ok(Some(Self::new(Arc::new(tokenizer), template, stop_ids, vocabulary_size)))
    }

    /// From parts that are loaded already. `vocabulary_size` is the number of logits.
    pub fn new(
        tokenizer: Arc<Tokenizer>,
        template: Option<ChatTemplate>,
        stop_ids: Vec<u32>,
        vocabulary_size: usize,
    ) -> Self {
        Self { tokenizer, template, stop_ids, vocabulary_size, grammars: OnceLock::new() }
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// The template; `None` for a model that only continues text.
    pub fn template(&self) -> Option<&ChatTemplate> {
        self.template.as_ref()
    }

    /// Faults of the template that this type does not mend, for whoever may meet them.
    pub fn warnings(&self) -> Vec<&TemplateWarning> {
        let all = self.template.iter().flat_map(ChatTemplate::warnings);
        all.filter(|warning| !warning.concerns_text_with_calls()).collect()
    }

    /// Ids that end an answer.
    pub fn stop_ids(&self) -> &[u32] {
        &self.stop_ids
    }

    /// Ids behind which a turn of a conversation ends: where the prompts of its next questions are
    /// likely to part.
    pub fn turn_ends(&self) -> Vec<u32> {
        [TURN_END, RESPONSE_END].iter().filter_map(|token| self.tokenizer.id(token)).collect()
    }

    /// The grammars of this vocabulary; made when they are first asked for, which takes about a second
    /// with Gemma 4's.
    ///
    /// # Errors The vocabulary lacks what calls are written with.
    pub fn grammars(&self) -> Result<&Grammars, GrammarError> {
        let made = self
            .grammars
            .get_or_init(|| Grammars::new(&self.tokenizer, self.vocabulary_size, &self.stop_ids));
        made.as_ref().map_err(Clone::clone)
    }

    /// The prompt of a conversation, ending where the model is to go on.
    ///
    /// No text of messages, names, arguments, results or declarations becomes a control token (see
    /// [`marks`](super::marks)).
    ///
    /// # Errors The checkpoint has no template, a message or a tool has the wrong shape, or the
    /// template refuses them.
    pub fn prompt(&self, conversation: &Conversation<'_>) -> Result<Prompt, ChatError> {
        self.prompt_within(conversation, Most::ANY)
    }

    /// [`prompt`](Self::prompt), refused as soon as it is seen to be too long.
    pub fn prompt_within(
        &self,
        conversation: &Conversation<'_>,
        most: Most,
    ) -> Result<Prompt, ChatError> {
        let template = self.template.as_ref().ok_or(ChatError::NoTemplate)?;
        let control = self.tokenizer.control();
        let preserves = conversation.extra.and_then(|extra| extra.get(PRESERVE_THINKING));
        let thoughts_with_calls = preserves == Some(&Value::Bool(true));
        let messages = messages::prepared(conversation.messages, thoughts_with_calls)?;
        let tools = tools::prepared(conversation.tools)?;
        let marked = |values: &[Value]| -> Vec<Value> {
            values.iter().map(|value| marked_value(value, control)).collect()
        };
        let (messages, tools) = (marked(&messages), marked(&tools));
        let extra = conversation.extra.map(|extra| marked_map(extra, control));
        let request = RenderRequest {
            messages: &messages,
            tools: &tools,
            enable_thinking: conversation.enable_thinking,
            add_generation_prompt: true,
            extra: extra.as_ref(),
        };
        let mut rendered = template.render(&request).map_err(|error| match error {
            ChatError::Refused { file, line, message } => {
                ChatError::Refused { file, line, message: unmarked(&message, control) }
            }
            other => other,
        })?;
        // The fault that TemplateWarning::NoModelTurnAfterTool names. What the template has left
        // out is what it was asked for.
        if rendered.trim_end().ends_with(TURN_END) {
            rendered.push_str(MODEL_TURN);
        }
        let ids = self.tokenizer.encode_marked(&rendered, most)?;
        Ok(Prompt { text: unmarked(&rendered, control), ids })
    }
}
