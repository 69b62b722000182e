//! The `w4pack` command: arguments to settings, names to files, exit codes, messages.
//!
//! Exit codes: 0 done or proved; 1 disproved or failed; 2 wrong use, unreadable input, or cannot
//! tell. stdout is data, stderr is talk.

mod args;
mod commands;
mod home;
mod interrupt;
mod locate;
mod message;
mod output;
mod progress;

use args::{Arguments, Command};
use clap::{CommandFactory, Parser};
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let quiet = arguments.quiet;
    if let Err(error) = interrupt::make_file_limits_errors() {
        message::warn(&format!("{error:#}"));
    }
    let result = match arguments.command {
        Command::Convert(arguments) => commands::convert::run(&arguments, quiet),
        Command::Restore(arguments) => commands::restore::run(&arguments, quiet),
        Command::Verify(arguments) => commands::verify::run(&arguments, quiet),
        Command::Inspect(arguments) => commands::inspect::run(&arguments, quiet),
        Command::Doctor(arguments) => commands::doctor::run(&arguments),
        Command::Run(arguments) => commands::run::run(&arguments, quiet),
        Command::Chat(arguments) => commands::chat::run(&arguments, quiet),
        Command::Fixture(arguments) => commands::fixture::run(&arguments, quiet),
        Command::Demo(arguments) => commands::demo::run(&arguments, quiet),
        Command::Eval(wanted) => commands::eval::run(&wanted, arguments.offline, quiet),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            let command = &mut Arguments::command();
            clap_complete::generate(shell, command, "w4pack", &mut script);
            output::print(&String::from_utf8_lossy(&script)).map(|()| ExitCode::SUCCESS)
        }
    };
    match result {
        Ok(code) => code,
        // `w4pack … | head`: the reader has seen enough.
        Err(error) if message::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}", message::render(&error));
            message::exit_code(&error)
        }
    }
}
