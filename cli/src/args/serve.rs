//! `w4pack serve`.

use super::engine::EngineArguments;
use clap::Args;
use std::path::PathBuf;

#[derive(Args)]
pub struct ServeArguments {
    /// The checkpoint. Default: the newest conversion in the w4pack home.
    #[arg(long)]
    pub model: Option<String>,
    /// Where to listen. An address other machines reach should have an --api-key.
    #[arg(long, default_value = "127.0.0.1")]
    pub host: String,
    /// The port; 0 takes a free one. The address is printed on stdout.
    #[arg(long, default_value_t = 8080)]
    pub port: u16,
    /// A key that requests must have (several flags, several keys); `@FILE`: one a line. Without the
    /// flag: the environment's W4PACK_API_KEY, if it is set.
    #[arg(long, value_name = "KEY")]
    pub api_key: Vec<String>,
    /// An origin whose web pages may ask, such as `http://localhost:3000` (several flags, several
    /// origins); `*`: every page. Default: none.
    #[arg(long, value_name = "ORIGIN")]
    pub cors: Vec<String>,
    /// A name that the model is served by (several flags, several names; replies carry the first).
    /// Default: the checkpoint's.
    #[arg(long, value_name = "NAME")]
    pub served_model_name: Vec<String>,
    /// Answers made at once, each with room for the whole context. Default: on a GPU 1; on the CPU up
    /// to 4, as memory allows.
    #[arg(long)]
    pub slots: Option<usize>,
    /// Answers that may wait for a slot; more are refused with 429.
    #[arg(long, default_value_t = 64)]
    pub queue: usize,
    /// On a GPU, let the tokens of an answer stand for those of the next prompt: faster turns, which
    /// may differ by rounding from those after a fresh start. On the CPU they always do, exactly.
    #[arg(long)]
    pub reuse_answers: bool,
    /// Keep prompts in this folder, so that they survive a restart.
    #[arg(long, value_name = "DIR")]
    pub cache_dir: Option<PathBuf>,
    /// Bytes that the prompts in --cache-dir may take, in MiB; the oldest go first.
    #[arg(long, value_name = "MIB", default_value_t = 4096, requires = "cache_dir")]
    pub cache_limit: u64,
    /// Longest request body, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 16)]
    pub body_limit: usize,
    /// After SIGTERM or Ctrl-C, running and waiting answers may take so many seconds to end.
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub grace: u64,
    #[command(flatten)]
    pub engine: EngineArguments,
}
