//! Schedulers over the random model, jobs, and what their listeners hear.

use crate::support::{load, random};
use std::ops::ControlFlow;
use std::sync::LazyLock;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use tempfile::TempDir;
use w4pack_runtime::scheduler::{Event, Job, Refusal, SchedulerOptions, Summary};
use w4pack_runtime::{
    Adjustments, Chosen, Engine, EngineOptions, FinishReason, Model, RuntimeError, Sampling,
    Scheduler,
};

/// Longer than anything here takes; a test that waits so long has failed.
pub const LIMIT: Duration = Duration::from_secs(120);

/// An event, kept.
#[derive(Debug)]
pub enum Heard {
    Waiting,
    Reading { read: usize, cached: usize, prompt: usize },
    Token(Chosen),
    Ended(Summary),
    Failed(RuntimeError),
}

impl From<Event<'_>> for Heard {
    fn from(event: Event<'_>) -> Self {
        match event {
            Event::Waiting => Heard::Waiting,
            Event::Reading { read, cached, prompt } => Heard::Reading { read, cached, prompt },
            Event::Token(chosen) => Heard::Token(chosen.clone()),
            Event::Ended(summary) => Heard::Ended(summary.clone()),
            Event::Failed(error) => Heard::Failed(error),
        }
    }
}

/// The random model, written once and loaded for every engine.
pub fn model() -> Model {
    static FOLDER: LazyLock<TempDir> = LazyLock::new(|| {
        let folder = tempfile::tempdir().expect("a folder");
        random::packed(1).write(folder.path());
        folder
    });
    load(FOLDER.path())
}

pub fn engine(chunk: usize) -> Engine {
    let options =
        EngineOptions { context: Some(512), chunk, threads: Some(1), ..EngineOptions::default() };
    Engine::new(model(), options).expect("the options are sound")
}

pub fn scheduler(slots: usize, queue: usize, chunk: usize) -> Scheduler {
    let options = SchedulerOptions { slots, queue, ..SchedulerOptions::default() };
    Scheduler::start(engine(chunk), options).expect("it starts")
}

/// A greedy job that hears nothing.
pub fn job(prompt: Vec<u32>, max_tokens: usize) -> Job {
    Job {
        prompt,
        max_tokens,
        stop_ids: Vec::new(),
        sampling: Sampling::GREEDY,
        adjustments: Adjustments::default(),
        logprobs: None,
        constraint: None,
        listener: Box::new(|_| ControlFlow::Continue(())),
    }
}

/// Submits a job whose events come through a channel; `decide` may break it off.
pub fn submit(
    scheduler: &Scheduler,
    job: Job,
    mut decide: impl FnMut(&Heard) -> ControlFlow<FinishReason> + Send + 'static,
) -> Result<Receiver<Heard>, Refusal> {
    let (sender, receiver) = channel();
    let listener = move |event: Event<'_>| {
        let heard = Heard::from(event);
        let decided = decide(&heard);
        // A test that looks no further has dropped its end.
        let _ = sender.send(heard);
        decided
    };
    scheduler.submit(Job { listener: Box::new(listener), ..job })?;
    Ok(receiver)
}

/// A whole answer.
#[derive(Debug)]
pub struct Answered {
    pub tokens: Vec<Chosen>,
    pub summary: Summary,
}

impl Answered {
    pub fn ids(&self) -> Vec<u32> {
        self.tokens.iter().map(|chosen| chosen.id).collect()
    }
}

/// Everything up to the end.
pub fn hear(events: &Receiver<Heard>) -> Result<Answered, RuntimeError> {
    let mut tokens = Vec::new();
    loop {
        match events.recv_timeout(LIMIT).expect("the scheduler goes on") {
            Heard::Waiting | Heard::Reading { .. } => {}
            Heard::Token(chosen) => tokens.push(chosen),
            Heard::Ended(summary) => return Ok(Answered { tokens, summary }),
            Heard::Failed(error) => return Err(error),
        }
    }
}

/// Submits a job and hears it out.
pub fn ask(scheduler: &Scheduler, job: Job) -> Answered {
    let events = submit(scheduler, job, |_| ControlFlow::Continue(())).expect("it is taken");
    hear(&events).expect("it ends well")
}

/// Waits until something holds.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = std::time::Instant::now();
    while !holds() {
        assert!(begin.elapsed() < LIMIT, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
