//! The command line as clap sees it. Everything optional ends here: commands get checked settings.

pub mod bench;
pub mod chat;
pub mod engine;
pub mod eval;
#[cfg(feature = "hub")]
pub mod publish;
pub mod sampling;
pub mod serve;

use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;
use w4pack_format::scale::ScaleDtype;

/// Pack Google's 4-bit Gemma 4 without losing a bit, prove it, and run it.
#[derive(Parser)]
#[command(name = "w4pack", version, arg_required_else_help = true)]
pub struct Arguments {
    /// Open no connection (HF_HUB_OFFLINE=1 says the same). Without it only names on the Hub and
    /// `eval --url` open one.
    #[arg(long, global = true)]
    pub offline: bool,
    /// No progress and no remarks on stderr; errors and warnings stay.
    #[arg(long, short, global = true)]
    pub quiet: bool,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Convert Google's bf16 checkpoint to 4-bit packed weights, codes and steps recovered.
    Convert(ConvertArguments),
    /// Give the bf16 source back from a packed checkpoint, bit for bit.
    Restore(RestoreArguments),
    /// Prove that a packed checkpoint holds exactly its source's weights.
    Verify(VerifyArguments),
    /// Show what is in a checkpoint: kinds of tensors, and the grid that their values lie on.
    Inspect(InspectArguments),
    /// What this machine's GPUs are and what fits; of a checkpoint, what another loader makes of it.
    Doctor(DoctorArguments),
    /// Generate text or tokens from a checkpoint.
    Run(RunArguments),
    /// Serve a checkpoint behind OpenAI's API, with a chat page.
    Serve(serve::ServeArguments),
    /// Talk with a model in the terminal.
    Chat(chat::ChatArguments),
    /// Put a packed checkpoint on the Hub: proved first, with its card and its proof, in one commit.
    #[cfg(feature = "hub")]
    Publish(publish::PublishArguments),
    /// Hold random groups of two checkpoints against each other without downloading either.
    Audit(AuditArguments),
    /// Measure how fast a checkpoint runs here, and llama.cpp beside it.
    Bench(bench::BenchArguments),
    /// Write a synthetic checkpoint in Google's layout.
    Fixture(FixtureArguments),
    /// Make a small checkpoint, convert it, prove it and run it: one command, no network.
    Demo(DemoArguments),
    /// Evaluate a model or a server, or compare two results.
    Eval(eval::EvalArguments),
    /// Print a completion script for a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

impl Command {
    /// Whether one JSON object is wanted on stdout.
    pub fn wants_json(&self) -> bool {
        match self {
            Command::Convert(arguments) => arguments.json,
            Command::Restore(arguments) => arguments.json,
            Command::Verify(arguments) => arguments.json,
            Command::Inspect(arguments) => arguments.json,
            Command::Doctor(arguments) => arguments.json,
            Command::Run(arguments) => arguments.json,
            #[cfg(feature = "hub")]
            Command::Publish(arguments) => arguments.json,
            Command::Audit(arguments) => arguments.json,
            Command::Bench(arguments) => arguments.json,
            Command::Fixture(arguments) => arguments.json,
            Command::Eval(arguments) => arguments.wants_json(),
            Command::Serve(_)
            | Command::Chat(_)
            | Command::Demo(_)
            | Command::Completions { .. } => false,
        }
    }
}

#[derive(Args)]
pub struct ConvertArguments {
    /// A folder, or a Hub name (`owner/name[@revision]`).
    pub source: String,
    /// Where to write. Default: a folder in the w4pack home, named after the source.
    #[arg(long)]
    pub out: Option<PathBuf>,
    /// The commit or branch of a Hub name.
    #[arg(long)]
    pub revision: Option<String>,
    /// What is packed, and how the head is stored.
    #[arg(long, value_enum, default_value_t = LayoutName::Emb4)]
    pub layout: LayoutName,
    /// Element type of the stored steps.
    #[arg(long, default_value = "f16", value_parser = ["f16", "f32", "bf16"])]
    scale_dtype: String,
    /// What becomes of the vision and audio towers.
    #[arg(long, value_enum, default_value_t = TowersName::Drop)]
    pub towers: TowersName,
    /// Keep tensors that are not on a 4-bit grid in bf16 instead of refusing.
    #[arg(long)]
    pub allow_off_grid: bool,
    /// Read a Hub name's files by byte ranges, each once, and store none of them.
    #[arg(long)]
    pub stream: bool,
    /// Threads; default: all cores.
    #[arg(long)]
    pub threads: Option<usize>,
    /// Print what would become of each tensor, how large the result and how long it takes, and
    /// stop; no file is touched.
    #[arg(long)]
    pub plan: bool,
    /// Print the report (or the plan) as one JSON object.
    #[arg(long)]
    pub json: bool,
}

impl ConvertArguments {
    pub fn scale_dtype(&self) -> ScaleDtype {
        self.scale_dtype.parse().expect("clap admits only the three names")
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LayoutName {
    /// Everything in 4 bits, one shared table for embedding and head.
    Emb4,
    /// The same with the table once more as the head: what vLLM loads.
    Emb4Untied,
    /// Linears in 4 bits, tables in bf16, as Google's own w4a16 release.
    Linear,
    /// Linears and the per-layer table in 4 bits, `embed_tokens` in bf16.
    #[value(name = "linear-ple4")]
    LinearPle4,
    /// One GGUF file with Q4_0 blocks of the recovered codes: what llama.cpp loads.
    Gguf,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TowersName {
    /// Left out, listed and hashed; the result has text-only names.
    Drop,
    /// Copied byte for byte; the result has Google's multimodal names and configuration.
    Keep,
}

#[derive(Args)]
pub struct RestoreArguments {
    /// The packed checkpoint.
    pub packed: String,
    /// Where to write: a folder that does not exist or is empty.
    #[arg(long)]
    pub out: PathBuf,
    /// A checkpoint with the tensors that the packed one lacks (vision and audio towers); only their
    /// bytes are read.
    #[arg(long)]
    pub towers_from: Option<String>,
    /// Threads; default: all cores.
    #[arg(long)]
    pub threads: Option<usize>,
    /// Print the report as one JSON object.
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct VerifyArguments {
    /// The packed checkpoint. With --self-test alone: a small synthetic one.
    #[arg(required_unless_present = "self_test")]
    pub packed: Option<String>,
    /// What it was made from; of a Hub name that is not in the cache no file is stored. Without it
    /// nothing can be proved (exit code 2).
    #[arg(long, requires = "packed")]
    pub source: Option<String>,
    /// The source's files as the Hub lists them (path, size, hash): a file that holds the listing, or
    /// `owner/name[@revision]` to ask the Hub. The source is rebuilt from the packed checkpoint and
    /// must have these hashes.
    #[arg(long, value_name = "FILE|NAME", conflicts_with = "source", requires = "packed")]
    pub hashes: Option<String>,
    /// Who has what a text-only checkpoint lacks: the towers. Of a Hub name only their bytes are
    /// fetched, and nothing is stored.
    #[arg(long, value_name = "SOURCE", requires = "hashes")]
    pub towers_from: Option<String>,
    /// After a proof: write it as an in-toto statement, ready to be signed.
    #[arg(long, value_name = "FILE", requires = "packed")]
    pub write_statement: Option<PathBuf>,
    /// Check the files against a statement.
    #[arg(long, value_name = "FILE", requires = "packed")]
    pub statement: Option<PathBuf>,
    /// Damage the checkpoint so many times, in memory, in every known way and under three
    /// disguises, and see that each damage is found in its place.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), conflicts_with_all = ["hashes", "statement", "write_statement"])]
    pub self_test: Option<u64>,
    /// Seed of the self-test's places.
    #[arg(long, requires = "self_test", default_value_t = 0)]
    pub seed: u64,
    /// Accept another maker's steps when every value is within 1/16 step.
    #[arg(long)]
    pub allow_step_rounding: bool,
    /// Threads; default: all cores.
    #[arg(long)]
    pub threads: Option<usize>,
    /// Print the report as one JSON object.
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct AuditArguments {
    /// The packed checkpoint: a folder, or a Hub name.
    pub packed: String,
    /// What it was made from: a folder, or a Hub name.
    #[arg(long)]
    pub source: String,
    /// Groups to draw, with replacement, from all packed ones.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub samples: u64,
    /// Which groups are drawn. Default: a number that nobody could know beforehand.
    #[arg(long)]
    pub seed: Option<u64>,
    /// Print the report as one JSON object.
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct InspectArguments {
    /// A folder, a `model.safetensors`, a GGUF file, or a Hub name.
    pub what: String,
    /// Draw peak levels and steps into an SVG or PNG file.
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
    /// Print the report as one JSON object.
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct DoctorArguments {
    /// The checkpoint. Without it: the GPUs of this machine.
    #[arg(requires = "loader")]
    pub packed: Option<String>,
    /// The loader.
    #[arg(long = "for", value_enum, value_name = "LOADER", requires = "packed")]
    pub loader: Option<LoaderName>,
    /// Memory of the GPU that may be taken, in MiB; default: what is free.
    #[arg(long, value_name = "MIB", conflicts_with = "packed")]
    pub gpu_memory: Option<usize>,
    /// Print the diagnosis as one JSON object.
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LoaderName {
    /// transformers with compressed-tensors.
    Transformers,
    /// vLLM.
    Vllm,
    /// llama.cpp, and what is built on it: Ollama, LM Studio.
    #[value(name = "llama.cpp")]
    LlamaCpp,
}

#[derive(Args)]
pub struct RunArguments {
    /// The checkpoint. Default: the newest conversion in the w4pack home.
    #[arg(long)]
    pub model: Option<String>,
    #[command(flatten)]
    pub input: RunInput,
    /// The prompt as it is, with `<bos>` in front, instead of as a user's turn in a chat.
    #[arg(long)]
    pub raw: bool,
    /// Go on behind the tokens that end an answer.
    #[arg(long)]
    pub ignore_eos: bool,
    /// Longest answer in tokens. Default: 1024, or what the context has room for.
    #[arg(long)]
    pub max_tokens: Option<usize>,
    #[command(flatten)]
    pub sampling: sampling::SamplingArguments,
    #[command(flatten)]
    pub engine: engine::EngineArguments,
    /// Write the logits of every position to a safetensors file.
    #[arg(long)]
    pub logits: Option<PathBuf>,
    /// Print one JSON object instead of the text.
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
#[group(required = true, multiple = false)]
pub struct RunInput {
    /// The prompt as text.
    #[arg(long)]
    pub prompt: Option<String>,
    /// The prompt as token ids: `2,10,11`.
    #[arg(long, value_delimiter = ',', value_parser = token_id)]
    pub tokens: Option<Vec<u32>>,
}

/// An id, with or without a space beside the comma.
fn token_id(text: &str) -> Result<u32, String> {
    text.trim().parse().map_err(|error| format!("`{text}` is no token id: {error}"))
}

#[derive(Args)]
pub struct FixtureArguments {
    /// Which shape: `e2b` (9.5 GiB), or a few MB with the features of a release.
    #[arg(value_enum)]
    pub shape: ShapeName,
    /// Where to write.
    #[arg(long)]
    pub out: PathBuf,
    /// Everything random comes from it.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Write the packed result directly.
    #[arg(long)]
    pub packed: bool,
    /// Add groups of every difficult kind.
    #[arg(long)]
    pub hard: bool,
    /// Keys and values in every layer, as releases before the QAT ones carry them.
    #[arg(long)]
    pub all_kv: bool,
    /// Number of weight files; more than one get an index.
    #[arg(long, default_value_t = 1)]
    pub shards: usize,
    /// Signs of zeros.
    #[arg(long, value_enum, default_value_t = SignedZerosName::None)]
    pub signed_zeros: SignedZerosName,
    /// Threads; default: all cores.
    #[arg(long)]
    pub threads: Option<usize>,
    /// Print the report as one JSON object.
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ShapeName {
    /// Every feature of E2B in a few MB.
    Tiny,
    /// Those of Gemma 4 E4B.
    #[value(name = "tiny-e4b")]
    TinyE4b,
    /// Those of Gemma 4 12B, the unified class.
    #[value(name = "tiny-12b")]
    Tiny12b,
    /// Those of Gemma 4 31B.
    #[value(name = "tiny-31b")]
    Tiny31b,
    /// Those of Gemma 4 26B-A4B, experts included.
    #[value(name = "tiny-26b-a4b")]
    Tiny26bA4b,
    /// Those of Gemma 3.
    #[value(name = "tiny-gemma3")]
    TinyGemma3,
    /// Gemma 4 E2B, 1,951 tensors.
    E2b,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SignedZerosName {
    /// All zeros are +0.0.
    None,
    /// Zeros carry the sign of the group's step.
    ByStep,
    /// Random signs.
    Random,
}

#[derive(Args)]
pub struct DemoArguments {
    /// Keep the checkpoints in this folder instead of removing them.
    #[arg(long)]
    pub out: Option<PathBuf>,
}
