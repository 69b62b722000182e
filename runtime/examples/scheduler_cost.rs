//! What the scheduler costs a token: the same answers by `Engine::generate` and through a scheduler,
//! in turns; both again on a device that takes no time, which leaves their own; and how many tokens a
//! second several answers at once get together.
//!
//! ```text
//! cargo run --release -p w4pack-runtime --example scheduler_cost -- FOLDER [TOKENS] [ROUNDS]
//! ```

use std::error::Error;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};
use w4pack_format::checkpoint::Checkpoint;
use w4pack_runtime::device::{Contents, Rings, SlotMemory};
use w4pack_runtime::scheduler::{Event, Job, Refusal, SchedulerOptions, Summary};
use w4pack_runtime::{
    Adjustments, Device, Engine, EngineOptions, LoadOptions, MemoryPlan, Model, Request,
    RuntimeError, Sampling, Scheduler, Slot, Traffic, Work,
};

const SLOTS: usize = 4;

fn engine(folder: &Path) -> Result<Engine, Box<dyn Error>> {
    let checkpoint = Checkpoint::open_folder(folder)?;
    let model = Model::load(&checkpoint, &LoadOptions::default(), &mut |_| {})?;
    let options = EngineOptions { context: Some(1024), ..EngineOptions::default() };
    Ok(Engine::new(model, options)?)
}

/// A device that says the same token at once.
struct Idle {
    positions: usize,
    vocabulary: usize,
}

impl Device for Idle {
    fn description(&self) -> String {
        "idle".into()
    }

    fn memory_plan(&self) -> MemoryPlan {
        MemoryPlan {
            weights: 0,
            per_layer_table: 0,
            sliding_per_token: 0,
            sliding_window: 1,
            full_per_token: 0,
        }
    }

    fn traffic(&self) -> Traffic {
        Traffic::default()
    }

    fn read_bandwidth(&mut self) -> Result<f64, RuntimeError> {
        Ok(f64::INFINITY)
    }

    fn make_slot(&mut self, _: usize) -> Result<Slot, RuntimeError> {
        self.positions = 0;
        Ok(Slot::numbered(0))
    }

    fn free_slot(&mut self, _: Slot) -> Result<(), RuntimeError> {
        Ok(())
    }

    fn memory(&mut self) -> &mut dyn SlotMemory {
        self
    }

    fn step(&mut self, batch: &[Work<'_>]) -> Result<Vec<Vec<f32>>, RuntimeError> {
        self.positions += batch.iter().map(|work| work.tokens.len()).sum::<usize>();
        Ok(batch.iter().map(|_| vec![1.0; self.vocabulary]).collect())
    }

    fn decode_greedy(&mut self, _: Slot, token: u32) -> Result<u32, RuntimeError> {
        self.positions += 1;
        Ok(token)
    }
}

impl SlotMemory for Idle {
    fn positions(&self, _: Slot) -> Result<usize, RuntimeError> {
        Ok(self.positions)
    }

    fn slot_bytes(&self, _: Slot) -> Result<usize, RuntimeError> {
        Ok(0)
    }

    fn save_rings(&mut self, _: Slot) -> Result<Rings, RuntimeError> {
        Ok(Rings { positions: self.positions, bytes: Vec::new() })
    }

    fn restore(&mut self, _: Slot, target: usize, _: Option<&Rings>) -> Result<(), RuntimeError> {
        self.positions = target;
        Ok(())
    }

    fn export(&mut self, slot: Slot) -> Result<Contents, RuntimeError> {
        Ok(Contents { full: Vec::new(), rings: self.save_rings(slot)? })
    }

    fn import(&mut self, _: Slot, contents: &Contents) -> Result<(), RuntimeError> {
        self.positions = contents.rings.positions;
        Ok(())
    }

    fn arithmetic(&self) -> String {
        "idle".into()
    }

    fn answers_serve_as_prompts(&self) -> bool {
        true
    }
}

fn prompt(seed: usize) -> Vec<u32> {
    (0..32).map(|i| 3 + ((i + seed) * 37 % 150) as u32).collect()
}

/// Submits a job and sends its summary when it ends.
fn submit(
    scheduler: &Scheduler,
    seed: usize,
    tokens: usize,
) -> Result<mpsc::Receiver<Summary>, Refusal> {
    let (sender, receiver) = mpsc::channel();
    let job = Job {
        prompt: prompt(seed),
        max_tokens: tokens,
        stop_ids: Vec::new(),
        sampling: Sampling::GREEDY,
        adjustments: Adjustments::default(),
        logprobs: None,
        constraint: None,
        listener: Box::new(move |event| {
            if let Event::Ended(summary) = event {
                // The main thread waits for it.
                let _ = sender.send(summary.clone());
            }
            ControlFlow::Continue(())
        }),
    };
    scheduler.submit(job)?;
    Ok(receiver)
}

/// Medians of the microseconds a token takes, by the engine and by the scheduler, in turns.
fn compare(
    engine: &mut Engine,
    scheduler: &Scheduler,
    tokens: usize,
    rounds: usize,
) -> Result<[f64; 2], Box<dyn Error>> {
    let mut times = [Vec::new(), Vec::new()];
    for round in 0..rounds {
        let request = Request {
            prompt: prompt(round),
            max_tokens: Some(tokens),
            stop_ids: Vec::new(),
            ignore_eos: true,
            sampling: Sampling::GREEDY,
            logits: false,
        };
        times[0].push(engine.generate(&request, &mut |_| ControlFlow::Continue(()))?.decode);
        times[1].push(submit(scheduler, round, tokens)?.recv()?.decode);
    }
    Ok(times.map(|mut times: Vec<Duration>| {
        times.sort_unstable();
        times[times.len() / 2].as_secs_f64() / (tokens - 1) as f64 * 1e6
    }))
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().ok_or("give the folder of a checkpoint")?;
    let tokens: usize = arguments.next().map_or(Ok(65), |text| text.parse())?;
    let rounds: usize = arguments.next().map_or(Ok(15), |text| text.parse())?;
    let folder = Path::new(&folder);
    let mut alone = engine(folder)?;
    println!("{}", alone.device());
    let options = SchedulerOptions { slots: SLOTS, ..SchedulerOptions::default() };
    let scheduler = Scheduler::start(engine(folder)?, options)?;
    let [by_engine, by_scheduler] = compare(&mut alone, &scheduler, tokens, rounds)?;
    println!("engine     {by_engine:>10.2} us a token");
    println!("scheduler  {by_scheduler:>10.2} us a token, {:.4} of it", by_scheduler / by_engine);

    let idle = || {
        let options = EngineOptions { context: Some(1024), ..EngineOptions::default() };
        let device = Box::new(Idle { positions: 0, vocabulary: alone.config().text.vocab_size });
        Engine::on_device(alone.config().clone(), Vec::new(), device, options)
    };
    let mut engine_only = idle()?;
    let scheduler_only = Scheduler::start(idle()?, SchedulerOptions::default())?;
    let [own_engine, own_scheduler] =
        compare(&mut engine_only, &scheduler_only, 900, rounds.max(15))?;
    let share = (own_scheduler - own_engine) / by_engine;
    println!("of these {own_engine:.2} and {own_scheduler:.2} us are their own: {share:.4} more");

    let begin = Instant::now();
    let answers: Result<Vec<_>, _> =
        (0..SLOTS).map(|seed| submit(&scheduler, 100 + seed, tokens)).collect();
    for answer in answers? {
        answer.recv()?;
    }
    let rate = (SLOTS * tokens) as f64 / begin.elapsed().as_secs_f64();
    println!("{SLOTS} at once {rate:>8.1} tokens a second together, prompts of 32 read on the way");
    Ok(())
}
