//! Evaluation: the same questions and the same scoring for a local model and for any
//! OpenAI-compatible server, and a paired comparison of two results.
//!
//! Read in this order:
//!
//! | file | what it holds |
//! |---|---|
//! | `question.rs` | [`Question`]: what is asked, and the [`Judge`] of its answer |
//! | `recall/`, `gsm8k/`, `bfcl/` | where questions come from, and how each kind is judged |
//! | `answerer.rs` | [`Answerer`]: messages and tools in, content and calls out |
//! | `local.rs`, `server/` | a model in this process; a server behind a URL |
//! | `run.rs`, `log.rs` | [`run()`]: ask, judge, write a line a question; go on where a run ended |
//! | `summary.rs` | what came of it |
//! | `compare.rs`, `mcnemar.rs` | two results of the same questions side by side |

pub mod answerer;
pub mod bfcl;
pub mod compare;
mod error;
pub mod gsm8k;
mod lines;
pub mod local;
pub mod log;
pub mod mcnemar;
pub mod question;
pub mod recall;
pub mod run;
pub mod server;
pub mod summary;

pub use answerer::{Answer, AnswerError, Answerer, Asked, Call, Reply};
pub use compare::{Comparison, compare};
pub use error::{EvalError, Result};
pub use local::LocalAnswerer;
pub use log::{Log, Record};
pub use question::{Judge, Question};
pub use run::{Progress, RunOptions, run};
pub use server::{ServerAnswerer, ServerOptions};
pub use summary::Summary;
