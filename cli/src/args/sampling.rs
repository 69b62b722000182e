//! How tokens are chosen, on every line that generates.

use clap::Args;
use w4pack_runtime::Sampling;

#[derive(Args)]
pub struct SamplingArguments {
    /// 0: always the likeliest token. Default: the checkpoint's generation_config.json.
    #[arg(long, allow_negative_numbers = true)]
    pub temperature: Option<f64>,
    /// Sample among the K likeliest tokens; 0: all.
    #[arg(long)]
    pub top_k: Option<usize>,
    /// Sample among the likeliest tokens that together reach this probability.
    #[arg(long, allow_negative_numbers = true)]
    pub top_p: Option<f64>,
    /// Leave out tokens less likely than this share of the likeliest one.
    #[arg(long, allow_negative_numbers = true)]
    pub min_p: Option<f64>,
    /// Seed of the sampler. Default: a new one each time.
    #[arg(long)]
    pub seed: Option<u64>,
}

impl SamplingArguments {
    /// The checkpoint's settings, overridden by the command line's.
    pub fn over(&self, default: &Sampling) -> Sampling {
        Sampling {
            temperature: self.temperature.unwrap_or(default.temperature),
            top_k: self.top_k.unwrap_or(default.top_k),
            top_p: self.top_p.unwrap_or(default.top_p),
            min_p: self.min_p.unwrap_or(default.min_p),
            seed: self.seed,
        }
    }
}
