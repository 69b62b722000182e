//! What holds an answer to a form: a JSON schema, or calls of declared tools.

use serde_json::Value;

use super::error::ApiError;
use super::service::Service;
use super::wire::chat::{ResponseFormat, ToolChoice};
use crate::constraint::Constraint;

/// What a request says of the form of its answers.
pub struct Form<'r> {
    /// The form of the text.
    pub format: &'r ResponseFormat,
    /// Which tools are to be called.
    pub choice: &'r ToolChoice,
    /// The tools that are offered.
    pub tools: &'r [Value],
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
    (0..answers).map(|_| constraint(form)).collect()
}

/// No form is enforced yet: what asks for one is refused, never ignored.
fn constraint(form: &Form<'_>) -> Result<Option<Box<dyn Constraint>>, ApiError> {
    if *form.format != ResponseFormat::Text {
        let message = "`response_format` other than \"text\" is not enforced yet";
        return Err(ApiError::unsupported("response_format", message));
    }
    if matches!(form.choice, ToolChoice::Required | ToolChoice::Named(_)) {
        let message = "`tool_choice` other than \"auto\" and \"none\" is not enforced yet";
        return Err(ApiError::unsupported("tool_choice", message));
    }
    if form.tools.iter().any(|tool| tool["function"]["strict"] == true) {
        let message = "`strict`: true is not enforced yet; leave it out or give false";
        return Err(ApiError::unsupported("tools", message));
    }
    Ok(None)
}
