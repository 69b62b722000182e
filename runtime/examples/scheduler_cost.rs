//! What the scheduler costs a token: the same answers by `Engine::generate` and through a scheduler,
//! in turns, and how many tokens a second several answers at once get together.
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
use w4pack_runtime::scheduler::{Event, Job, SchedulerOptions, Summary};
use w4pack_runtime::{
    Adjustments, Engine, EngineOptions, LoadOptions, Model, Request, Sampling, Scheduler,
};

const SLOTS: usize = 4;

fn engine(folder: &Path) -> Result<Engine, Box<dyn Error>> {
    let checkpoint = Checkpoint::open_folder(folder)?;
    let model = Model::load(&checkpoint, &LoadOptions::default(), &mut |_| {})?;
    let options = EngineOptions { context: Some(1024), ..EngineOptions::default() };
    Ok(Engine::new(model, options)?)
}

fn prompt(seed: usize) -> Vec<u32> {
    (0..32).map(|i| 3 + ((i + seed) * 37 % 150) as u32).collect()
}

/// Submits a job and sends its summary when it ends.
fn submit(scheduler: &Scheduler, seed: usize, tokens: usize) -> mpsc::Receiver<Summary> {
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
    if let Err(refusal) = scheduler.submit(job) {
        eprintln!("refused: {refusal}");
    }
    receiver
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
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

    let (mut engine_times, mut scheduler_times) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        let request = Request {
            prompt: prompt(round),
            max_tokens: Some(tokens),
            stop_ids: Vec::new(),
            ignore_eos: true,
            sampling: Sampling::GREEDY,
            logits: false,
        };
        engine_times.push(alone.generate(&request, &mut |_| ControlFlow::Continue(()))?.decode);
        scheduler_times.push(submit(&scheduler, round, tokens).recv()?.decode);
    }
    let steps = (tokens - 1) as f64;
    let per_token = |times| median(times).as_secs_f64() / steps * 1e6;
    let (engine_time, scheduler_time) = (per_token(engine_times), per_token(scheduler_times));
    println!("engine     {engine_time:>10.1} us a token");
    println!(
        "scheduler  {scheduler_time:>10.1} us a token, {:.4} of it",
        scheduler_time / engine_time
    );

    let begin = Instant::now();
    let answers: Vec<_> = (0..SLOTS).map(|seed| submit(&scheduler, 100 + seed, tokens)).collect();
    for answer in answers {
        answer.recv()?;
    }
    let rate = (SLOTS * tokens) as f64 / begin.elapsed().as_secs_f64();
    println!("{SLOTS} at once {:>8.1} tokens a second together", rate);
    Ok(())
}
