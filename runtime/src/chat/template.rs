//! The checkpoint's own chat template: messages and tools to prompt text.
//!
//! The template is `chat_template.jinja`, else the field `chat_template` of
//! `tokenizer_config.json`. It is rendered as transformers renders it (Jinja2 with `trim_blocks`
//! and `lstrip_blocks`). All its branches are rendered once when it is loaded ([`probe`]), so that
//! a filter nobody knows is found then and not at a user's third turn.

mod environment;
mod probe;

use minijinja::value::Serde;
use minijinja::{Environment, ErrorKind, Value as JinjaValue};
use serde_json::{Map, Value};

use super::error::ChatError;
use super::messages::with_parsed_arguments;
pub use probe::TemplateWarning;

/// The file that a template of its own stands in.
pub const TEMPLATE_FILE: &str = "chat_template.jinja";
const CONFIG_FIELD: &str = "tokenizer_config.json (chat_template)";
/// Among several named templates, the one for everything.
const DEFAULT: &str = "default";
/// Among several named templates, the one for requests with tools.
const TOOL_USE: &str = "tool_use";
/// Variables that [`RenderRequest`] has fields for.
const OWN_VARIABLES: [&str; 4] = ["messages", "tools", "enable_thinking", "add_generation_prompt"];

/// What a prompt is rendered from.
#[derive(Debug, Clone, Copy, Default)]
pub struct RenderRequest<'r> {
    /// OpenAI's messages; tool calls may carry their arguments as JSON text.
    pub messages: &'r [Value],
    /// OpenAI's tools: `{"type": "function", "function": {…}}`.
    pub tools: &'r [Value],
    /// Thinking on or off; `None` leaves it to the template.
    pub enable_thinking: Option<bool>,
    /// Whether the prompt ends where the model is to go on.
    pub add_generation_prompt: bool,
    /// More variables for the template (`chat_template_kwargs`).
    pub extra: Option<&'r Map<String, Value>>,
}

/// A template that has been compiled and tried.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    file: String,
    warnings: Vec<TemplateWarning>,
}

impl ChatTemplate {
    /// Loads a checkpoint's template; `None` if it has none.
    ///
    /// `template_file` is the text of `chat_template.jinja`, `tokenizer_config` the bytes of the
    /// file of that name, `named_tokens` come from
    /// [`Tokenizer::named_tokens`](super::Tokenizer::named_tokens) and become variables
    /// (`bos_token`, …).
    ///
    /// # Errors The template does not compile, uses a filter, test, function or method that does
    /// not exist, or cannot render a single question. What it merely refuses to render is a
    /// [`TemplateWarning`].
    pub fn load(
        template_file: Option<&str>,
        tokenizer_config: Option<&[u8]>,
        named_tokens: &[(String, String)],
    ) -> Result<Option<Self>, ChatError> {
        let (file, templates) = match template_file {
            Some(text) => (TEMPLATE_FILE, vec![(DEFAULT.to_owned(), text.to_owned())]),
            None => (CONFIG_FIELD, tokenizer_config.map_or(Ok(Vec::new()), templates_in_config)?),
        };
        if templates.is_empty() {
            return Ok(None);
        }
        let mut environment = environment::environment();
        for (name, text) in templates {
            environment.add_template_owned(name, text).map_err(|error| describe(file, &error))?;
        }
        if environment.get_template(DEFAULT).is_err() {
            return Err(ChatError::Json {
                file: CONFIG_FIELD.to_owned(),
                finding: format!("has no template named {DEFAULT:?}"),
            });
        }
        for (name, text) in named_tokens {
            environment.add_global(name.clone(), text.clone());
        }
        let mut template = Self { environment, file: file.to_owned(), warnings: Vec::new() };
        template.warnings = probe::try_all(&template)?;
        Ok(Some(template))
    }

    /// The file the template came from.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Faults of the template that were seen when it was tried. Show them to whoever may meet them.
    pub fn warnings(&self) -> &[TemplateWarning] {
        &self.warnings
    }

    /// Renders a prompt. The text holds `<bos>` where the template writes it: encode it with
    /// [`encode_prompt`](super::Tokenizer::encode_prompt).
    ///
    /// # Errors The messages have a wrong shape, the template refuses them, or it fails; with the
    /// template's file and line.
    pub fn render(&self, request: &RenderRequest<'_>) -> Result<String, ChatError> {
        let mut variables = Map::new();
        if let Some(extra) = request.extra {
            for (name, value) in extra {
                self.check_extra(name)?;
                variables.insert(name.clone(), value.clone());
            }
        }
        variables.insert("messages".to_owned(), with_parsed_arguments(request.messages)?.into());
        let tools = if request.tools.is_empty() { Value::Null } else { request.tools.into() };
        variables.insert("tools".to_owned(), tools);
        variables.insert("add_generation_prompt".to_owned(), request.add_generation_prompt.into());
        if let Some(thinking) = request.enable_thinking {
            variables.insert("enable_thinking".to_owned(), thinking.into());
        }
        let named = match self.environment.get_template(TOOL_USE) {
            Ok(template) if !request.tools.is_empty() => Ok(template),
            _ => self.environment.get_template(DEFAULT),
        };
        named
            .and_then(|template| template.render(JinjaValue::from(Serde(&variables))))
            .map_err(|error| describe(&self.file, &error))
    }

    fn check_extra(&self, name: &str) -> Result<(), ChatError> {
        let reason = if OWN_VARIABLES.contains(&name) {
            "the request has a field for it"
        } else if self.environment.globals().any(|(global, _)| global == name) {
            "the template's own functions and tokens cannot be replaced"
        } else {
            return Ok(());
        };
        Err(ChatError::ReservedVariable { name: name.to_owned(), reason })
    }
}

/// The templates in `tokenizer_config.json`: a text, or a list of `{name, template}`.
fn templates_in_config(bytes: &[u8]) -> Result<Vec<(String, String)>, ChatError> {
    let json = |finding: String| ChatError::Json { file: CONFIG_FIELD.to_owned(), finding };
    let config: Value = serde_json::from_slice(bytes).map_err(|error| json(error.to_string()))?;
    match config.get("chat_template") {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::String(text)) => Ok(vec![(DEFAULT.to_owned(), text.clone())]),
        Some(Value::Array(items)) => items
            .iter()
            .enumerate()
            .map(|(index, item)| {
                let field = |key| item.get(key).and_then(Value::as_str).map(str::to_owned);
                field("name")
                    .zip(field("template"))
                    .ok_or_else(|| json(format!("item {index} is not {{name, template}}")))
            })
            .collect(),
        Some(other) => Err(json(format!("is neither a text nor a list: {other}"))),
    }
}

/// The engine's error in our words: file, line, finding.
fn describe(file: &str, error: &minijinja::Error) -> ChatError {
    // An error inside a macro or an included part is the source of an outer one; the innermost has
    // the finding.
    let mut innermost = error;
    let mut cause: Option<&(dyn std::error::Error + 'static)> = std::error::Error::source(error);
    while let Some(next) = cause {
        if let Some(engine) = next.downcast_ref::<minijinja::Error>() {
            innermost = engine;
        }
        cause = next.source();
    }
    let line = innermost.line().or(error.line()).unwrap_or(0);
    let detail = innermost.detail().unwrap_or_default();
    if let Some(message) = detail.strip_prefix(environment::REFUSAL)
        && innermost.kind() == ErrorKind::InvalidOperation
    {
        return ChatError::Refused { file: file.to_owned(), line, message: message.to_owned() };
    }
    let finding = match detail {
        "" => innermost.kind().to_string(),
        detail => format!("{}: {detail}", innermost.kind()),
    };
    let file = file.to_owned();
    match innermost.kind() {
        ErrorKind::SyntaxError
        | ErrorKind::UnknownFilter
        | ErrorKind::UnknownTest
        | ErrorKind::UnknownFunction
        | ErrorKind::UnknownMethod => ChatError::Template { file, line, finding },
        _ => ChatError::Rendering { file, line, finding },
    }
}
