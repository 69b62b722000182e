//! The text of a grammar in llguidance's dialect of Lark, rule by rule.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::GrammarError;
use crate::chat::markers::{
    CALL, CALL_END, CHANNEL, CHANNEL_END, EOS, MODEL_TURN, QUOTE, RESPONSE, RESPONSE_END, THOUGHT,
    TURN_END,
};
use crate::chat::tokenizer::Tokenizer;

/// The switch in the system's turn that lets a model think.
const THINK: &str = "<|think|>";

/// Rules of a grammar: what compiles them goes from one to the next on its stack.
const MOST_RULES: usize = 4_000;

/// White space that JSON may have between two of its pieces: none, a space, or a line break with an
/// indentation. Only one such run can stand in one place, so an answer cannot drift off into spaces.
const JSON_SPACE: &str = r" |\n {0,40}";

/// A grammar that is being written.
pub(super) struct Lark {
    text: String,
    rules: usize,
    shared: HashMap<String, String>,
    /// Control tokens as Lark names them.
    pub(super) quote: String,
    pub(super) call: String,
    pub(super) call_end: String,
    channel: String,
    channel_end: String,
}

impl Lark {
    /// An empty grammar.
    ///
    /// # Errors A control token is not in the vocabulary.
    pub(super) fn new(tokenizer: &Tokenizer) -> Result<Self, GrammarError> {
        let token = |token: &'static str| {
            let id = tokenizer.id(token).ok_or(GrammarError::MissingToken { token })?;
            Ok(format!("<[{id}]>"))
        };
        Ok(Self {
            text: String::new(),
            rules: 0,
            shared: HashMap::new(),
            quote: token(QUOTE)?,
            call: token(CALL)?,
            call_end: token(CALL_END)?,
            channel: token(CHANNEL)?,
            channel_end: token(CHANNEL_END)?,
        })
    }

    /// Writes a rule or, with a name in capitals, a terminal.
    pub(super) fn rule(&mut self, name: &str, body: &str) {
        self.text.push_str(&format!("{name}: {body}\n"));
    }

    /// Writes a rule under a new name, and returns the name.
    pub(super) fn new_rule(&mut self, body: &str) -> String {
        let name = self.new_name("r");
        self.rule(&name, body);
        name
    }

    /// Writes a terminal under a new name, and returns the name.
    pub(super) fn new_terminal(&mut self, body: &str) -> String {
        let name = self.new_name("T");
        self.rule(&name, body);
        name
    }

    /// A name that no other rule has.
    pub(super) fn new_name(&mut self, prefix: &str) -> String {
        self.rules += 1;
        format!("{prefix}{}", self.rules)
    }

    /// The rule that was written for a purpose before.
    pub(super) fn known(&self, purpose: &str) -> Option<String> {
        self.shared.get(purpose).cloned()
    }

    /// One rule for all that need the same; `write` writes it the first time.
    pub(super) fn shared(
        &mut self,
        purpose: &str,
        write: impl FnOnce(&mut Self) -> String,
    ) -> String {
        if let Some(name) = self.known(purpose) {
            return name;
        }
        let name = write(self);
        self.shared.insert(purpose.to_owned(), name.clone());
        name
    }

    /// The expression of the thought that comes before anything else: open already, allowed, or empty
    /// where there is to be none.
    pub(super) fn thought(&mut self, after_prompt: &str) -> String {
        let open = thought_is_open(after_prompt);
        if !open && !may_think(after_prompt) {
            return String::new();
        }
        // Text that looks like a token which would end the thought would end it for the parser.
        let body =
            self.new_terminal(&without("/(?s:.+)/", &[CHANNEL_END, TURN_END, RESPONSE, EOS]));
        let end = self.channel_end.clone();
        if open {
            return format!("{body}? {end}");
        }
        let thought = format!("{} {} {body}? {end}", self.channel, literal(THOUGHT));
        format!("{}?", self.new_rule(&thought))
    }

    /// The expression of JSON of a schema.
    pub(super) fn json(&mut self, mut schema: Value) -> String {
        schema["x-guidance"] = json!({
            "whitespace_flexible": true,
            "whitespace_pattern": JSON_SPACE,
        });
        self.new_rule(&format!("%json {schema}"))
    }

    /// The whole text.
    ///
    /// # Errors It has too many rules.
    pub(super) fn into_text(self) -> Result<String, GrammarError> {
        if self.rules > MOST_RULES {
            let finding = format!(
                "it is too large: its grammar has {} rules, at most {MOST_RULES}",
                self.rules
            );
            return Err(GrammarError::Schema { finding });
        }
        Ok(self.text)
    }
}

/// A string literal.
pub(super) fn literal(text: &str) -> String {
    // Lark's strings are JSON's, but for the one control character that JSON leaves bare.
    Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

/// A terminal that never holds one of `texts`.
pub(super) fn without(terminal: &str, texts: &[&str]) -> String {
    let texts: Vec<String> = texts.iter().map(|text| escaped(text)).collect();
    format!("{terminal} & ~/(?s:.*)({})(?s:.*)/", texts.join("|"))
}

/// Text as a regular expression that matches it and nothing else, inside `/…/`.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '\\' | '.' | '+' | '*' | '?' | '(' | ')' | '|' | '[' | ']' | '{' | '}' | '^' | '$'
            | '/' => {
                out.push('\\');
                out.push(c);
            }
            c if c.is_ascii_control() => out.push_str(&format!("\\x{:02x}", c as u32)),
            c => out.push(c),
        }
    }
    out
}

/// Where the model's own text begins in a prompt.
fn begun(prompt: &str) -> &str {
    let ends = [MODEL_TURN, RESPONSE_END, TURN_END]
        .map(|marker| prompt.rfind(marker).map_or(0, |at| at + marker.len()));
    &prompt[ends.into_iter().max().unwrap_or(0)..]
}

/// Whether the prompt ends inside a thought.
pub(super) fn thought_is_open(prompt: &str) -> bool {
    let begun = begun(prompt);
    begun.rfind(CHANNEL) > begun.rfind(CHANNEL_END)
}

/// Whether the prompt asks for a thought that has not been given.
fn may_think(prompt: &str) -> bool {
    prompt.contains(THINK) && !begun(prompt).contains(CHANNEL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thought_is_open_allowed_or_neither() {
        let prompt = |system: &str, end: &str| {
            format!("<bos><|turn>system\n{system}<turn|>\n<|turn>model\n{end}")
        };
        let open = prompt("<|think|>", "<|channel>thought\n");
        assert!(thought_is_open(&open) && !may_think(&open));
        let allowed = prompt("<|think|>", "");
        assert!(!thought_is_open(&allowed) && may_think(&allowed));
        let closed = prompt("<|think|>", "<|channel>thought\n<channel|>");
        assert!(!thought_is_open(&closed) && !may_think(&closed));
        let off = prompt("", "");
        assert!(!thought_is_open(&off) && !may_think(&off));
        let earlier = prompt("", "<|channel>thought\nx<turn|>\n<|turn>model\n");
        assert!(!thought_is_open(&earlier));
    }

    #[test]
    fn literals_and_patterns_are_escaped() {
        assert_eq!(literal("a\"\n\u{7f}é"), "\"a\\\"\\n\\u007fé\"");
        assert_eq!(escaped("<|\"|>/\n"), "<\\|\"\\|>\\/\\x0a");
    }
}
