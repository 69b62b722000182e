//! Thoughts in an assistant's message, and which of its texts they belong to.

use serde_json::{Map, Value};

use crate::chat::markers::{CHANNEL, CHANNEL_END};

/// The two messages of one that has both text and calls.
pub(super) fn split(message: &Map<String, Value>, thoughts_with_calls: bool) -> Option<[Value; 2]> {
    let calls = message.get("tool_calls").and_then(Value::as_array)?;
    if calls.is_empty() || !has_text(message.get("content")?) {
        return None;
    }
    let (mut text, mut calling) = (message.clone(), message.clone());
    for key in ["tool_calls", "tool_responses"] {
        text.remove(key);
    }
    calling.insert("content".to_owned(), Value::Null);
    let without_thought = if thoughts_with_calls { &mut text } else { &mut calling };
    for key in ["reasoning", "reasoning_content"] {
        without_thought.remove(key);
    }
    Some([text.into(), calling.into()])
}

fn has_text(content: &Value) -> bool {
    match content {
        Value::String(text) => !text.trim().is_empty(),
        Value::Array(parts) => parts.iter().any(|part| has_text(&part["text"])),
        _ => false,
    }
}

/// Cuts thoughts out of an assistant's text, part by part.
pub(super) fn cut_thoughts(content: &mut Value) {
    match content {
        Value::String(text) if text.contains(CHANNEL) || text.contains(CHANNEL_END) => {
            *text = without_thoughts(text);
        }
        Value::Array(parts) => parts.iter_mut().for_each(|part| cut_thoughts(&mut part["text"])),
        _ => {}
    }
}

/// What stands outside `<|channel>…<channel|>`; a channel without an end reaches to the end.
fn without_thoughts(text: &str) -> String {
    let outside = |part: &str| part.find(CHANNEL).map_or(part.len(), |at| at);
    text.split(CHANNEL_END).map(|part| &part[..outside(part)]).collect()
}
