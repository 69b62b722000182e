//! One answer: asked for, shown while it comes, and kept.

use super::session::Said;
use super::stop::Stop;
use crate::output;
use anyhow::{Result, bail};
use std::io::{IsTerminal, Write};
use std::ops::ControlFlow;
use std::sync::mpsc;
use w4pack_runtime::FinishReason;
use w4pack_runtime::chat::{
    ChatText, Output, OutputEvent, OutputParser, Prompt, SpecialTokens, StreamDecoder,
};
use w4pack_runtime::sampling::{Adjustments, Sampling};
use w4pack_runtime::scheduler::{Event, Job, Scheduler, Summary};

/// How answers are generated.
pub struct Settings {
    pub sampling: Sampling,
    pub max_tokens: usize,
}

/// What the listener on the engine's thread tells.
enum Heard {
    Token(u32),
    Ended(Summary),
    Failed(w4pack_runtime::RuntimeError),
}

/// Generates and shows an answer. `Stop` ends it before its time.
pub fn answer(
    scheduler: &Scheduler,
    text: &ChatText,
    prompt: &Prompt,
    settings: &Settings,
    stop: &Stop,
) -> Result<(Said, Summary)> {
    let room = scheduler.context().saturating_sub(prompt.ids.len());
    if room == 0 {
        bail!(
            "the conversation has {} tokens, and the context {}: /undo or /reset makes room",
            prompt.ids.len(),
            scheduler.context()
        );
    }
    let (sender, heard) = mpsc::channel();
    let stopped = stop.clone();
    stop.forget();
    scheduler.submit(Job {
        prompt: prompt.ids.clone(),
        max_tokens: settings.max_tokens.min(room),
        stop_ids: text.stop_ids().to_vec(),
        sampling: settings.sampling,
        adjustments: Adjustments::default(),
        logprobs: None,
        constraint: None,
        listener: Box::new(move |event| {
            let sent = match event {
                Event::Waiting | Event::Reading { .. } => Ok(()),
                Event::Token(chosen) => sender.send(Heard::Token(chosen.id)),
                Event::Ended(summary) => sender.send(Heard::Ended(summary.clone())),
                Event::Failed(error) => sender.send(Heard::Failed(error)),
            };
            match sent.is_err() || stopped.is_wanted() {
                true => ControlFlow::Break(FinishReason::Cancelled),
                false => ControlFlow::Continue(()),
            }
        }),
    })?;
    let mut shown = Shown::new();
    let mut said = Output::default();
    let mut decoder = StreamDecoder::new(text.tokenizer().clone(), SpecialTokens::Show);
    let mut parser = OutputParser::after_prompt(&prompt.text);
    let mut keep = |events: Vec<OutputEvent>, shown: &mut Shown| {
        let result = events.iter().try_for_each(|event| shown.event(event));
        said.extend(events);
        result
    };
    let summary = loop {
        match heard.recv() {
            Ok(Heard::Token(id)) => {
                // Random weights choose ids without a text; such an id shows as U+FFFD.
                let piece = decoder.push(id).unwrap_or_else(|_| '\u{FFFD}'.to_string());
                keep(parser.push(&piece), &mut shown)?;
            }
            Ok(Heard::Ended(summary)) => break summary,
            Ok(Heard::Failed(error)) => {
                shown.end()?;
                return Err(error.into());
            }
            Err(_) => bail!("the engine's thread has ended"),
        }
    };
    keep(parser.push(&decoder.finish()), &mut shown)?;
    keep(parser.finish(), &mut shown)?;
    shown.end()?;
    let Output { reasoning, content, calls } = said;
    Ok((Said { reasoning, content, calls }, summary))
}

/// What stands on the screen of the answer: text and calls on stdout, thoughts on stderr.
struct Shown {
    colours: bool,
    terminal: bool,
    thinking: bool,
    line_open: bool,
}

impl Shown {
    fn new() -> Shown {
        let (stdout, stderr) = (std::io::stdout(), std::io::stderr());
        let colours =
            stderr.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
        Shown { colours, terminal: stdout.is_terminal(), thinking: false, line_open: false }
    }

    fn event(&mut self, event: &OutputEvent) -> Result<()> {
        match event {
            OutputEvent::Reasoning(text) => {
                if !self.thinking {
                    self.thinking = true;
                    self.talk(if self.colours { "\x1b[2m" } else { "(thinking) " });
                }
                self.talk(&harmless(text));
            }
            OutputEvent::Content(text) => {
                self.end_thought();
                self.line_open = true;
                output::print(&if self.terminal { harmless(text) } else { text.clone() })?;
            }
            OutputEvent::Call(call) => {
                self.end_thought();
                self.end_line()?;
                let line = format!("{} {}", call.name, call.arguments);
                output::line(&if self.terminal { harmless(&line) } else { line })?;
            }
        }
        Ok(())
    }

    fn end(&mut self) -> Result<()> {
        self.end_thought();
        self.end_line()
    }

    fn end_thought(&mut self) {
        if std::mem::take(&mut self.thinking) {
            self.talk(if self.colours { "\x1b[0m\n" } else { "\n" });
        }
    }

    fn end_line(&mut self) -> Result<()> {
        if std::mem::take(&mut self.line_open) {
            output::line("")?;
        }
        Ok(())
    }

    /// A thought that cannot be shown is no reason to lose the answer.
    fn talk(&self, text: &str) {
        let mut stderr = std::io::stderr().lock();
        let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
    }
}

/// Text that shows on a terminal without steering it: a model may write escape sequences.
pub fn harmless(text: &str) -> String {
    let steers = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    text.chars().map(|c| if steers(c) { char::REPLACEMENT_CHARACTER } else { c }).collect()
}
