//! `w4pack chat` as clap sees it.

use super::engine::EngineArguments;
use super::eval::Switch;
use super::sampling::SamplingArguments;
use clap::Args;
use std::path::PathBuf;

#[derive(Args)]
#[command(
    after_help = "Each line is a message. Lines that begin with a slash are commands; /help lists \
    them. A line that is to begin with a slash gets a second one. Ctrl-C stops an answer, Ctrl-D ends \
    the chat. Without a terminal, lines are read from stdin until its end, and answers go to stdout."
)]
pub struct ChatArguments {
    /// The checkpoint. Default: the newest conversion in the w4pack home.
    #[arg(long)]
    pub model: Option<String>,
    /// The system message.
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// Let the model think before it answers. Default: as its template has it.
    #[arg(long, value_enum)]
    pub think: Option<Switch>,
    /// Declarations of tools: a JSON list as in OpenAI's `tools`. Calls are shown, and you give their
    /// results.
    #[arg(long, value_name = "FILE")]
    pub tools: Option<PathBuf>,
    /// Go on with a conversation that /save wrote.
    #[arg(long, value_name = "FILE")]
    pub load: Option<PathBuf>,
    /// Longest answer in tokens. Default: 4096, or what the context has room for.
    #[arg(long)]
    pub max_tokens: Option<usize>,
    #[command(flatten)]
    pub sampling: SamplingArguments,
    #[command(flatten)]
    pub engine: EngineArguments,
}
