//! What the small model is asked: a sum, a tool, and a code in a list.

use anyhow::{Context, Result};
use serde_json::{Value, json};
use w4pack_fixtures::trained;
use w4pack_runtime::chat::{
    ChatTemplate, Output, RenderRequest, SpecialTokens, Tokenizer, parse_output,
};

/// A question and the answer that must come.
pub struct Question {
    /// What it shows.
    pub about: &'static str,
    /// How it is shown to a reader.
    pub shown: String,
    /// The rendered prompt.
    pub prompt: String,
    /// Its ids.
    pub ids: Vec<u32>,
    /// The answer.
    pub expected: String,
}

/// Text to ids and back, from the files inside the program.
pub struct Chat {
    pub tokenizer: Tokenizer,
    template: ChatTemplate,
}

impl Chat {
    pub fn load() -> Result<Chat> {
        let file = |name: &str| {
            let found = trained::FILES.into_iter().find(|file| file.0 == name);
            found.map(|file| file.1).with_context(|| format!("the demo's model has no `{name}`"))
        };
        let settings = file("tokenizer_config.json")?;
        let tokenizer = Tokenizer::from_bytes(file("tokenizer.json")?, Some(settings), None)?;
        let template = std::str::from_utf8(file("chat_template.jinja")?)?;
        let template =
            ChatTemplate::load(Some(template), Some(settings), tokenizer.named_tokens())?
                .context("the demo's model has no chat template")?;
        Ok(Chat { tokenizer, template })
    }

    /// An answer as a person reads it; a call as `name {arguments}`.
    pub fn read(&self, question: &Question, ids: &[u32]) -> Result<String> {
        let text = self.tokenizer.decode(ids, SpecialTokens::Show)?;
        let Output { content, calls, .. } = parse_output(&question.prompt, &text);
        let calls = calls.iter().map(|call| format!("{} {}", call.name, call.arguments));
        let parts: Vec<String> = content.into_iter().chain(calls).collect();
        Ok(parts.join("\n"))
    }

    pub fn questions(&self) -> Result<Vec<Question>> {
        let weather = json!({"type": "function", "function": {
            "name": "get_weather",
            "description": "Current weather for a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        }});
        let (records, code) = records();
        let last = "What is the code of record 23?";
        Ok(vec![
            self.question("a sum", "What's 17+25?", None, &[], "42")?,
            self.question(
                "a tool (get_weather is declared)",
                "What is the weather in Paris right now?",
                None,
                &[weather],
                r#"get_weather {"city":"Paris"}"#,
            )?,
            self.question("a code in a list of 60", last, Some(&records), &[], &code)?,
        ])
    }

    fn question(
        &self,
        about: &'static str,
        text: &str,
        context: Option<&str>,
        tools: &[Value],
        expected: &str,
    ) -> Result<Question> {
        let content = context.map_or(text.to_string(), |context| format!("{context}\n{text}"));
        let messages = [json!({"role": "user", "content": content})];
        let request = RenderRequest {
            messages: &messages,
            tools,
            add_generation_prompt: true,
            ..RenderRequest::default()
        };
        let prompt = self.template.render(&request)?;
        let ids = self.tokenizer.encode_prompt(&prompt)?;
        let shown = match context {
            Some(context) => {
                let first: Vec<&str> = context.lines().take(2).collect();
                format!("{} … {text}", first.join(" / "))
            }
            None => text.to_string(),
        };
        Ok(Question { about, shown, prompt, ids, expected: expected.into() })
    }
}

/// Sixty records, and the code of record 23: six digits from a fixed rule.
fn records() -> (String, String) {
    let code = |number: u64| (number * 7919 * 7919 + 104_729) % 900_000 + 100_000;
    let lines: Vec<String> =
        (1..=60).map(|number| format!("Record {number}: {}", code(number))).collect();
    (lines.join("\n"), code(23).to_string())
}
