//! From a body to a checked [`ResponsesRequest`].

use serde_json::{Map, Value};

use super::input;
use crate::chat::ChatError;
use crate::chat::tools::prepared;
use crate::server::chat::format::{self, Kind};
use crate::server::chat::request::EFFORTS;
use crate::server::chat::tools;
use crate::server::error::ApiError;
use crate::server::fields::{Field, Fields};
use crate::server::known::{self, Endpoint};
use crate::server::settings;
use crate::server::wire::chat::ResponseFormat;
use crate::server::wire::responses::ResponsesRequest;

/// Reads a request. Returns it with the names of all fields there are.
pub fn read(
    body: &Map<String, Value>,
    vocabulary: usize,
) -> Result<(ResponsesRequest, Vec<&'static str>), ApiError> {
    let mut fields = Fields::of_body(body);
    let model = fields.text("model")?.map(str::to_owned);
    let instructions = fields.text("instructions")?.map(str::to_owned);
    let input = input::read(&fields.need("input")?, instructions.as_deref())?;
    let declared = match fields.take("tools") {
        Some(field) => declared(&field)?,
        None => Vec::new(),
    };
    let tool_choice = tools::choice(&mut fields, &declared, &|field| {
        let mut choice = field.fields()?;
        choice.need("type")?;
        let name = choice.need("name")?.value.clone();
        choice.finish()?;
        Ok(name)
    })?;
    let parallel_tool_calls = fields.boolean("parallel_tool_calls")?.unwrap_or(true);
    let text = text_format(&mut fields)?;
    let reasoning = effort(&mut fields)?;
    let max_output_tokens = settings::token_limit(&mut fields, "max_output_tokens")?;
    let include = logprobs_included(&mut fields)?;
    let top_logprobs = settings::logprob_count(&mut fields, "top_logprobs")?;
    if top_logprobs.is_some_and(|count| count > 0) && !include {
        let message = "`top_logprobs` needs `include` to hold \"message.output_text.logprobs\"";
        return Err(ApiError::conflict("top_logprobs", message));
    }
    let sampling = settings::sampling(&mut fields, vocabulary)?;
    let metadata = match fields.take("metadata") {
        Some(field) => field.object()?.clone(),
        None => Map::new(),
    };
    let stream = fields.boolean("stream")?.unwrap_or(false);
    if let Some(field) = fields.take("stream_options") {
        let mut options = field.fields()?;
        options.boolean("include_obfuscation")?;
        options.finish()?;
    }
    known::take(&mut fields, Endpoint::Responses)?;
    let names = fields.finish()?;
    let request = ResponsesRequest {
        model,
        input,
        instructions,
        tools: declared,
        tool_choice,
        parallel_tool_calls,
        text,
        reasoning,
        max_output_tokens,
        include,
        top_logprobs,
        sampling,
        metadata,
        stream,
        stream_options: (),
    };
    Ok((request, names))
}

/// Tools in the flat form of this API, `{"type": "function", "name": …}`, in that of chats.
fn declared(field: &Field<'_>) -> Result<Vec<Value>, ApiError> {
    let nested = |tool: &Value| {
        let Some(fields) = tool.as_object() else { return tool.clone() };
        let (kind, function): (Map<_, _>, Map<_, _>) =
            fields.clone().into_iter().partition(|(name, _)| name == "type");
        let mut tool = kind;
        tool.insert("function".to_owned(), function.into());
        tool.into()
    };
    let nested: Vec<Value> = tools::items(field)?.iter().map(nested).collect();
    prepared(&nested).map_err(|error| match error {
        ChatError::Tool { tool, path, fault, finding } => {
            let path = path.replacen(".function", "", 1);
            ChatError::Tool { tool, path, fault, finding }.into()
        }
        other => other.into(),
    })
}

/// `text.format`.
fn text_format(fields: &mut Fields<'_>) -> Result<ResponseFormat, ApiError> {
    let Some(field) = fields.take("text") else { return Ok(ResponseFormat::Text) };
    let mut text = field.fields()?;
    let medium = |value: &Value| value == "medium";
    text.refuse_unless("verbosity", medium, "the model was not trained for it")?;
    let format = match text.take("format") {
        None => ResponseFormat::Text,
        Some(field) => {
            let mut given = field.fields()?;
            let format = match format::kind(&given.need("type")?)? {
                Kind::Text => ResponseFormat::Text,
                Kind::JsonObject => ResponseFormat::JsonObject,
                Kind::JsonSchema => format::schema(&mut given)?,
            };
            given.finish()?;
            format
        }
    };
    text.finish()?;
    Ok(format)
}

/// `reasoning.effort`.
fn effort(fields: &mut Fields<'_>) -> Result<Option<String>, ApiError> {
    let Some(field) = fields.take("reasoning") else { return Ok(None) };
    let mut reasoning = field.fields()?;
    let effort = reasoning.take("effort");
    let effort =
        effort.map(|field| field.one_of(&EFFORTS).and_then(|_| field.text())).transpose()?;
    let effort = effort.map(str::to_owned);
    // The thought itself comes, which is more than a summary.
    for name in ["summary", "generate_summary"] {
        if let Some(field) = reasoning.take(name) {
            field.one_of(&[("auto", ()), ("concise", ()), ("detailed", ()), ("none", ())])?;
        }
    }
    reasoning.finish()?;
    Ok(effort)
}

/// Whether `include` asks for log-probabilities.
fn logprobs_included(fields: &mut Fields<'_>) -> Result<bool, ApiError> {
    let Some(field) = fields.take("include") else { return Ok(false) };
    let mut wanted = false;
    for item in field.list()? {
        match item.text()? {
            "message.output_text.logprobs" => wanted = true,
            "reasoning.encrypted_content" => {}
            _ => {
                let message =
                    format!("`{}` is {}: no such output is made here", item.path, item.value);
                return Err(ApiError::unsupported(&item.path, message));
            }
        }
    }
    Ok(wanted)
}
