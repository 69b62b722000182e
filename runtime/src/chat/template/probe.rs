//! A template is tried when it is loaded: conversations that go through all branches a Gemma
//! template has.
//!
//! Jinja looks a filter up only when it runs. A template with an unknown one in its tool branch
//! would load, chat, and fail when the first tool answers. So every kind of message, tool and
//! schema is rendered once, and what cannot work is refused or told at once.

use serde_json::{Map, Value, json};

use super::super::markers::TURN_END;
use super::{ChatError, ChatTemplate, RenderRequest};

/// A fault of a template that does not keep it from being used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateWarning {
    /// Field case 17: the turn is closed after a tool's result, and no turn of the model is opened,
    /// so the model would start with no role and loop on empty thoughts.
    #[error(
        "{file}: {when}, this template closes the turn after the tool's result and opens no new \
         one; models answer that with noise or empty thoughts without end. Here <|turn>model is \
         written behind such a prompt; other programs may not do that"
    )]
    NoModelTurnAfterTool {
        /// The template's file.
        file: String,
        /// In which history.
        when: &'static str,
    },
    /// A tool's result does not reach the prompt.
    #[error("{file}: this template leaves the results of tools (messages of role \"tool\") out")]
    DropsToolResults {
        /// The template's file.
        file: String,
    },
    /// The declarations of tools do not reach the prompt.
    #[error("{file}: this template leaves the declarations of tools out")]
    DropsTools {
        /// The template's file.
        file: String,
    },
    /// The template refuses a kind of conversation, or fails on it.
    #[error("{file}, line {line}: this template cannot render a prompt {what}: {message}")]
    Refuses {
        /// The template's file.
        file: String,
        /// One-based line of the template's text.
        line: usize,
        /// The kind of conversation.
        what: &'static str,
        /// The template's own words, or the engine's.
        message: String,
    },
}

impl TemplateWarning {
    /// Whether the fault shows only where an assistant's message has both text and calls. Such a
    /// message is split before it is rendered, see [`messages`](super::super::messages).
    pub fn concerns_text_with_calls(&self) -> bool {
        matches!(self, Self::NoModelTurnAfterTool { when, .. } if WITH_TEXT.contains(when))
    }
}

/// Histories in which an assistant's message has both text and calls.
const WITH_TEXT: [&str; 2] = [
    "after an assistant message with text and tool calls",
    "after an assistant message with text and tool_responses",
];
/// Words by which a probe is found again in what is rendered.
const QUESTION: &str = "probe-question";
const RESULT: &str = "probe-result";
const TOOL: &str = "probe_tool";

/// Renders every probe. What uses something unknown, or loses a plain question, is an error.
pub(super) fn try_all(template: &ChatTemplate) -> Result<Vec<TemplateWarning>, ChatError> {
    let mut warnings = Vec::new();
    for probe in probes() {
        let file = template.file.clone();
        let text = match template.render(&probe.request()) {
            Ok(text) => text,
            Err(
                ChatError::Refused { file, line, message }
                | ChatError::Rendering { file, line, finding: message },
            ) if probe.kind != Kind::Question => {
                warnings.push(TemplateWarning::Refuses { file, line, what: probe.what, message });
                continue;
            }
            Err(error) => return Err(error),
        };
        match probe.kind {
            Kind::Question if !text.contains(QUESTION) => {
                let finding = "the text of a user's message is not in the prompt".to_owned();
                return Err(ChatError::UselessTemplate { file, finding });
            }
            Kind::Tools if !text.contains(TOOL) => {
                warnings.push(TemplateWarning::DropsTools { file });
            }
            Kind::Result if !text.contains(RESULT) => {
                warnings.push(TemplateWarning::DropsToolResults { file });
            }
            Kind::Result | Kind::NativeResult if text.trim_end().ends_with(TURN_END) => {
                warnings.push(TemplateWarning::NoModelTurnAfterTool { file, when: probe.what });
            }
            _ => {}
        }
    }
    Ok(warnings)
}

/// What must be true of a probe's prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// It must render, and hold the question.
    Question,
    /// It holds the tools' declarations.
    Tools,
    /// It ends behind a tool's result, which it holds, where the model is to go on.
    Result,
    /// The same with the result in `tool_responses`, which only Gemma's templates know.
    NativeResult,
    /// It renders.
    Renders,
}

struct Probe {
    kind: Kind,
    what: &'static str,
    messages: Vec<Value>,
    tools: Vec<Value>,
    thinking: bool,
    extra: Map<String, Value>,
}

impl Probe {
    fn new(kind: Kind, what: &'static str, messages: Vec<Value>) -> Self {
        Self { kind, what, messages, tools: Vec::new(), thinking: false, extra: Map::new() }
    }

    fn with_tools(mut self) -> Self {
        self.tools = tools();
        self
    }

    fn thinking(mut self) -> Self {
        self.thinking = true;
        self
    }

    fn preserving_thoughts(mut self) -> Self {
        self.extra.insert("preserve_thinking".to_owned(), true.into());
        self
    }

    fn request(&self) -> RenderRequest<'_> {
        RenderRequest {
            messages: &self.messages,
            tools: &self.tools,
            enable_thinking: self.thinking.then_some(true),
            add_generation_prompt: true,
            extra: Some(&self.extra),
        }
    }
}

fn probes() -> Vec<Probe> {
    let question = || json!({"role": "user", "content": QUESTION});
    let system = || json!({"role": "system", "content": "Be brief."});
    let said = |text: &str| json!({"role": "assistant", "content": text});
    let result = || json!({"role": "tool", "tool_call_id": "1", "content": RESULT});
    let parts = |text: &str| json!([{"type": "text", "text": text}]);
    let media = |text: &str| json!([{"type": "text", "text": text}, {"type": "image"}, {"type": "audio"}, {"type": "video"}]);
    let native =
        json!([{"name": TOOL, "response": {"value": RESULT, "list": [{"a": null}], "n": 1.5}}]);
    vec![
        Probe::new(Kind::Question, "with a single question", vec![question()]),
        Probe::new(Kind::Renders, "with thinking on", vec![question()]).thinking(),
        Probe::new(Kind::Renders, "with a system message", vec![system(), question()]),
        Probe::new(
            Kind::Renders,
            "with a system message in parts",
            vec![json!({"role": "system", "content": parts("Be brief.")}), question()],
        ),
        Probe::new(
            Kind::Renders,
            "with a history",
            vec![question(), said("<|channel>thought\nx<channel|>one"), said("two"), question()],
        ),
        Probe::new(
            Kind::Renders,
            "with contents in parts",
            vec![
                json!({"role": "user", "content": parts("one")}),
                json!({"role": "assistant", "content": parts("two")}),
                question(),
            ],
        ),
        Probe::new(
            Kind::Renders,
            "with pictures and sound",
            vec![json!({"role": "user", "content": media(QUESTION)})],
        ),
        Probe::new(Kind::Tools, "with tools", vec![question()]).with_tools(),
        Probe::new(
            Kind::Renders,
            "with tools, a system message and thinking",
            vec![system(), question()],
        )
        .with_tools()
        .thinking(),
        Probe::new(
            Kind::Renders,
            "after tool calls without results",
            vec![question(), calling(json!(null))],
        )
        .with_tools(),
        Probe::new(
            Kind::Result,
            "after tool calls",
            vec![question(), calling(json!(null)), result()],
        )
        .with_tools(),
        Probe::new(
            Kind::Result,
            WITH_TEXT[0],
            vec![question(), calling(json!("Let me look.")), result()],
        )
        .with_tools(),
        Probe::new(
            Kind::Result,
            "after tool calls while thinking",
            vec![question(), calling(json!("")), result()],
        )
        .with_tools()
        .thinking(),
        Probe::new(
            Kind::Result,
            "after a tool's result in parts",
            vec![
                question(),
                calling(json!(null)),
                json!({"role": "tool", "tool_call_id": "1", "content": media(RESULT)}),
            ],
        )
        .with_tools(),
        Probe::new(
            Kind::Result,
            "after a tool's result without an id",
            vec![
                question(),
                calling(json!(null)),
                json!({"role": "tool", "name": TOOL, "content": RESULT}),
            ],
        )
        .with_tools(),
        Probe::new(
            Kind::NativeResult,
            "after an assistant message with tool_responses",
            vec![question(), with_responses(calling(json!(null)), &native)],
        )
        .with_tools(),
        Probe::new(
            Kind::NativeResult,
            WITH_TEXT[1],
            vec![question(), with_responses(calling(json!("Let me look.")), &native)],
        )
        .with_tools(),
        Probe::new(
            Kind::NativeResult,
            "after tool_responses that are plain text",
            vec![question(), with_responses(calling(json!(null)), &json!([{"response": RESULT}]))],
        )
        .with_tools(),
        Probe::new(
            Kind::Renders,
            "after tool calls and an answer, with thoughts preserved",
            vec![question(), calling(json!(null)), result(), said("It is so."), question()],
        )
        .with_tools()
        .preserving_thoughts(),
    ]
}

/// An assistant message with a thought and two calls whose arguments have every type.
fn calling(content: Value) -> Value {
    let arguments =
        json!({"s": "x", "n": 1.5, "t": true, "z": null, "l": [1, "a"], "o": {"k": {"v": false}}});
    json!({
        "role": "assistant", "content": content, "reasoning_content": "why",
        "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": TOOL, "arguments": arguments}},
            {"id": "2", "type": "function", "function": {"name": "second", "arguments": null}},
        ],
    })
}

fn with_responses(mut message: Value, responses: &Value) -> Value {
    message["tool_responses"] = responses.clone();
    message
}

/// Declarations with every kind of schema that a template may look into.
fn tools() -> Vec<Value> {
    let object = json!({
        "type": "object", "description": "d", "required": ["k"], "nullable": true,
        "properties": {"k": {"type": "string"}, "i": {"type": "integer", "nullable": true}},
    });
    let array = json!({
        "type": "array", "description": "d",
        "items": {"type": ["object", "null"], "required": ["k"], "properties": {"k": {"type": "number"}},
                  "minItems": 1, "default": {"a": [true, null, "x"]}, "title": null},
    });
    let properties = json!({
        "s": {"type": "string", "description": "d", "enum": ["a", "b"]},
        "bare": {"type": "string", "enum": ["a"]},
        "flag": {"type": "boolean"}, "whole": {"type": "integer"}, "number": {"type": "number", "nullable": true},
        "either": {"type": ["string", "null"]}, "any": {},
        "list": array, "plain": {"type": "array", "items": {"type": "string"}}, "object": object,
        "loose": {"type": "object", "inner": {"type": "string"}},
    });
    let parameters = json!({"type": "object", "properties": properties, "required": ["s", "list"]});
    let first = json!({"name": TOOL, "description": "d", "parameters": parameters,
                       "response": {"type": "object", "description": "d"}});
    vec![
        json!({"type": "function", "function": first}),
        json!({"type": "function", "function": {"name": "second", "description": "d", "parameters": {}}}),
    ]
}
