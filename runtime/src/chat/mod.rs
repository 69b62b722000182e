//! Between people's text and the model's token ids, in the order a request walks:
//!
//! 1. [`template`]: messages and tools become the prompt text, by the checkpoint's own Jinja template;
//! 2. [`tokenizer`]: the prompt text becomes ids, control tokens included, with nothing put in front;
//! 3. the model runs, and gives ids;
//! 4. [`stream`]: ids become text again, a whole character at a time;
//! 5. [`parse`]: that text becomes reasoning, content and tool calls.
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

pub mod error;
mod markers;
pub mod messages;
pub mod parse;
mod python;
pub mod stream;
pub mod template;
pub mod tokenizer;

pub use error::ChatError;
pub use parse::{Output, OutputEvent, OutputParser, ToolCall, parse_output};
pub use stream::StreamDecoder;
pub use template::{ChatTemplate, RenderRequest, TemplateWarning};
pub use tokenizer::{SpecialTokens, Tokenizer};
