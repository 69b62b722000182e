//! `w4pack publish`.

use clap::Args;
use std::path::PathBuf;

#[derive(Args)]
pub struct PublishArguments {
    /// The packed checkpoint: a folder that `convert` wrote.
    pub packed: String,
    /// Where to: `owner/name`. A repository that is not there is made.
    pub repository: String,
    #[command(flatten)]
    pub proof: ProofArguments,
    /// With --hashes: who has what a text-only checkpoint lacks.
    #[arg(long, value_name = "SOURCE", requires = "hashes")]
    pub towers_from: Option<String>,
    /// Prove, write card and statement into the folder, print the commit file by file, and send
    /// nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// As a pull request.
    #[arg(long)]
    pub pr: bool,
    /// Make the repository private; refuse one that is public.
    #[arg(long)]
    pub private: bool,
    /// The card's licence (`apache-2.0`, `gemma`, …). Default: what the source's card says.
    #[arg(long)]
    pub license: Option<String>,
    /// The card's base model, `owner/name`. Default: the manifest's source.
    #[arg(long, value_name = "NAME")]
    pub base_model: Option<String>,
    /// Threads of the proof; default: all cores.
    #[arg(long)]
    pub threads: Option<usize>,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// Against what is proved. Default: the commit of the Hub that the manifest names as its source.
#[derive(Args)]
#[group(multiple = false, id = "against")]
pub struct ProofArguments {
    /// What it was made from: a folder or a Hub name.
    #[arg(long)]
    pub source: Option<String>,
    /// The source's files as the Hub lists them, as in `verify --hashes`.
    #[arg(long, value_name = "FILE|NAME")]
    pub hashes: Option<String>,
    /// A statement of an earlier proof (`verify --write-statement`); its hashes must be those of the
    /// files as they are now.
    #[arg(long, value_name = "FILE")]
    pub statement: Option<PathBuf>,
}
