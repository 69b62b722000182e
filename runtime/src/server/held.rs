//! What holds an answer to a form: a JSON schema, or calls of declared tools.

use serde_json::Value;

use super::error::ApiError;
use super::service::Service;
use super::wire::chat::{ResponseFormat, ToolChoice};
use crate::chat::{CallRules, Choice, GrammarError, ToolDeclaration};
use crate::constraint::Constraint;

/// What a request says of the form of its answers.
pub struct Form<'r> {
    /// The form of the text.
    pub format: &'r ResponseFormat,
    /// The field that says so, for refusals.
    pub field: &'static str,
    /// Which tools are to be called.
    pub choice: &'r ToolChoice,
    /// The tools that are offered.
    pub tools: &'r [Value],
    /// Where a tool's parameters stand in it, for refusals.
    pub parameters: &'static str,
    /// Whether there may be several calls.
    pub parallel: bool,
    /// The prompt's text: a thought may have begun there.
    pub prompt: &'r str,
    /// The request's messages, for a test's hook.
    pub messages: &'r [Value],
}

/// The constraints of so many answers; `None` where anything goes.
pub fn constraints(
    service: &Service,
    form: &Form<'_>,
    answers: usize,
) -> Result<Vec<Option<Box<dyn Constraint>>>, ApiError> {
    let forced = |_| service.constraint_hook.as_ref().and_then(|hook| hook(form.messages));
    let forced: Vec<_> = (0..answers).map(forced).collect();
    if forced.iter().any(Option::is_some) {
        return Ok(forced);
    }
    // Compiled once: that costs more than many tokens.
    let Some(first) = constraint(service, form)? else {
        return Ok(std::iter::repeat_with(|| None).take(answers).collect());
    };
    let mut all: Vec<_> = (1..answers).map(|_| Some(first.fork())).collect();
    all.push(Some(first));
    Ok(all)
}

fn constraint(service: &Service, form: &Form<'_>) -> Result<Option<Box<dyn Constraint>>, ApiError> {
    let choice = match form.choice {
        ToolChoice::Required => Choice::Required,
        ToolChoice::Named(name) => Choice::Named(name),
        ToolChoice::None | ToolChoice::Auto => Choice::Auto,
    };
    let schema = match form.format {
        // A call that is demanded comes in any case: it goes before the form of the text.
        _ if choice != Choice::Auto => None,
        ResponseFormat::Text => None,
        ResponseFormat::JsonObject => Some(None),
        ResponseFormat::JsonSchema(schema) => Some(Some(schema)),
    };
    let strict = form.tools.iter().any(is_strict);
    if schema.is_none() && choice == Choice::Auto {
        // What comes is read, and nothing has to be enforced.
        if form.tools.is_empty() || (form.parallel && !strict) {
            return Ok(None);
        }
    }
    let tools: Vec<ToolDeclaration<'_>> = form.tools.iter().map(declaration).collect();
    let (parallel, after_prompt) = (form.parallel, form.prompt);
    let rules = CallRules { tools: &tools, choice, parallel, after_prompt };
    let of_format = |error| refusal(form.field, &error);
    let of_tools = |error: GrammarError| match error {
        GrammarError::Tool { tool, error } => {
            refusal(&format!("tools[{tool}]{}", form.parameters), &error)
        }
        error => refusal("tools", &error),
    };
    let grammars = service.text.grammars().map_err(of_format)?;
    let Some(schema) = schema else {
        return grammars.calls(&rules).map_err(of_tools);
    };
    let json = || match schema {
        Some(schema) => grammars.json_schema(schema, after_prompt),
        None => grammars.json_object(after_prompt),
    };
    if tools.is_empty() {
        return json().map(Some).map_err(of_format);
    }
    let held = grammars.json_or_calls(schema, &rules);
    // What is wrong with the form alone is no fault of the tools.
    held.map(Some).map_err(|error| match json() {
        Err(error) => of_format(error),
        Ok(_) => of_tools(error),
    })
}

fn is_strict(tool: &Value) -> bool {
    tool["function"]["strict"] == true
}

fn declaration(tool: &Value) -> ToolDeclaration<'_> {
    let name = tool["function"]["name"].as_str().unwrap_or_default();
    ToolDeclaration {
        name,
        parameters: tool["function"].get("parameters"),
        strict: is_strict(tool),
    }
}

/// A schema that cannot be enforced is the request's fault.
fn refusal(field: &str, error: &GrammarError) -> ApiError {
    match error {
        GrammarError::Unsupported { .. } => {
            ApiError::unsupported(field, format!("`{field}`: {error}"))
        }
        GrammarError::Schema { .. }
        | GrammarError::Tool { .. }
        | GrammarError::UnknownTool { .. }
        | GrammarError::NoTools => ApiError::conflict(field, format!("`{field}`: {error}")),
        // The checkpoint cannot do it, whatever is asked.
        GrammarError::MissingToken { .. } | GrammarError::NoStop => {
            ApiError::unsupported(field, format!("`{field}`: {error}"))
        }
    }
}
