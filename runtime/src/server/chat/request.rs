//! From a body to a checked [`ChatRequest`].

use serde_json::{Map, Value};

use super::{format, tools};
use crate::server::error::ApiError;
use crate::server::fields::{Field, Fields};
use crate::server::known::{self, Endpoint};
use crate::server::settings;
use crate::server::wire::chat::ChatRequest;

/// Whether thinking is on, by `reasoning_effort`.
pub const EFFORTS: [(&str, bool); 6] = [
    ("none", false),
    ("minimal", false),
    ("low", true),
    ("medium", true),
    ("high", true),
    ("xhigh", true),
];

/// Most messages of a conversation.
const MOST_MESSAGES: usize = 10_000;

/// Reads a request. Returns it with the names of all fields there are.
pub fn read(
    body: &Map<String, Value>,
    vocabulary: usize,
) -> Result<(ChatRequest, Vec<&'static str>), ApiError> {
    let mut fields = Fields::of_body(body);
    let model = fields.text("model")?.map(str::to_owned);
    let messages = messages(&fields.need("messages")?)?;
    let declared = tools::read(&mut fields)?;
    let tool_choice = tools::choice(&mut fields, &declared, &|field| {
        let mut choice = field.fields()?;
        choice.need("type")?;
        let mut function = choice.need("function")?.fields()?;
        let name = function.need("name")?.value.clone();
        function.finish()?;
        choice.finish()?;
        Ok(name)
    })?;
    let parallel_tool_calls = fields.boolean("parallel_tool_calls")?.unwrap_or(true);
    let response_format = format::read(&mut fields)?;
    let reasoning_effort = match fields.take("reasoning_effort") {
        Some(field) => {
            field.one_of(&EFFORTS)?;
            Some(field.text()?.to_owned())
        }
        None => None,
    };
    let chat_template_kwargs = template_variables(&mut fields, reasoning_effort.as_deref())?;
    let (max_tokens, max_completion_tokens) = (
        settings::token_limit(&mut fields, "max_tokens")?,
        settings::token_limit(&mut fields, "max_completion_tokens")?,
    );
    if let (Some(older), Some(newer)) = (max_tokens, max_completion_tokens)
        && older != newer
    {
        let message = format!(
            "`max_tokens` is {older} and `max_completion_tokens` is {newer}: they are one setting"
        );
        return Err(ApiError::conflict("max_completion_tokens", message));
    }
    let logprobs = fields.boolean("logprobs")?.unwrap_or(false);
    let top_logprobs = settings::logprob_count(&mut fields, "top_logprobs")?;
    if top_logprobs.is_some() && !logprobs {
        let message = "`top_logprobs` is given without `logprobs`: true";
        return Err(ApiError::conflict("top_logprobs", message));
    }
    let stop = settings::stops(&mut fields)?;
    let n = settings::choices(&mut fields)?;
    let sampling = settings::sampling(&mut fields, vocabulary)?;
    let (stream, stream_options) = settings::stream(&mut fields)?;
    known::take(&mut fields, Endpoint::Chat)?;
    let names = fields.finish()?;
    let request = ChatRequest {
        model,
        messages,
        tools: declared,
        tool_choice,
        parallel_tool_calls,
        response_format,
        reasoning_effort,
        chat_template_kwargs,
        max_tokens,
        max_completion_tokens,
        stop,
        n,
        sampling,
        logprobs,
        top_logprobs,
        stream,
        stream_options,
    };
    Ok((request, names))
}

/// The messages as they are, at least one and not too many. What is in them is checked where the prompt
/// is made of them.
pub fn messages(field: &Field<'_>) -> Result<Vec<Value>, ApiError> {
    match field.value.as_array() {
        Some(items) if (1..=MOST_MESSAGES).contains(&items.len()) => Ok(items.clone()),
        Some(items) => {
            let found = items.len();
            let message = format!("`{}` holds {found} messages: 1 to {MOST_MESSAGES}", field.path);
            Err(ApiError::conflict(&field.path, message))
        }
        None => Err(field.wrong("a list")),
    }
}

/// `chat_template_kwargs`, of which two variables are known.
pub fn template_variables(
    fields: &mut Fields<'_>,
    effort: Option<&str>,
) -> Result<Option<Map<String, Value>>, ApiError> {
    let Some(field) = fields.take("chat_template_kwargs") else { return Ok(None) };
    let mut variables = field.fields()?;
    let mut given = Map::new();
    for name in ["enable_thinking", "preserve_thinking"] {
        if let Some(value) = variables.boolean(name)? {
            given.insert(name.to_owned(), value.into());
        }
    }
    variables.finish()?;
    let by_effort = effort.and_then(thinking_by_effort);
    let by_switch = given.get("enable_thinking").and_then(Value::as_bool);
    if let (Some(effort), Some(switch)) = (by_effort, by_switch)
        && effort != switch
    {
        let message = "`chat_template_kwargs.enable_thinking` and `reasoning_effort` disagree";
        return Err(ApiError::conflict("chat_template_kwargs.enable_thinking", message));
    }
    Ok(Some(given))
}

/// What an effort means for a model that thinks or does not.
pub fn thinking_by_effort(effort: &str) -> Option<bool> {
    EFFORTS.iter().find(|(name, _)| *name == effort).map(|(_, on)| *on)
}
