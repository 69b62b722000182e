//! `cargo xtask …`: work on the project itself.

mod kernels;
mod nvcc;
mod nvrtc;
mod wheels;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Build `kernels/cuda/` into `kernels/prebuilt/`, for every kind of card.
    Kernels {
        /// Change nothing; fail if what is committed is not what the sources give, or, without
        /// `--only`, if nvcc warns of something. Where the compilers' wheels cannot be had this
        /// says so and passes.
        #[arg(long)]
        check: bool,
        /// Only the targets with these names (`sm_90`, `compute_75`).
        #[arg(long)]
        only: Vec<String>,
    },
}

fn main() -> ExitCode {
    let Command::Kernels { check, only } = Arguments::parse().command;
    let done = if check { kernels::check(&only) } else { kernels::build(&only) };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
