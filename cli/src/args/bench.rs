//! Arguments of `w4pack bench`.

use super::engine::EngineArguments;
use clap::Args;
use std::path::PathBuf;

#[derive(Args)]
pub struct BenchArguments {
    /// The checkpoint. Default: the newest conversion in the w4pack home.
    #[arg(long)]
    pub model: Option<String>,
    /// Tokens in front of the generated ones, or `none`.
    #[arg(long, value_name = "TOKENS,…", default_value = "0,512,4096", value_parser = Lengths::parse)]
    pub depth: Lengths,
    /// Lengths of the prompts to read, or `none`.
    #[arg(long, value_name = "TOKENS,…", default_value = "512", value_parser = Lengths::parse)]
    pub prompt_tokens: Lengths,
    /// Numbers of answers that decode together, at the first depth; speeds are those of all, or `none`.
    #[arg(long, value_name = "SLOTS,…", default_value = "none", value_parser = Lengths::parse)]
    pub slots: Lengths,
    /// Tokens generated in one measurement.
    #[arg(long, value_name = "TOKENS", default_value_t = 32)]
    pub steps: usize,
    /// How often everything is measured; medians are reported.
    #[arg(long, default_value_t = 3)]
    pub rounds: usize,
    /// llama.cpp's `llama-bench`: run in turn with w4pack, on as many threads, or on the GPU.
    #[arg(long, value_name = "LLAMA_BENCH", requires = "rival_model")]
    pub rival: Option<PathBuf>,
    /// The GGUF file that it runs.
    #[arg(long, value_name = "GGUF", requires = "rival")]
    pub rival_model: Option<PathBuf>,
    /// Draw the speeds into an SVG or PNG file.
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
    #[command(flatten)]
    pub engine: EngineArguments,
    /// Print the report as one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// Some lengths, or none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lengths(pub Vec<usize>);

impl Lengths {
    fn parse(text: &str) -> Result<Lengths, String> {
        if text == "none" {
            return Ok(Lengths(Vec::new()));
        }
        let length = |part: &str| {
            part.trim().parse().map_err(|error| format!("`{part}` is no number of tokens: {error}"))
        };
        text.split(',').map(length).collect::<Result<_, _>>().map(Lengths)
    }
}
