//! Lines from a person at a terminal, or from a pipe.

use anyhow::{Context, Result};
use rustyline::error::ReadlineError;
use rustyline::{Behavior, Config, DefaultEditor};
use std::io::{BufRead, IsTerminal};

/// Where lines come from.
pub enum Input {
    /// A terminal: lines can be edited, and earlier ones called back.
    Terminal(Box<DefaultEditor>),
    /// Anything else: lines as they are.
    Pipe,
}

impl Input {
    /// stdin, as what it is.
    pub fn stdin() -> Result<Input> {
        if !std::io::stdin().is_terminal() {
            return Ok(Input::Pipe);
        }
        // On the terminal itself, so that stdout holds answers and nothing else.
        let config = Config::builder().behavior(Behavior::PreferTerm).build();
        let editor = DefaultEditor::with_config(config)
            .context("could not set the terminal up for editing")?;
        Ok(Input::Terminal(Box::new(editor)))
    }

    /// Whether a person types.
    pub fn is_terminal(&self) -> bool {
        matches!(self, Input::Terminal(_))
    }

    /// The next line that is not blank; `None` at the end.
    pub fn line(&mut self, prompt: &str) -> Result<Option<String>> {
        loop {
            let line = match self {
                Input::Terminal(editor) => match editor.readline(prompt) {
                    Ok(line) => {
                        // A line that cannot be called back again is no reason to end a chat.
                        let _ = editor.add_history_entry(line.as_str());
                        line
                    }
                    // Ctrl-C clears the line.
                    Err(ReadlineError::Interrupted) => {
                        eprintln!("(Ctrl-D or /exit leaves)");
                        continue;
                    }
                    Err(ReadlineError::Eof) => return Ok(None),
                    Err(error) => return Err(error).context("could not read from the terminal"),
                },
                Input::Pipe => {
                    let mut line = String::new();
                    let read = std::io::stdin().lock().read_line(&mut line);
                    match read.context("could not read a line from stdin")? {
                        0 => return Ok(None),
                        _ => line.trim_end_matches(['\n', '\r']).to_owned(),
                    }
                }
            };
            if !line.trim().is_empty() {
                return Ok(Some(line));
            }
        }
    }
}
