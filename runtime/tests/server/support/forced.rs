//! Outputs that the model would not write, forced through the server's hook for tests.
//!
//! A last message of the form `force: ["text", 241, …]` makes the answer exactly these tokens:
//! numbers are ids, texts are cut into tokens with control tokens as such, and `["text", 9]` is that
//! text nine times. `{"pause": 20}` among them makes every token take 20 ms at least: an answer that is
//! still on its way whenever somebody looks, whatever the machine's speed. Behind them comes the token that
//! ends a turn. Everything else of the server is the real one.

use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;
use w4pack_runtime::Result;
use w4pack_runtime::chat::Tokenizer;
use w4pack_runtime::constraint::{Allowed, Constraint};
use w4pack_runtime::server::ConstraintHook;

/// What a message begins with that forces its answer.
pub const MARKER: &str = "force: ";

/// One id after the other.
#[derive(Clone)]
struct Forced {
    ids: Vec<u32>,
    at: usize,
    mask: Vec<u32>,
    pause: Duration,
}

impl Constraint for Forced {
    fn next(&mut self) -> Result<Allowed<'_>> {
        std::thread::sleep(self.pause);
        let id = self.ids[self.at.min(self.ids.len() - 1)] as usize;
        self.mask.clear();
        self.mask.resize(id / 32 + 1, 0);
        self.mask[id / 32] = 1 << (id % 32);
        Ok(Allowed::Only(&self.mask))
    }

    fn accept(&mut self, _id: u32) -> Result<()> {
        self.at += 1;
        Ok(())
    }

    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}

/// A hook that forces what the last message says.
pub fn hook(tokenizer: Arc<Tokenizer>) -> ConstraintHook {
    Arc::new(move |messages: &[Value]| {
        let content = &messages.last()?["content"];
        let text = content.as_str().or_else(|| content[0]["text"].as_str())?;
        let wanted: Vec<Value> = serde_json::from_str(text.strip_prefix(MARKER)?).ok()?;
        let (mut ids, mut pause) = (Vec::new(), Duration::ZERO);
        for piece in wanted {
            match piece {
                Value::Number(id) => ids.push(id.as_u64()? as u32),
                Value::String(text) => ids.extend(tokenizer.encode_prompt(&text).ok()?),
                Value::Array(repeated) => {
                    let once = tokenizer.encode_prompt(repeated.first()?.as_str()?).ok()?;
                    let times = repeated.get(1)?.as_u64()? as usize;
                    ids.extend(once.repeat(times));
                }
                Value::Object(more) => pause = Duration::from_millis(more.get("pause")?.as_u64()?),
                _ => return None,
            }
        }
        ids.push(tokenizer.id("<turn|>")?);
        Some(Box::new(Forced { ids, at: 0, mask: Vec::new(), pause }))
    })
}
