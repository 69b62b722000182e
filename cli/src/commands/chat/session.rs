//! A conversation as it stands, and as a file.

use crate::message::Usage;
use crate::output;
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::path::Path;
use w4pack_runtime::chat::{ChatText, Conversation, Prompt, ToolCall};

/// The conversation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Session {
    /// The system message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    /// All other messages, in OpenAI's form.
    #[serde(default)]
    pub messages: Vec<Value>,
    /// Declared tools, in OpenAI's form.
    #[serde(default)]
    pub tools: Vec<Value>,
    /// Whether the model is to think; `None` leaves it to the template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enable_thinking: Option<bool>,
}

/// What the model has said.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Said {
    pub reasoning: Option<String>,
    pub content: Option<String>,
    pub calls: Vec<ToolCall>,
}

impl Session {
    /// Reads a file that [`Session::save`] wrote, and sees whether this model can go on with it.
    pub fn load(path: &Path, text: &ChatText) -> Result<Session> {
        let session: Session = read(path)?;
        session.prompt(text).with_context(|| format!("cannot go on with `{}`", path.display()))?;
        Ok(session)
    }

    /// Writes the conversation.
    pub fn save(&self, path: &Path) -> Result<()> {
        let mut json = serde_json::to_vec_pretty(self)?;
        json.push(b'\n');
        output::file(path, &json)
    }

    /// Declares the tools of a file, if this model's template takes them.
    pub fn declare(&mut self, path: &Path, text: &ChatText) -> Result<()> {
        let declared = Session { tools: read(path)?, ..self.clone() };
        declared.prompt(text).with_context(|| format!("cannot declare `{}`", path.display()))?;
        *self = declared;
        Ok(())
    }

    /// The prompt that asks for the next answer.
    pub fn prompt(&self, text: &ChatText) -> Result<Prompt> {
        let system = self.system.iter().map(|text| json!({"role": "system", "content": text}));
        let messages: Vec<Value> = system.chain(self.messages.iter().cloned()).collect();
        let conversation = Conversation {
            messages: &messages,
            tools: &self.tools,
            enable_thinking: self.enable_thinking,
            extra: None,
        };
        Ok(text.prompt(&conversation)?)
    }

    /// Adds what the model has said.
    pub fn add_answer(&mut self, said: &Said) {
        let number = self.calls() + 1;
        let calls = said.calls.iter().enumerate().map(|(index, call)| {
            json!({"id": format!("call_{}", number + index), "type": "function",
                   "function": {"name": call.name, "arguments": call.arguments}})
        });
        let mut message = json!({"role": "assistant", "content": said.content});
        if let Some(reasoning) = &said.reasoning {
            message["reasoning_content"] = reasoning.as_str().into();
        }
        if !said.calls.is_empty() {
            message["tool_calls"] = calls.collect();
        }
        self.messages.push(message);
    }

    /// The call that waits for its result: id and name.
    pub fn waiting(&self) -> Option<(String, String)> {
        let caller = self.messages.iter().rposition(|message| message["role"] != "tool")?;
        let calls = self.messages[caller]["tool_calls"].as_array()?;
        let call = calls.get(self.messages.len() - caller - 1)?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Some((text(&call["id"]), text(&call["function"]["name"])))
    }

    /// Adds a tool's result.
    pub fn add_result(&mut self, id: &str, result: &str) {
        self.messages.push(json!({"role": "tool", "tool_call_id": id, "content": result}));
    }

    /// Takes the last message of the user back with all that followed; false if there is none.
    pub fn undo(&mut self) -> bool {
        let last = self.messages.iter().rposition(|message| message["role"] == "user");
        self.messages.truncate(last.unwrap_or(0));
        last.is_some()
    }

    fn calls(&self) -> usize {
        self.messages
            .iter()
            .filter_map(|message| message["tool_calls"].as_array())
            .map(Vec::len)
            .sum()
    }
}

fn read<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<T> {
    let bytes = std::fs::read(path)
        .map_err(|error| Usage::new(format!("cannot read `{}`: {error}", path.display())))?;
    serde_json::from_slice(&bytes)
        .map_err(|error| Usage::new(format!("`{}`: {error}", path.display())).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn called() -> Session {
        let call = |name: &str| ToolCall { name: name.to_owned(), arguments: "{}".to_owned() };
        let mut session = Session::default();
        session.messages.push(json!({"role": "user", "content": "?"}));
        session.add_answer(&Said { calls: vec![call("f"), call("g")], ..Said::default() });
        session
    }

    #[test]
    fn calls_wait_for_their_results_in_order() {
        let mut session = called();
        let waiting = |session: &Session| session.waiting();
        assert_eq!(waiting(&session), Some(("call_1".to_owned(), "f".to_owned())));
        session.add_result("call_1", "x");
        assert_eq!(waiting(&session), Some(("call_2".to_owned(), "g".to_owned())));
        session.add_result("call_2", "y");
        assert_eq!(waiting(&session), None);
        let call = ToolCall { name: "h".to_owned(), arguments: "{}".to_owned() };
        session.add_answer(&Said { calls: vec![call], ..Said::default() });
        assert_eq!(waiting(&session), Some(("call_3".to_owned(), "h".to_owned())));
    }

    #[test]
    fn undo_takes_back_to_the_users_last_message() {
        let mut session = called();
        assert!(session.undo() && session.messages.is_empty());
        assert!(!session.undo());
    }

    #[test]
    fn files_with_unknown_fields_are_refused() {
        assert!(serde_json::from_str::<Session>(r#"{"messages": [], "mood": 1}"#).is_err());
        let session = Session { system: Some("s".to_owned()), ..called() };
        let written = serde_json::to_string(&session).expect("JSON");
        assert_eq!(serde_json::from_str::<Session>(&written).expect("JSON"), session);
    }
}
