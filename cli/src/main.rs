//! The `w4pack` command: arguments to settings, names to files, exit codes, messages.
//!
//! Exit codes: 0 done or proved; 1 disproved or failed; 2 wrong use, unreadable input, or cannot
//! tell. stdout is data, stderr is talk.

mod args;
mod commands;
mod heap;
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
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return wrong_arguments(&error),
    };
    let wants_json = arguments.command.wants_json();
    let quiet = arguments.quiet;
    locate::allow(locate::Reach { offline: arguments.offline, quiet });
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
        Command::Bench(arguments) => commands::bench::run(&arguments, quiet),
        Command::Serve(arguments) => commands::serve::run(&arguments, quiet),
        Command::Chat(arguments) => commands::chat::run(&arguments, quiet),
        Command::Fixture(arguments) => commands::fixture::run(&arguments, quiet),
        #[cfg(feature = "hub")]
        Command::Publish(arguments) => commands::publish::run(&arguments, quiet),
        Command::Audit(arguments) => commands::audit::run(&arguments, quiet),
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
            // A command that has printed its object has said what it had to say.
            if wants_json && !output::has_printed() {
                refuse_in_json(&message::object(&error));
            }
            message::exit_code(&error)
        }
    }
}

/// Arguments that clap does not take, or a question for help, which is no error.
fn wrong_arguments(error: &clap::Error) -> ExitCode {
    if error.use_stderr() && std::env::args().any(|argument| argument == "--json") {
        let text = error.to_string();
        let text = text.trim().trim_start_matches("error: ");
        refuse_in_json(&serde_json::json!({"error": text, "hint": "w4pack --help"}));
    }
    // Where stdout is closed nobody reads the help.
    let _ = error.print();
    ExitCode::from(error.exit_code() as u8)
}

/// Whoever asked for one object on stdout gets one, whatever happens.
fn refuse_in_json(object: &serde_json::Value) {
    // The exit code says the same where nobody reads stdout.
    let _ = output::json(object);
}
