//! Between people's text and the model's token ids, in the order a request walks:
//!
//! 1. [`text`]: a conversation becomes a prompt. On the way [`messages`] and tools are checked, what
//!    users wrote is marked so that it cannot become control tokens, the checkpoint's own Jinja
//!    [`template`] writes the text, and the [`tokenizer`] makes ids of it;
//! 2. the model runs, and gives ids;
//! 3. [`stream`]: ids become text again, a whole character at a time;
//! 4. [`parse`]: that text becomes reasoning, content and tool calls.
//!
//! Where a request asks for JSON or for a call, [`grammar`] tells the sampler which tokens may come.
//!
//! The parser finds its way by Gemma 4's control tokens, so whoever feeds it decodes with
//! [`SpecialTokens::Show`](tokenizer::SpecialTokens::Show):
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use w4pack_runtime::chat::{OutputParser, SpecialTokens, StreamDecoder, Tokenizer};
//! # fn answer(tokenizer: Arc<Tokenizer>, prompt: &str, generated: &[u32])
//! #     -> Result<(), w4pack_runtime::chat::ChatError> {
//! let mut decoder = StreamDecoder::new(tokenizer, SpecialTokens::Show);
//! let mut parser = OutputParser::after_prompt(prompt);
//! for &id in generated {
//!     let text = decoder.push(id)?;
//!     for event in parser.push(&text) { /* send it on */ }
//! }
//! parser.push(&decoder.finish());
//! parser.finish();
//! # Ok(()) }
//! ```

mod control;
mod cuts;
pub mod error;
pub mod grammar;
pub(crate) mod markers;
mod marks;
pub mod messages;
pub mod parse;
mod python;
pub mod stream;
pub mod template;
pub mod text;
pub mod tokenizer;
pub(crate) mod tools;

pub use error::{ChatError, Fault};
pub use grammar::{CallRules, Choice, GrammarError, Grammars, ToolDeclaration};
pub use parse::{Output, OutputEvent, OutputParser, ToolCall, parse_output};
pub use stream::StreamDecoder;
pub use template::{ChatTemplate, RenderRequest, TemplateWarning};
pub use text::{ChatText, Conversation, Prompt};
pub use tokenizer::{Most, SpecialTokens, Tokenizer};
