//! Fields of OpenAI's API that this server knows and does not carry out.
//!
//! Some change nothing in an answer here: they are accepted. Others would change it: they are
//! accepted only with a value that asks for nothing, and refused by name otherwise. The tables of
//! docs/server.md are printed from here.

use serde_json::Value;

use super::error::ApiError;
use super::fields::Fields;

/// The endpoints that generate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Endpoint {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Completions,
    /// `/v1/responses`
    Responses,
}

use Endpoint::{Chat, Completions, Responses};

impl Endpoint {
    /// All of them.
    pub const ALL: [Endpoint; 3] = [Chat, Completions, Responses];

    /// The path, for the documentation.
    #[cfg(test)]
    pub fn path(self) -> &'static str {
        match self {
            Chat => "/v1/chat/completions",
            Completions => "/v1/completions",
            Responses => "/v1/responses",
        }
    }

    /// The name of its request's schema.
    pub fn request(self) -> &'static str {
        match self {
            Chat => "ChatRequest",
            Completions => "CompletionRequest",
            Responses => "ResponsesRequest",
        }
    }
}

/// A field that is known and not carried out.
#[derive(Debug, Clone, Copy)]
pub struct Known {
    /// Where it may stand.
    pub endpoints: &'static [Endpoint],
    /// The field.
    pub name: &'static str,
    /// The values that are accepted, as JSON; `None`: all.
    pub accepted: Option<&'static [&'static str]>,
    /// Why it changes nothing, or what is missing.
    pub why: &'static str,
}

const fn idle(endpoints: &'static [Endpoint], name: &'static str, why: &'static str) -> Known {
    Known { endpoints, name, accepted: None, why }
}

const fn refused(
    endpoints: &'static [Endpoint],
    name: &'static str,
    accepted: &'static [&'static str],
    why: &'static str,
) -> Known {
    Known { endpoints, name, accepted: Some(accepted), why }
}

/// All of them.
pub const KNOWN: &[Known] = &[
    idle(&[Chat, Completions, Responses], "user", "requests are not kept apart by user"),
    idle(&[Chat], "metadata", "nothing is stored"),
    idle(&[Chat], "store", "nothing is stored"),
    idle(&[Chat, Responses], "service_tier", "there is one tier"),
    idle(&[Chat, Responses], "safety_identifier", "requests are not kept apart by user"),
    idle(&[Chat, Responses], "prompt_cache_key", "prompts are found in the cache by their tokens"),
    idle(&[Chat, Responses], "prompt_cache_retention", "the cache keeps what it has room for"),
    idle(&[Chat], "prediction", "it could only make an answer faster"),
    refused(&[Chat], "modalities", &[r#"["text"]"#], "this model writes text"),
    refused(&[Chat], "audio", &[], "this model writes text"),
    refused(&[Chat], "web_search_options", &[], "this server searches nothing"),
    refused(&[Chat], "verbosity", &[r#""medium""#], "the model was not trained for it"),
    refused(&[Chat], "functions", &[], "that form is gone, use `tools`"),
    refused(&[Chat], "function_call", &[], "that form is gone, use `tool_choice`"),
    refused(&[Completions], "echo", &["false"], "prompts are not repeated or scored"),
    refused(&[Completions], "suffix", &[r#""""#], "the model was not trained to fill gaps"),
    refused(
        &[Responses],
        "store",
        &["false", "true"],
        "nothing is stored; the reply says `\"store\": false`",
    ),
    refused(&[Responses], "previous_response_id", &[], "nothing is stored; send the whole input"),
    refused(&[Responses], "conversation", &[], "nothing is stored; send the whole input"),
    refused(&[Responses], "background", &["false"], "an answer lives as long as its connection"),
    refused(&[Responses], "prompt", &[], "there are no stored prompts"),
    refused(
        &[Responses],
        "truncation",
        &[r#""disabled""#],
        "input that the context does not hold is refused",
    ),
    refused(&[Responses], "max_tool_calls", &[], "no tool is run by this server"),
    refused(&[Responses], "context_management", &["[]"], "nothing is left out of an input"),
];

/// The fields of one endpoint.
pub fn at(endpoint: Endpoint) -> impl Iterator<Item = &'static Known> {
    KNOWN.iter().filter(move |field| field.endpoints.contains(&endpoint))
}

/// Takes them out of a request, and refuses what would change the answer.
pub fn take(fields: &mut Fields<'_>, endpoint: Endpoint) -> Result<(), ApiError> {
    for field in at(endpoint) {
        match field.accepted {
            None => drop(fields.take(field.name)),
            Some(accepted) => {
                let asks_for_nothing = |value: &Value| accepted.contains(&&*value.to_string());
                fields.refuse_unless(field.name, asks_for_nothing, field.why)?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Accepted values are compared as text: they must be written as they are printed.
    #[test]
    fn accepted_values_are_json_as_printed() {
        for text in KNOWN.iter().filter_map(|field| field.accepted).flatten() {
            let value: Value = serde_json::from_str(text).expect("it is JSON");
            assert_eq!(value.to_string(), *text);
        }
    }
}
