//! Answers held to a form: JSON, JSON of a schema, or calls of declared tools.
//!
//! llguidance does the work: from a grammar it computes, before each token, which of the vocabulary's
//! tokens may come next. What is ours is the vocabulary ([`vocabulary`]), the grammar of Gemma's calls
//! made from JSON schemas ([`arguments`], [`calls`]), the check of what schemas ask for ([`keywords`]),
//! and the way into the engine ([`held`]).
//!
//! Everything is built on the first request that asks for it, and a request that asks for nothing
//! pays nothing.

mod arguments;
mod calls;
mod error;
mod formats;
mod held;
mod keywords;
mod lark;
mod patterns;
mod values;
mod vocabulary;

use std::sync::{Arc, OnceLock};

use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::toktrie::{InferenceCapabilities, TokEnv};
use llguidance::{Matcher, ParserFactory};
use serde_json::{Value, json};

use super::markers::{CALL, CALL_END, CHANNEL, CHANNEL_END};
use super::tokenizer::Tokenizer;
use crate::constraint::Constraint;
pub use calls::{CallRules, Choice, ToolDeclaration};
pub use error::GrammarError;
use held::{Held, UntilCall};
use lark::Lark;

/// Parts of the vocabulary that are allowed or forbidden as a whole most of the time: pieces of a
/// JSON string, and pieces of a string between two `<|"|>`.
const JSON_SLICES: [&str; 3] =
    [r#"[^"\\\x00-\x1F\x7F]{1,10}"#, r#"[^"\\\x00-\x1F\x7F]{1,30}"#, r#"[^"\\\x00-\x1F\x7F]+"#];
const CALL_SLICES: [&str; 3] = [r"[^<]{1,10}", r"[^<]{1,30}", r"[^<]+"];

/// The grammars of one vocabulary.
pub struct Grammars {
    tokenizer: Arc<Tokenizer>,
    environment: TokEnv,
    stop_ids: Vec<u32>,
    for_json: OnceLock<Result<ParserFactory, String>>,
    for_calls: OnceLock<Result<ParserFactory, String>>,
}

impl Grammars {
    /// Makes the vocabulary's trie.
    ///
    /// `vocabulary_size` is the number of logits; `stop_ids` are the ids that may end an answer.
    ///
    /// # Errors No stop id is in the vocabulary, or a control token of calls is not.
    pub fn new(
        tokenizer: &Arc<Tokenizer>,
        vocabulary_size: usize,
        stop_ids: &[u32],
    ) -> Result<Self, GrammarError> {
        let stop_ids: Vec<u32> =
            stop_ids.iter().copied().filter(|id| (*id as usize) < vocabulary_size).collect();
        if stop_ids.is_empty() {
            return Err(GrammarError::NoStop);
        }
        Ok(Self {
            tokenizer: tokenizer.clone(),
            environment: vocabulary::environment(tokenizer, vocabulary_size, &stop_ids)?,
            stop_ids,
            for_json: OnceLock::new(),
            for_calls: OnceLock::new(),
        })
    }

    /// An answer that is one JSON object. `after_prompt` is the prompt's text: where it lets the model
    /// think, a thought may come first.
    ///
    /// # Errors Only those of the grammar engine.
    pub fn json_object(&self, after_prompt: &str) -> Result<Box<dyn Constraint>, GrammarError> {
        self.json(any_object(), after_prompt)
    }

    /// An answer that is JSON of a schema, a thought before it as in
    /// [`json_object`](Self::json_object).
    ///
    /// # Errors The schema uses keywords that cannot be enforced (all are named), or it is no schema.
    pub fn json_schema(
        &self,
        schema: &Value,
        after_prompt: &str,
    ) -> Result<Box<dyn Constraint>, GrammarError> {
        self.json(enforced(schema)?, after_prompt)
    }

    /// An answer that is JSON, of the schema if there is one, or calls that the model chooses to make:
    /// those of strict tools fit their schemas, those of others are calls. A thought may come first.
    ///
    /// # Errors As [`json_schema`](Self::json_schema) and [`calls`](Self::calls).
    pub fn json_or_calls(
        &self,
        schema: Option<&Value>,
        rules: &CallRules<'_>,
    ) -> Result<Box<dyn Constraint>, GrammarError> {
        let schema = schema.map_or(Ok(any_object()), enforced)?;
        let mut lark = Lark::new(&self.tokenizer)?;
        let calls = calls::some_calls(&mut lark, rules)?;
        let json = lark.json(schema);
        let thought = lark.thought(rules.after_prompt);
        lark.rule("start", &format!("{thought} ({json} | {calls})"));
        Ok(Box::new(self.held(self.for_json()?, lark)?))
    }

    fn json(&self, schema: Value, after_prompt: &str) -> Result<Box<dyn Constraint>, GrammarError> {
        let mut lark = Lark::new(&self.tokenizer)?;
        let json = lark.json(schema);
        let thought = lark.thought(after_prompt);
        lark.rule("start", &format!("{thought} {json}"));
        Ok(Box::new(self.held(self.for_json()?, lark)?))
    }

    /// An answer that calls tools; `None` where nothing has to be enforced.
    ///
    /// The calls always parse, and their arguments validate against the tools' schemas.
    ///
    /// # Errors A schema that has to be enforced uses keywords that cannot be (all are named), or the
    /// choice names no declared tool.
    pub fn calls(
        &self,
        rules: &CallRules<'_>,
    ) -> Result<Option<Box<dyn Constraint>>, GrammarError> {
        if rules.tools.is_empty() {
            return match rules.choice {
                Choice::Auto => Ok(None),
                _ => Err(GrammarError::NoTools),
            };
        }
        let mut lark = Lark::new(&self.tokenizer)?;
        match rules.choice {
            Choice::Auto if rules.parallel && !rules.tools.iter().any(|tool| tool.strict) => {
                Ok(None)
            }
            Choice::Auto => {
                calls::one_call(&mut lark, rules)?;
                let one_call = self.held(self.for_calls()?, lark)?;
                let id = |token| self.control(token);
                Ok(Some(Box::new(UntilCall::new(held::UntilCallRules {
                    one_call,
                    call: id(CALL)?,
                    call_end: id(CALL_END)?,
                    channel: id(CHANNEL)?,
                    channel_end: id(CHANNEL_END)?,
                    thinking: lark::thought_is_open(rules.after_prompt),
                    stop_ids: self.stop_ids.clone(),
                    several: rules.parallel,
                }))))
            }
            Choice::Required | Choice::Named(_) => {
                let calls = calls::some_calls(&mut lark, rules)?;
                let thought = lark.thought(rules.after_prompt);
                lark.rule("start", &format!("{thought} {calls}"));
                Ok(Some(Box::new(self.held(self.for_calls()?, lark)?)))
            }
        }
    }

    fn control(&self, token: &'static str) -> Result<u32, GrammarError> {
        self.tokenizer.id(token).ok_or(GrammarError::MissingToken { token })
    }

    fn held(&self, factory: &ParserFactory, lark: Lark) -> Result<Held, GrammarError> {
        let grammar = TopLevelGrammar::from_lark(lark.into_text()?);
        let parser = factory.create_parser(grammar).map_err(|error| format!("{error:#}"));
        let held = parser.and_then(|parser| Held::begin(Matcher::new(Ok(parser))));
        held.map_err(|error| GrammarError::Schema { finding: finding(&error) })
    }

    fn for_json(&self) -> Result<&ParserFactory, GrammarError> {
        factory(&self.for_json, &self.environment, &JSON_SLICES)
    }

    fn for_calls(&self) -> Result<&ParserFactory, GrammarError> {
        factory(&self.for_calls, &self.environment, &CALL_SLICES)
    }
}

/// The schema of [`Grammars::json_object`].
fn any_object() -> Value {
    json!({"type": "object"})
}

/// A schema as llguidance takes it, if all that it asks for is enforced.
fn enforced(schema: &Value) -> Result<Value, GrammarError> {
    let unsupported = keywords::unsupported_in_json(schema);
    if !unsupported.is_empty() {
        return Err(GrammarError::Unsupported { keywords: unsupported });
    }
    values::check(schema)?;
    patterns::check(schema)?;
    match keywords::with_patterns(&keywords::cleaned(schema)) {
        Value::Bool(true) => Ok(json!({})),
        schema @ Value::Object(_) => Ok(schema),
        other => Err(GrammarError::Schema {
            finding: format!("{other} is no schema that anything could match"),
        }),
    }
}

/// What llguidance says of a grammar, without the grammar, which nobody but it has seen.
fn finding(error: &str) -> String {
    let error = error.split("\n   1 | ").next().unwrap_or_default();
    let error = error.rsplit("failed to compile JSON schema: ").next().unwrap_or_default();
    match error.replace("<non-verbose/>", "").trim() {
        "NoExtensionBias" => "no answer that ends can match it".to_owned(),
        error => error.to_owned(),
    }
}

fn factory<'f>(
    cell: &'f OnceLock<Result<ParserFactory, String>>,
    environment: &TokEnv,
    slices: &[&str],
) -> Result<&'f ParserFactory, GrammarError> {
    let built = cell.get_or_init(|| {
        let slices: Vec<String> = slices.iter().map(|&slice| slice.to_owned()).collect();
        // No jumping ahead: every token is the sampler's choice, one at a time.
        let capabilities = InferenceCapabilities::default();
        let mut factory = ParserFactory::new(environment, capabilities, &slices)
            .map_err(|error| error.to_string())?;
        *factory.limits_mut() = ParserLimits {
            verbose_errors: false,
            // An object with a thousand properties that may be missing takes four thousand.
            max_items_in_row: 20_000,
            ..ParserLimits::default()
        };
        factory.quiet();
        Ok(factory)
    });
    built.as_ref().map_err(|finding| GrammarError::Schema { finding: finding.clone() })
}
