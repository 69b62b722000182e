//! `w4pack chat`: a conversation in the terminal, or through a pipe.

mod answer;
mod command;
mod input;
mod session;
mod stop;

use super::open::{self, Files, Opened};
use crate::args::chat::ChatArguments;
use crate::args::eval::Switch;
use crate::message::{self, Usage, warn};
use answer::{Settings, answer, harmless};
use anyhow::Result;
use command::Line;
use input::Input;
use session::Session;
use std::process::ExitCode;
use stop::Stop;
use w4pack_runtime::FinishReason;
use w4pack_runtime::chat::{ChatText, messages};
use w4pack_runtime::scheduler::{Scheduler, SchedulerOptions, Summary};

/// Longest answer when nobody says otherwise and the context has room.
const DEFAULT_MAX_TOKENS: usize = 4096;

pub fn run(arguments: &ChatArguments, quiet: bool) -> Result<ExitCode> {
    let name = open::name(arguments.model.as_deref())?;
    let Opened { engine, text, defaults, .. } =
        Files::find(&name)?.open(&arguments.engine, 1, quiet)?;
    let text = text.filter(|text| text.template().is_some()).ok_or_else(|| {
        Usage::new(format!("`{name}` has no tokenizer or no chat template to talk through"))
            .hint("give a text to continue with `w4pack run --raw`, or ids with `--tokens`")
    })?;
    for warning in text.warnings() {
        warn(&warning.to_string());
    }
    let sampling = arguments.sampling.over(&defaults.sampling);
    sampling.check()?;
    let mut session = match &arguments.load {
        Some(path) => Session::load(path, &text)?,
        None => Session::default(),
    };
    if let Some(system) = &arguments.system {
        session.system = Some(system.clone());
    }
    if let Some(think) = arguments.think {
        session.enable_thinking = Some(think == Switch::On);
    }
    if let Some(path) = &arguments.tools {
        session.declare(path, &text)?;
    }
    let input = Input::stdin()?;
    let stop = Stop::watch()?;
    let device = engine.device();
    // One slot: each prompt begins with the last one, and is read from where they differ.
    let options =
        SchedulerOptions { slots: 1, turn_ends: text.turn_ends(), ..SchedulerOptions::default() };
    let scheduler = Scheduler::start(engine, options)?;
    if !quiet {
        let context = scheduler.context();
        eprintln!("{device}, a context of {context} tokens. /help lists the commands.");
    }
    let max_tokens = arguments.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS);
    let settings = Settings { sampling, max_tokens };
    let mut chat =
        Chat { scheduler, text, settings, session, stop, spent: Spent::default(), quiet };
    chat.talk(input)
}

/// A chat that is going on.
struct Chat {
    scheduler: Scheduler,
    text: ChatText,
    settings: Settings,
    session: Session,
    stop: Stop,
    spent: Spent,
    quiet: bool,
}

impl Chat {
    /// Until the lines end. A pipe's exit code says whether every line was answered.
    fn talk(&mut self, mut input: Input) -> Result<ExitCode> {
        let mut failed = false;
        loop {
            let prompt = match self.session.waiting() {
                Some((_, name)) => format!("result of {}> ", harmless(&name)),
                None => "> ".to_owned(),
            };
            let Some(line) = input.line(&prompt)? else { break };
            match self.line(command::read(&line)) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) if message::is_broken_pipe(&error) => return Err(error),
                Err(error) => {
                    eprintln!("{}", message::render(&error));
                    failed = true;
                }
            }
        }
        Ok(ExitCode::from(u8::from(failed && !input.is_terminal())))
    }

    /// Does what a line asks for; false: it was the last.
    fn line(&mut self, line: Line) -> Result<bool> {
        match line {
            Line::Text(text) => self.hear(&text)?,
            Line::Help => eprintln!("{}", command::HELP),
            Line::Reset => {
                self.session.messages.clear();
                self.say("forgotten");
            }
            Line::Undo if self.session.undo() => self.say("taken back"),
            Line::Undo => self.say("there is nothing to take back"),
            Line::System(Some(text)) => self.session.system = Some(text),
            Line::System(None) => {
                self.say(self.session.system.as_deref().unwrap_or("no system message"));
            }
            Line::Think(Some(on)) => self.session.enable_thinking = Some(on),
            Line::Think(None) => self.say(match self.session.enable_thinking {
                Some(true) => "on",
                Some(false) => "off",
                None => "as the template has it",
            }),
            Line::Tools(Some(path)) => {
                self.session.declare(&path, &self.text)?;
                self.say(&self.tools());
            }
            Line::Tools(None) => self.say(&self.tools()),
            Line::Save(path) => {
                self.session.save(&path)?;
                self.say(&format!("written to {}", path.display()));
            }
            Line::Load(path) => {
                self.session = Session::load(&path, &self.text)?;
                self.say(&format!("{} messages", self.session.messages.len()));
            }
            Line::Stats => eprintln!("{}", self.spent.describe()),
            Line::Exit => return Ok(false),
            Line::Wrong(what) => return Err(Usage::new(what).into()),
        }
        Ok(true)
    }

    /// A message of the user, or the result that a call waits for.
    fn hear(&mut self, text: &str) -> Result<()> {
        let before = self.session.messages.len();
        match self.session.waiting() {
            Some((id, _)) => self.session.add_result(&id, text),
            None => self.session.messages.push(messages::from_user(text)),
        }
        if self.session.waiting().is_some() {
            return Ok(());
        }
        let answered = self.answer();
        self.stop.rest();
        if !matches!(answered, Ok(true)) {
            self.session.messages.truncate(before);
        }
        answered.map(drop)
    }

    /// Asks for an answer and keeps it; false if it was stopped before it had begun.
    fn answer(&mut self) -> Result<bool> {
        let prompt = self.session.prompt(&self.text)?;
        let (said, summary) =
            answer(&self.scheduler, &self.text, &prompt, &self.settings, &self.stop)?;
        self.spent.add(&summary);
        match summary.finish {
            FinishReason::Cancelled => self.say("(stopped)"),
            FinishReason::Length => self.say("(cut: the answer has as many tokens as it may)"),
            FinishReason::Stop => {}
        }
        let begun = said.content.is_some() || !said.calls.is_empty();
        if summary.finish == FinishReason::Cancelled && !begun {
            return Ok(false);
        }
        self.session.add_answer(&said);
        Ok(true)
    }

    fn tools(&self) -> String {
        let names = self.session.tools.iter().filter_map(|tool| tool["function"]["name"].as_str());
        match names.collect::<Vec<_>>().join(", ") {
            names if names.is_empty() => "no tools".to_owned(),
            names => names,
        }
    }

    fn say(&self, what: &str) {
        if !self.quiet {
            eprintln!("{what}");
        }
    }
}

/// What the chat has cost.
#[derive(Default)]
struct Spent {
    answers: usize,
    prompt: usize,
    cached: usize,
    generated: usize,
    last: Option<Summary>,
}

impl Spent {
    fn add(&mut self, summary: &Summary) {
        self.answers += 1;
        self.prompt += summary.prompt_tokens;
        self.cached += summary.cached_tokens;
        self.generated += summary.completion_tokens;
        self.last = Some(summary.clone());
    }

    fn describe(&self) -> String {
        let Some(last) = &self.last else { return "nothing was asked yet".to_owned() };
        let read = last.prompt_tokens - last.cached_tokens;
        let speed = |tokens: usize, seconds: f64| match seconds > 0.0 {
            true => format!("{:.1} tok/s", tokens as f64 / seconds),
            false => "-".to_owned(),
        };
        format!(
            "{} answers: {} prompt tokens ({} of them cached), {} generated\n\
             the last: {} read at {}, {} generated at {}",
            self.answers,
            self.prompt,
            self.cached,
            self.generated,
            read,
            speed(read, last.prefill.as_secs_f64()),
            last.completion_tokens,
            speed(last.completion_tokens.saturating_sub(1), last.decode.as_secs_f64()),
        )
    }
}
