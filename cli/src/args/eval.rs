//! The arguments of `w4pack eval`.

use super::engine::EngineArguments;
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

#[derive(Args)]
pub struct EvalArguments {
    #[command(subcommand)]
    pub what: EvalCommand,
}

#[derive(Subcommand)]
pub enum EvalCommand {
    /// Ask for one of many numbered records with random codes.
    Recall(RecallArguments),
    /// Word problems whose answer is a number.
    Gsm8k(Gsm8kArguments),
    /// Berkeley Function-Calling Leaderboard: simple, multiple and parallel calls.
    Bfcl(BfclArguments),
    /// Compare two results of the same questions: McNemar's exact test.
    Compare(CompareArguments),
}

impl EvalArguments {
    /// Whether one JSON object is wanted on stdout.
    pub fn wants_json(&self) -> bool {
        match &self.what {
            EvalCommand::Recall(arguments) => arguments.asking.json,
            EvalCommand::Gsm8k(arguments) => arguments.asking.json,
            EvalCommand::Bfcl(arguments) => arguments.asking.json,
            EvalCommand::Compare(arguments) => arguments.json,
        }
    }
}

#[derive(Args)]
pub struct RecallArguments {
    /// Tokens of a prompt, nearly.
    #[arg(long, value_delimiter = ',', default_value = "250,1000,2000,4000")]
    pub lengths: Vec<usize>,
    /// Where the asked record stands, in per cent of the list.
    #[arg(long, value_delimiter = ',', default_value = "0,25,50,75,100")]
    pub depths: Vec<usize>,
    /// One question of each length and depth for each seed.
    #[arg(long, value_delimiter = ',', default_value = "0,1,2,3,4")]
    pub seeds: Vec<u64>,
    /// The words around the records.
    #[arg(long, value_enum, default_value_t = WordingName::Plain)]
    pub wording: WordingName,
    /// Write accuracy by length and depth as a picture (SVG).
    #[arg(long)]
    pub plot: Option<PathBuf>,
    /// Longest answer in tokens.
    #[arg(long, default_value_t = 64)]
    pub max_tokens: usize,
    #[command(flatten)]
    pub asking: AskingArguments,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum WordingName {
    /// Instructions for any model.
    Plain,
    /// As the small trained model was taught: the bare list, a short question.
    Trained,
}

#[derive(Args)]
pub struct Gsm8kArguments {
    /// GSM8K's file: one JSON object a line, `question` and `answer`.
    #[arg(long)]
    pub data: PathBuf,
    /// Longest answer in tokens.
    #[arg(long, default_value_t = 1024)]
    pub max_tokens: usize,
    #[command(flatten)]
    pub asking: AskingArguments,
}

#[derive(Args)]
pub struct BfclArguments {
    /// BFCL's file of questions: one JSON object a line.
    #[arg(long)]
    pub data: PathBuf,
    /// Its ground truth. Default: the file of the same name in `possible_answer` beside it.
    #[arg(long)]
    pub answers: Option<PathBuf>,
    /// Write dots in names of functions as underscores, for servers that take no dots.
    #[arg(long)]
    pub underscores: bool,
    /// Longest answer in tokens.
    #[arg(long, default_value_t = 512)]
    pub max_tokens: usize,
    #[command(flatten)]
    pub asking: AskingArguments,
}

/// Who is asked, and how.
#[derive(Args)]
pub struct AskingArguments {
    /// The checkpoint (default: the newest conversion in the w4pack home), or with --url the
    /// model's name at that server.
    #[arg(long)]
    pub model: Option<String>,
    /// Ask an OpenAI-compatible server: `http://127.0.0.1:8080/v1`.
    #[arg(long, requires = "model", conflicts_with = "EngineArguments")]
    pub url: Option<String>,
    /// The server's key.
    #[arg(long, requires = "url")]
    pub api_key: Option<String>,
    /// Requests to the server at once. A local model answers one after another.
    #[arg(long, requires = "url", default_value_t = 4)]
    pub concurrency: usize,
    /// How often a request that failed in passing is repeated.
    #[arg(long, requires = "url", default_value_t = 4)]
    pub retries: usize,
    /// Longest time for one request, in seconds.
    #[arg(long, requires = "url", default_value_t = 600)]
    pub timeout: u64,
    /// Write one JSON line a question to this file; a second run goes on where the first ended.
    #[arg(long)]
    pub out: Option<PathBuf>,
    /// Ask the first N questions only.
    #[arg(long)]
    pub limit: Option<usize>,
    /// Count questions that get no answer as wrong, instead of stopping at the first.
    #[arg(long)]
    pub failures_are_wrong: bool,
    /// 0: always the likeliest token.
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true)]
    pub temperature: f64,
    /// Sample among the K likeliest tokens; 0: all.
    #[arg(long, default_value_t = 0)]
    pub top_k: usize,
    /// Sample among the likeliest tokens that together reach this probability.
    #[arg(long, default_value_t = 1.0, allow_negative_numbers = true)]
    pub top_p: f64,
    /// Leave out tokens less likely than this share of the likeliest one.
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true)]
    pub min_p: f64,
    /// Seed of each question's sampler, used with a temperature above 0.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Thinking on or off. Default: as the model's template has it.
    #[arg(long, value_enum)]
    pub thinking: Option<Switch>,
    #[command(flatten)]
    pub engine: EngineArguments,
    /// Print the summary as one JSON object.
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// Yes.
    On,
    /// No.
    Off,
}

#[derive(Args)]
pub struct CompareArguments {
    /// One result.
    pub a: PathBuf,
    /// The other.
    pub b: PathBuf,
    /// Print the comparison as one JSON object.
    #[arg(long)]
    pub json: bool,
}
