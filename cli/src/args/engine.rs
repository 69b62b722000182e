//! What computes, with how much memory, by which way: the same on every line that runs a model.

use clap::{Args, ValueEnum};

#[derive(Args, Clone)]
pub struct EngineArguments {
    /// What computes: `auto` (the best that is there), `cpu`, `cuda` or `cuda:N`.
    #[arg(long, default_value = "auto", value_parser = DeviceName::parse)]
    pub device: DeviceName,
    /// Longest prompt and answer together, in tokens. Default: the model's maximum.
    #[arg(long)]
    pub context: Option<usize>,
    /// Memory of the GPU that may be taken, in MiB; default: what is free.
    #[arg(long, value_name = "MIB")]
    pub gpu_memory: Option<usize>,
    /// Where the per-layer table lies, of which a token reads one row.
    #[arg(long, value_enum, default_value_t = PerLayerPlace::Auto)]
    pub ple: PerLayerPlace,
    /// How keys and values are kept; default: what is best on the device.
    #[arg(long, value_enum)]
    pub kv: Option<KvName>,
    /// How a GPU reads the prompt.
    #[arg(long, value_enum, default_value_t = PrefillName::Auto)]
    pub prefill: PrefillName,
    /// Guess tokens ahead and check several in one pass; answers stay the same to the bit.
    #[arg(long, value_enum, default_value_t = SpeculateName::Auto)]
    pub speculate: SpeculateName,
    /// Prompt tokens in one pass; default: 256 on the CPU, up to 2,048 on a GPU with room for them.
    #[arg(long)]
    pub chunk: Option<usize>,
    /// Threads; default: physical cores.
    #[arg(long)]
    pub threads: Option<usize>,
    /// Multiply activations in 8 bits instead of 16: faster on a CPU, and coarser.
    #[arg(long)]
    pub fast: bool,
    /// A weight is code times step; `bf16` rounds each product as Google stored it.
    #[arg(long, value_enum, default_value_t = WeightsName::Codes)]
    pub weights: WeightsName,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceName {
    /// The best that is there.
    Auto,
    Cpu,
    /// A CUDA device by its number; the first without one.
    Cuda(usize),
}

impl DeviceName {
    fn parse(text: &str) -> Result<DeviceName, String> {
        match text {
            "auto" => Ok(DeviceName::Auto),
            "cpu" => Ok(DeviceName::Cpu),
            "cuda" => Ok(DeviceName::Cuda(0)),
            other => other
                .strip_prefix("cuda:")
                .and_then(|number| number.parse().ok())
                .map(DeviceName::Cuda)
                .ok_or_else(|| "expected `auto`, `cpu`, `cuda` or `cuda:N`".into()),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PerLayerPlace {
    /// Where it fits.
    Auto,
    /// In the GPU's memory.
    Gpu,
    /// In the machine's memory.
    Host,
    /// In the file; rows are read as they are needed.
    Disk,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum KvName {
    /// Single precision.
    F32,
    /// Half precision.
    F16,
    /// bfloat16.
    Bf16,
    /// 8-bit integers with a step.
    Q8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PrefillName {
    /// The faster one.
    Auto,
    /// On tensor cores.
    Mma,
    /// By fused multiply-adds, on cards without tensor cores.
    Ffma,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SpeculateName {
    /// As ngram, as long as what was measured says that it pays.
    Auto,
    /// Whenever prompt or answer have gone on from the same tokens before.
    Ngram,
    /// Never.
    Off,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum WeightsName {
    /// Code times step, unrounded.
    Codes,
    /// The product rounded once to bf16: Google's stored value.
    Bf16,
}
