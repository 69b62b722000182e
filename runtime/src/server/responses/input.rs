//! The items of an input, as messages of a chat.

use serde_json::{Map, Value, json};

use super::content::content;
use crate::chat::messages::parsed_arguments;
use crate::server::chat::tools::checked_name;
use crate::server::error::ApiError;
use crate::server::fields::{Field, Fields};

/// Most items of an input.
const MOST_ITEMS: usize = 10_000;

/// Reads `input`: a text, or items.
pub fn read(field: &Field<'_>, instructions: Option<&str>) -> Result<Vec<Value>, ApiError> {
    let mut chat = Chat::default();
    if let Some(text) = instructions {
        chat.messages.push(json!({"role": "system", "content": text}));
    }
    match field.value {
        Value::String(text) => chat.messages.push(json!({"role": "user", "content": text})),
        Value::Array(items) if items.is_empty() || items.len() > MOST_ITEMS => {
            return Err(field.wrong(&format!("1 to {MOST_ITEMS} items")));
        }
        Value::Array(_) => field.list()?.iter().try_for_each(|item| chat.item(item))?,
        _ => return Err(field.wrong("a string or a list of items")),
    }
    Ok(chat.finish())
}

/// The messages so far. A turn of the model's is several items: thought, text, calls.
#[derive(Default)]
struct Chat {
    messages: Vec<Value>,
    /// A thought whose text or call is yet to come.
    thought: Option<String>,
    /// Ids and names of the calls so far.
    calls: Vec<(String, String)>,
}

impl Chat {
    fn item(&mut self, item: &Field<'_>) -> Result<(), ApiError> {
        let mut fields = item.fields()?;
        let kind = fields.take("type");
        match kind.as_ref().map(Field::text).transpose()? {
            None | Some("message") => self.message(&mut fields)?,
            Some("function_call") => self.call(&mut fields)?,
            Some("function_call_output") => self.output(&mut fields)?,
            Some("reasoning") => self.reasoning(&mut fields)?,
            Some("item_reference") => {
                let message = "`item_reference` is not supported: nothing is stored, send the item";
                return Err(ApiError::unsupported(&item.path, message));
            }
            Some(_) => {
                let kind = kind.unwrap_or_else(|| item.clone());
                let expected =
                    "\"message\", \"function_call\", \"function_call_output\" or \"reasoning\"";
                return Err(kind.wrong(expected));
            }
        }
        // Items of a reply come back with these; they change nothing.
        fields.text("id")?;
        fields.text("status")?;
        fields.finish().map(drop)
    }

    fn message(&mut self, fields: &mut Fields<'_>) -> Result<(), ApiError> {
        let role = fields.need("role")?;
        let roles = ["system", "developer", "user", "assistant"].map(|name| (name, name));
        let role = role.one_of(&roles)?;
        let content = content(&fields.need("content")?, role == "assistant")?;
        fields.text("phase")?;
        if role != "assistant" {
            self.flush();
            self.messages.push(json!({"role": role, "content": content}));
            return Ok(());
        }
        let mut message = json!({"role": role, "content": content});
        if let Some(thought) = self.thought.take() {
            message["reasoning_content"] = thought.into();
        }
        self.messages.push(message);
        Ok(())
    }

    fn call(&mut self, fields: &mut Fields<'_>) -> Result<(), ApiError> {
        let id = fields.need("call_id")?.text()?;
        let name = checked_name(&fields.need("name")?)?;
        let arguments = fields.need("arguments")?;
        let arguments = parsed_arguments(arguments.value)
            .map_err(|_| arguments.wrong("the text of a JSON object"))?;
        self.calls.push((id.to_owned(), name.clone()));
        let function = json!({"name": name, "arguments": arguments});
        let call = json!({"id": id, "type": "function", "function": function});
        // A call belongs to the text before it, unless a thought began another turn.
        let last = match (self.messages.last_mut(), &self.thought) {
            (Some(last), None) if last["role"] == "assistant" => last,
            _ => {
                self.flush_into_message();
                self.messages.last_mut().unwrap_or_else(|| unreachable!("one was just pushed"))
            }
        };
        match last.get_mut("tool_calls").and_then(Value::as_array_mut) {
            Some(calls) => calls.push(call),
            None => last["tool_calls"] = json!([call]),
        }
        Ok(())
    }

    fn output(&mut self, fields: &mut Fields<'_>) -> Result<(), ApiError> {
        self.flush();
        let id = fields.need("call_id")?;
        let output = content(&fields.need("output")?, false)?;
        let called = id.text()?;
        let Some((_, name)) = self.calls.iter().rev().find(|(known, _)| known == called) else {
            return Err(id.wrong("the call_id of a function_call before this item"));
        };
        self.messages
            .push(json!({"role": "tool", "tool_call_id": called, "name": name, "content": output}));
        Ok(())
    }

    fn reasoning(&mut self, fields: &mut Fields<'_>) -> Result<(), ApiError> {
        let mut thought = String::new();
        for name in ["content", "summary"] {
            let parts =
                fields.take(name).map(|field| field.list()).transpose()?.unwrap_or_default();
            for part in parts {
                let mut part = part.fields()?;
                part.need("type")?.one_of(&[("reasoning_text", ()), ("summary_text", ())])?;
                let text = part.need("text")?.text()?;
                // A summary of a thought that is there would say it twice.
                if name == "content" || thought.is_empty() {
                    thought.push_str(text);
                }
                part.finish()?;
            }
        }
        fields.refuse_unless("encrypted_content", |_| false, "thoughts are plain text here")?;
        self.flush();
        self.thought = Some(thought).filter(|thought| !thought.is_empty());
        Ok(())
    }

    /// A thought that nothing followed is a turn of its own.
    fn flush(&mut self) {
        if self.thought.is_some() {
            self.flush_into_message();
        }
    }

    fn flush_into_message(&mut self) {
        let mut message = Map::new();
        message.insert("role".to_owned(), "assistant".into());
        message.insert("content".to_owned(), "".into());
        if let Some(thought) = self.thought.take() {
            message.insert("reasoning_content".to_owned(), thought.into());
        }
        self.messages.push(message.into());
    }

    fn finish(mut self) -> Vec<Value> {
        self.flush();
        self.messages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_items_of_a_turn_become_one_message() {
        let input = json!([
            {"role": "user", "content": [{"type": "input_text", "text": "w?"}]},
            {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
            {"type": "function_call", "id": "i", "call_id": "c1", "name": "f", "arguments": "{}", "status": "completed"},
            {"type": "function_call", "call_id": "c2", "name": "g", "arguments": "{\"x\":1}"},
            {"type": "function_call_output", "call_id": "c2", "output": "21"},
            {"type": "message", "role": "assistant", "id": "m", "status": "completed",
             "content": [{"type": "output_text", "text": "done", "annotations": [], "logprobs": []}]},
        ]);
        let messages = read(&Field::new("input", &input), Some("Be short.")).expect("sound");
        let roles: Vec<&str> = messages.iter().filter_map(|m| m["role"].as_str()).collect();
        assert_eq!(roles, ["system", "user", "assistant", "tool", "assistant"]);
        assert_eq!(messages[2]["reasoning_content"], "hm");
        assert_eq!(messages[2]["tool_calls"].as_array().map(Vec::len), Some(2));
        assert_eq!(messages[3]["name"], "g");
    }

    #[test]
    fn faulty_items_are_named() {
        for (input, path) in [
            (json!([]), "input"),
            (json!(3), "input"),
            (json!([{"type": "item_reference", "id": "x"}]), "input[0]"),
            (json!([{"type": "web_search_call"}]), "input[0].type"),
            (
                json!([{"type": "function_call_output", "call_id": "x", "output": ""}]),
                "input[0].call_id",
            ),
            (json!([{"role": "tool", "content": ""}]), "input[0].role"),
            (json!([{"role": "user", "content": "x", "mood": 1}]), "input[0].mood"),
        ] {
            let error = read(&Field::new("input", &input), None).expect_err("faulty").body();
            assert_eq!(error["error"]["param"], path, "{error}");
        }
    }
}
