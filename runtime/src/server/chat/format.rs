//! `response_format`: the form that an answer is held to.

use serde_json::Value;

use super::tools::checked_name;
use crate::server::error::ApiError;
use crate::server::fields::{Field, Fields};
use crate::server::wire::chat::ResponseFormat;

/// The forms there are.
#[derive(Clone, Copy)]
pub enum Kind {
    Text,
    JsonObject,
    JsonSchema,
}

/// Reads `response_format` of chat completions.
pub fn read(fields: &mut Fields<'_>) -> Result<ResponseFormat, ApiError> {
    let Some(field) = fields.take("response_format") else { return Ok(ResponseFormat::Text) };
    let mut fields = field.fields()?;
    let format = match kind(&fields.need("type")?)? {
        Kind::Text => ResponseFormat::Text,
        Kind::JsonObject => ResponseFormat::JsonObject,
        Kind::JsonSchema => {
            let mut given = fields.need("json_schema")?.fields()?;
            let format = schema(&mut given)?;
            given.finish()?;
            format
        }
    };
    fields.finish()?;
    Ok(format)
}

/// The type of a form.
pub fn kind(field: &Field<'_>) -> Result<Kind, ApiError> {
    match field.text()? {
        "text" => Ok(Kind::Text),
        "json_object" => Ok(Kind::JsonObject),
        "json_schema" => Ok(Kind::JsonSchema),
        "grammar" | "python" => {
            let message =
                format!("`{}` is {}: this server has no such form", field.path, field.value);
            Err(ApiError::unsupported(&field.path, message))
        }
        _ => Err(field.wrong("\"text\", \"json_object\" or \"json_schema\"")),
    }
}

/// Name, schema, description and strictness. The answer is held to the schema whether or not it
/// is called strict: OpenAI promises less without it, never something else.
pub fn schema(given: &mut Fields<'_>) -> Result<ResponseFormat, ApiError> {
    checked_name(&given.need("name")?)?;
    given.text("description")?;
    given.boolean("strict")?;
    let schema = given.need("schema")?;
    schema.object()?;
    Ok(ResponseFormat::JsonSchema(Value::clone(schema.value)))
}
