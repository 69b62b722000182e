//! Many answers at once on one engine.
//!
//! One thread owns the device. It works in rounds: a token for every running answer, in one pass
//! where the device can, then a chunk of one prompt, prompts taking turns. So a long prompt delays
//! running answers by a chunk a token and no more, and is itself never held up; chunks are cut to a
//! quarter of a second. An answer does not depend on what else runs: the bytes are those it gets
//! alone. While only one answer runs, tokens may be guessed ahead of it.
//!
//! A slot keeps what it holds when its answer has ended. The next prompt that begins alike is read
//! from where it differs, with the same bytes as a result.
//!
//! | file | what it holds |
//! |---|---|
//! | `job.rs` | what goes in and comes out: [`Job`], [`Event`], [`Summary`], [`Refusal`] |
//! | `worker.rs` | the thread: admission, rounds, stopping |
//! | `admission.rs` | which job gets which slot |
//! | `running.rs` | one answer on its way through prompt and tokens |
//! | `held.rs` | what a slot holds of earlier prompts, and how much of it serves the next |
//! | `store/` | prompts on disk, for the time after a restart |
//! | `gauges.rs` | what is counted |

mod admission;
mod gauges;
mod held;
mod job;
mod running;
mod store;
mod worker;

pub use gauges::Gauges;
pub use job::{Event, Job, Listener, Refusal, Summary};
pub use store::PromptCache;

use crate::answer::Answer;
use crate::engine::{Engine, Parts, check_prompt, setting};
use crate::error::{Result, RuntimeError};
use crate::model::MemoryPlan;
use crate::sampling::Chooser;
use held::Rules;
use running::Ticket;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use store::Store;
use w4pack_format::config::Config;
use worker::{Computing, Message, Worker};

/// A stop without an end, as far as clocks go.
const LONGEST_STOP: Duration = Duration::from_secs(1 << 30);

/// How a scheduler works.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchedulerOptions {
    /// Answers made at once, each with a cache of its own for the engine's whole context.
    pub slots: usize,
    /// Jobs that may wait for a slot.
    pub queue: usize,
    /// Copies of the sliding layers' rings that a slot keeps, to go back to where prompts differ;
    /// with 0 a prompt is reused only where rings reach back by themselves.
    pub checkpoints: usize,
    /// Ids behind which a turn of a conversation ends: where prompts are likely to differ.
    pub turn_ends: Vec<u32>,
    /// Let tokens of an answer stand for those of a prompt also on devices where reading leaves other
    /// bits behind than decoding (cards): a conversation goes on without its last answer being read,
    /// and its next answer may differ by rounding from the one after a fresh start.
    pub reuse_answers: bool,
    /// Where prompts are kept for the time after a restart.
    pub prompt_cache: Option<PromptCache>,
}

impl Default for SchedulerOptions {
    fn default() -> Self {
        Self {
            slots: 1,
            queue: 64,
            checkpoints: 4,
            turn_ends: Vec::new(),
            reuse_answers: false,
            prompt_cache: None,
        }
    }
}

/// Takes jobs for an engine. Dropping it stops it and breaks off every answer.
pub struct Scheduler {
    config: Config,
    context: usize,
    device: String,
    memory_plan: MemoryPlan,
    options: SchedulerOptions,
    shared: Arc<Shared>,
    messages: Mutex<mpsc::Sender<Message>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What the handle and the thread both see.
struct Shared {
    /// Jobs taken and not yet ended.
    pending: AtomicUsize,
    stopping: AtomicBool,
    gauges: Mutex<Gauges>,
}

impl Shared {
    fn gauges(&self) -> MutexGuard<'_, Gauges> {
        // Plain numbers: whatever a panic left there is as good as before.
        self.gauges.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Scheduler {
    /// Starts the engine's thread.
    ///
    /// Errors: no slots asked for, or more than the device was planned for; a folder of prompts that
    /// cannot be used; the system gives no thread.
    pub fn start(engine: Engine, options: SchedulerOptions) -> Result<Scheduler> {
        if options.slots == 0 {
            return Err(setting("slots", 0, "at least 1".into()));
        }
        let Parts { config, mut device, speculator, context, chunk } = engine.into_parts();
        let slots = (0..options.slots).map(|_| device.make_slot(context)).collect::<Result<_>>()?;
        let rules = Rules {
            window: config.text.sliding_window,
            checkpoints: options.checkpoints,
            turn_ends: options.turn_ends.clone(),
            answers_serve: options.reuse_answers || device.memory().answers_serve_as_prompts(),
        };
        let arithmetic = device.memory().arithmetic();
        let store = options.prompt_cache.as_ref().map(|cache| Store::open(cache, &arithmetic));
        let store = store.transpose()?;
        let gauges = Gauges { slots: options.slots, queue: options.queue, ..Gauges::default() };
        let shared = Arc::new(Shared {
            pending: AtomicUsize::new(0),
            stopping: AtomicBool::new(false),
            gauges: Mutex::new(gauges),
        });
        let (description, memory_plan) = (device.description(), device.memory_plan());
        let (messages, receiver) = mpsc::channel();
        let engine = Computing { device, speculator, chunk };
        let worker = Worker::new(engine, rules, slots, store, receiver, shared.clone());
        let thread = std::thread::Builder::new()
            .name("w4pack-engine".into())
            .spawn(move || worker.run())
            .map_err(|cause| RuntimeError::Threads { threads: 1, cause: cause.to_string() })?;
        let (thread, messages) = (Mutex::new(Some(thread)), Mutex::new(messages));
        let device = description;
        Ok(Self { config, context, device, memory_plan, options, shared, messages, thread })
    }

    /// Whether a job would be taken now: whoever asks before making one refuses without the work.
    pub fn has_room(&self) -> Result<(), Refusal> {
        if self.shared.stopping.load(Ordering::SeqCst) {
            return Err(Refusal::ShuttingDown);
        }
        match self.shared.pending.load(Ordering::SeqCst) < self.most() {
            true => Ok(()),
            false => Err(self.queue_full()),
        }
    }

    /// Jobs that are taken at once, waiting ones included.
    fn most(&self) -> usize {
        self.options.slots.saturating_add(self.options.queue)
    }

    fn queue_full(&self) -> Refusal {
        self.shared.gauges().queue_full += 1;
        Refusal::QueueFull { waiting: self.gauges().waiting, limit: self.options.queue }
    }

    /// Takes a job, or says why not, at once.
    pub fn submit(&self, job: Job) -> Result<(), Refusal> {
        let Job { prompt, max_tokens, stop_ids, sampling, adjustments, logprobs, .. } = job;
        check_prompt(&self.config, self.context, &prompt, max_tokens)?;
        let vocabulary = self.config.text.vocab_size;
        let chooser = Chooser::new(&sampling, adjustments, logprobs, &prompt, vocabulary)?;
        let answer = Answer::new(chooser, job.constraint, stop_ids, max_tokens);
        let (listener, submitted) = (job.listener, Instant::now());
        let ticket = Ticket { prompt, answer, listener, submitted };
        // Held until the job is sent, so that none comes behind the word to stop.
        let messages = self.messages();
        if self.shared.stopping.load(Ordering::SeqCst) {
            return Err(Refusal::ShuttingDown);
        }
        let most = self.most();
        let take = |pending| (pending < most).then_some(pending + 1);
        let ordering = Ordering::SeqCst;
        if self.shared.pending.fetch_update(ordering, ordering, take).is_err() {
            return Err(self.queue_full());
        }
        let sent = messages.send(Message::Job(Box::new(ticket)));
        sent.map_err(|_| Refusal::ShuttingDown)
    }

    fn messages(&self) -> MutexGuard<'_, mpsc::Sender<Message>> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is going on.
    pub fn gauges(&self) -> Gauges {
        let mut gauges = *self.shared.gauges();
        let pending = self.shared.pending.load(Ordering::SeqCst);
        gauges.waiting = pending.saturating_sub(gauges.running);
        gauges
    }

    /// The model's configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Positions an answer and its prompt may have together.
    pub fn context(&self) -> usize {
        self.context
    }

    /// The device, for people.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// What the model takes on the device.
    pub fn memory_plan(&self) -> MemoryPlan {
        self.memory_plan
    }

    /// How it was started.
    pub fn options(&self) -> &SchedulerOptions {
        &self.options
    }

    /// Refuses new jobs, lets running and waiting ones end within `limit`, breaks off the rest, has
    /// what slots hold written to disk if there is a [`PromptCache`], and returns when the thread
    /// has ended.
    pub fn stop(&self, limit: Duration) {
        {
            let messages = self.messages();
            self.shared.stopping.store(true, Ordering::SeqCst);
            // A thread that has ended already hears nothing and need not.
            let by = Instant::now() + limit.min(LONGEST_STOP);
            let _ = messages.send(Message::Stop { by });
        }
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // Had it ended by a panic, the panic's own message has been printed.
        let _ = thread.map(JoinHandle::join);
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        self.stop(Duration::ZERO);
    }
}
