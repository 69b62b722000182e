//! A job that cannot go on ends alone.

use crate::hearing::*;
use crate::support::random;
use std::ops::ControlFlow;
use std::sync::Arc;
use w4pack_runtime::device::{Contents, CpuDevice, Rings, SlotMemory};
use w4pack_runtime::scheduler::{Job, PromptCache, Refusal, SchedulerOptions};
use w4pack_runtime::{
    Adjustments, Allowed, Constraint, Device, Engine, EngineOptions, MemoryPlan, Result,
    RuntimeError, Sampling, Scheduler, Slot, Traffic, Work,
};

/// The CPU, but a token that announces a fault breaks the step that follows.
struct Faulty {
    cpu: CpuDevice,
}

/// Logits behind this token are NaN.
const BREAKS_LOGITS: u32 = 150;
/// A prompt with this token makes the device fail.
const BREAKS_DEVICE: u32 = 151;
/// A prompt with this token makes it panic.
const PANICS: u32 = 152;

impl Device for Faulty {
    fn description(&self) -> String {
        "faulty".into()
    }

    fn memory_plan(&self) -> MemoryPlan {
        self.cpu.memory_plan()
    }

    fn traffic(&self) -> Traffic {
        self.cpu.traffic()
    }

    fn read_bandwidth(&mut self) -> Result<f64> {
        self.cpu.read_bandwidth()
    }

    fn make_slot(&mut self, context: usize) -> Result<Slot> {
        self.cpu.make_slot(context)
    }

    fn free_slot(&mut self, slot: Slot) -> Result<()> {
        self.cpu.free_slot(slot)
    }

    fn memory(&mut self) -> &mut dyn SlotMemory {
        self.cpu.memory()
    }

    fn step(&mut self, batch: &[Work<'_>]) -> Result<Vec<Vec<f32>>> {
        let has = |id| batch.iter().any(|work| work.tokens.contains(&id));
        assert!(!has(PANICS), "as asked");
        if has(BREAKS_DEVICE) {
            let (what, bytes) = ("a step".into(), 1);
            return Err(RuntimeError::Memory { what, bytes });
        }
        let mut logits = self.cpu.step(batch)?;
        if has(BREAKS_LOGITS) {
            logits.iter_mut().flatten().for_each(|logit| *logit = f32::NAN);
        }
        Ok(logits)
    }
}

/// Ids below the faulty ones.
fn sound(count: usize, seed: u64) -> Vec<u32> {
    random::tokens(count, seed).into_iter().map(|id| id % 150).collect()
}

/// Keeps the answer's own tokens sound.
fn sound_job(prompt: Vec<u32>, max_tokens: usize) -> Job {
    let logit_bias = [BREAKS_LOGITS, BREAKS_DEVICE, PANICS].map(|id| (id, -100.0)).to_vec();
    let adjustments = Adjustments { logit_bias, ..Adjustments::default() };
    Job { adjustments, ..job(prompt, max_tokens) }
}

/// The CPU, but copies of rings cannot be put back, nor whole slots.
struct Forgetful {
    cpu: CpuDevice,
}

impl Device for Forgetful {
    fn description(&self) -> String {
        "forgetful".into()
    }

    fn memory_plan(&self) -> MemoryPlan {
        self.cpu.memory_plan()
    }

    fn traffic(&self) -> Traffic {
        self.cpu.traffic()
    }

    fn read_bandwidth(&mut self) -> Result<f64> {
        self.cpu.read_bandwidth()
    }

    fn make_slot(&mut self, context: usize) -> Result<Slot> {
        self.cpu.make_slot(context)
    }

    fn free_slot(&mut self, slot: Slot) -> Result<()> {
        self.cpu.free_slot(slot)
    }

    fn memory(&mut self) -> &mut dyn SlotMemory {
        self
    }

    fn step(&mut self, batch: &[Work<'_>]) -> Result<Vec<Vec<f32>>> {
        self.cpu.step(batch)
    }
}

impl SlotMemory for Forgetful {
    fn positions(&self, slot: Slot) -> Result<usize> {
        self.cpu.positions(slot)
    }

    fn slot_bytes(&self, slot: Slot) -> Result<usize> {
        self.cpu.slot_bytes(slot)
    }

    fn save_rings(&mut self, slot: Slot) -> Result<Rings> {
        self.cpu.save_rings(slot)
    }

    fn restore(&mut self, slot: Slot, target: usize, rings: Option<&Rings>) -> Result<()> {
        if rings.is_some() {
            return Err(RuntimeError::Snapshot { problem: "as asked".into() });
        }
        self.cpu.restore(slot, target, None)
    }

    fn export(&mut self, slot: Slot) -> Result<Contents> {
        self.cpu.export(slot)
    }

    fn import(&mut self, _: Slot, _: &Contents) -> Result<()> {
        Err(RuntimeError::Snapshot { problem: "as asked".into() })
    }

    fn arithmetic(&self) -> String {
        self.cpu.arithmetic()
    }

    fn answers_serve_as_prompts(&self) -> bool {
        true
    }
}

/// What cannot be put back is read again: slower, and the same answer.
#[test]
fn a_slot_that_cannot_be_restored_is_a_miss() {
    let start = |folder: &std::path::Path| {
        let cpu = CpuDevice::new(Arc::new(model()), 1).expect("a thread starts");
        let options = EngineOptions {
            context: Some(512),
            chunk: 8,
            threads: None,
            ..EngineOptions::default()
        };
        let device = Box::new(Forgetful { cpu });
        let engine = Engine::on_device(model().config, Vec::new(), device, options);
        let cache = PromptCache { folder: folder.to_path_buf(), limit: 1 << 30, weights: [1; 32] };
        let options = SchedulerOptions { prompt_cache: Some(cache), ..SchedulerOptions::default() };
        Scheduler::start(engine.expect("it starts"), options).expect("it starts")
    };
    let folder = tempfile::tempdir().expect("a folder");
    let forgetful = start(folder.path());
    let first = random::tokens(60, 1);
    let otherwise = [&first[..], &random::tokens(9, 2)].concat();
    let expected = ask(&scheduler(1, 1, 8), job(otherwise.clone(), 20)).tokens;
    ask(&forgetful, job(first, 20));
    // The end of the first prompt is within reach of a copy only.
    let answer = ask(&forgetful, job(otherwise.clone(), 20));
    assert_eq!((answer.summary.cached_tokens, &answer.tokens), (0, &expected));
    forgetful.stop(LIMIT);
    let forgetful = start(folder.path());
    let answer = ask(&forgetful, job(otherwise, 20));
    assert_eq!((answer.summary.cached_tokens, &answer.tokens), (0, &expected));
    let gauges = forgetful.gauges();
    assert_eq!((gauges.disk_hits, gauges.failed, gauges.finished), (0, 0, 1), "{gauges:?}");
}

#[derive(Clone)]
struct Broken(u32);

impl Constraint for Broken {
    fn next(&mut self) -> Result<Allowed<'_>> {
        match self.0 {
            0 => Ok(Allowed::Only(&[])),
            1 => Err(RuntimeError::Constraint { problem: "no way on".into() }),
            _ => Ok(Allowed::Anything),
        }
    }

    fn accept(&mut self, _: u32) -> Result<()> {
        self.0 -= 1;
        Ok(())
    }

    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}

#[test]
fn a_job_that_fails_ends_alone_and_the_scheduler_lives_on() {
    let cpu = CpuDevice::new(Arc::new(model()), 1).expect("a thread starts");
    let config = model().config;
    let device = Box::new(Faulty { cpu });
    let options =
        EngineOptions { context: Some(512), chunk: 8, threads: None, ..EngineOptions::default() };
    let engine = Engine::on_device(config, Vec::new(), device, options).expect("it starts");
    let options = SchedulerOptions { slots: 3, queue: 20, ..SchedulerOptions::default() };
    let faulty = Scheduler::start(engine, options).expect("it starts");

    let expected = ask(&scheduler(1, 1, 8), sound_job(sound(20, 1), 120)).tokens;
    let bystander = submit(&faulty, sound_job(sound(20, 1), 120), |_| ControlFlow::Continue(()))
        .expect("it is taken");
    let prompt = |fault| [sound(20, 2), vec![fault]].concat();
    let with = |constraint| Job {
        constraint: Some(Box::new(Broken(constraint))),
        ..sound_job(sound(9, 3), 9)
    };
    // The panics below are part of the test; their messages are not of interest.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    for (job, words) in [
        (sound_job(prompt(BREAKS_LOGITS), 9), "the logit of token 0 is NaN"),
        (sound_job(prompt(BREAKS_DEVICE), 9), "no memory for a step"),
        (sound_job(prompt(PANICS), 9), "a fault inside w4pack"),
        (with(0), "allows no token"),
        (with(1), "no way on"),
        (with(4), "no way on"),
    ] {
        let events = submit(&faulty, job, |_| ControlFlow::Continue(())).expect("it is taken");
        let error = hear(&events).expect_err("it cannot go on").to_string();
        assert!(error.contains(words), "`{words}` is not in: {error}");
    }
    // A listener that panics loses its own answer only.
    let events = submit(&faulty, sound_job(sound(5, 4), 9), |heard| match heard {
        Heard::Token(_) => panic!("as asked"),
        _ => ControlFlow::Continue(()),
    })
    .expect("it is taken");
    assert!(matches!(hear(&events), Err(RuntimeError::Panic)));
    std::panic::set_hook(hook);

    let found = hear(&bystander).expect("it ends well");
    assert_eq!(found.tokens, expected, "the answer beside them is the same");
    let again = ask(&faulty, sound_job(sound(20, 1), 120));
    assert_eq!(again.tokens, expected, "and so is the one behind them");
    let gauges = faulty.gauges();
    assert_eq!((gauges.failed, gauges.finished, gauges.running), (7, 2, 0), "{gauges:?}");
}

#[test]
fn jobs_that_cannot_be_served_are_refused_before_they_wait() {
    let scheduler = scheduler(1, 4, 8);
    let refused = |job: Job| scheduler.submit(job).expect_err("it cannot be served");
    // Field case 25: prompts as long as the context, one longer, three times as long.
    for length in [512, 513, 1536] {
        match refused(job(random::tokens(length, 1), 1)) {
            Refusal::Context { prompt, max_tokens: 1, context: 512 } => assert_eq!(prompt, length),
            other => panic!("{other}"),
        }
    }
    let error = refused(job(random::tokens(500, 1), 13)).to_string();
    assert!(["500", "13", "513", "512"].iter().all(|number| error.contains(number)), "{error}");
    let sound = || job(vec![2], 1);
    let hot = Sampling { temperature: -1.0, ..Sampling::GREEDY };
    let penalty = Adjustments { presence_penalty: 3.0, ..Adjustments::default() };
    for (job, words) in [
        (job(Vec::new(), 1), "no tokens"),
        (job(vec![2], 0), "max_tokens is 0"),
        (job(vec![2, 160], 1), "id 160"),
        (Job { sampling: hot, ..sound() }, "temperature is -1"),
        (Job { adjustments: penalty, ..sound() }, "presence_penalty is 3"),
        (Job { logprobs: Some(21), ..sound() }, "logprobs is 21"),
    ] {
        match refused(job) {
            Refusal::Setting(error) => assert!(error.to_string().contains(words), "{error}"),
            other => panic!("{other}"),
        }
    }
    assert_eq!(ask(&scheduler, job(random::tokens(508, 1), 4)).tokens.len(), 4, "it still works");
}
