//! The content of an item, as the content of a chat's message.

use serde_json::{Value, json};

use crate::server::error::ApiError;
use crate::server::fields::Field;

/// Text, or a list of parts that are texts.
pub fn content(field: &Field<'_>, by_assistant: bool) -> Result<Value, ApiError> {
    if field.value.is_string() {
        return Ok(field.value.clone());
    }
    if !field.value.is_array() {
        return Err(field.wrong("a string or a list of parts"));
    }
    let mut parts = Vec::new();
    for item in field.list()? {
        let mut fields = item.fields()?;
        let kind = fields.need("type")?;
        match kind.text()? {
            "input_text" | "text" => {}
            "output_text" if by_assistant => {}
            "image_url" | "input_image" | "input_audio" | "video_url" | "file" | "input_file" => {
                let message =
                    format!("`{}` is {}: this model reads text only", kind.path, kind.value);
                return Err(ApiError::unsupported(&kind.path, message));
            }
            _ => return Err(kind.wrong("\"input_text\"")),
        }
        let text = fields.need("text")?.text()?;
        parts.push(json!({"type": "text", "text": text}));
        // What came with a part of an answer, sent back.
        let nothing = |value: &Value| value.as_array().is_some_and(Vec::is_empty);
        fields.refuse_unless("annotations", nothing, "this server makes none")?;
        fields.refuse_unless("logprobs", nothing, "a message has none")?;
        fields.finish()?;
    }
    Ok(parts.into())
}
