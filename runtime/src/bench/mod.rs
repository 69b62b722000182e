//! How fast a device is: decoding at depths, prompts of lengths, each beside the read bandwidth
//! measured in the same minutes and, if asked for, beside llama.cpp.
//!
//! Machines are shared and clocks move, so nothing is compared across minutes: a round measures the
//! bandwidth, w4pack and the rival one after the other, and what is reported are medians of rounds
//! and the median of the rounds' own ratios.

mod report;
mod rival;

pub use report::{Measured, Report, RivalReport, Spread};
pub use rival::{Rival, Task};

use crate::device::{DecodeStep, Decoded, Device, MOST_TRIED, Slot, Wanted, Work};
use crate::engine::{Engine, Parts, setting};
use crate::error::Result;
use crate::sampling::greedy;
use crate::traffic::Traffic;
use std::time::Instant;

/// What to measure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BenchOptions {
    /// Tokens in front of the generated ones.
    pub depths: Vec<usize>,
    /// Tokens generated in one measurement.
    pub steps: usize,
    /// Whether passes over tokens that are guessed ahead are measured, at each depth.
    pub tried: bool,
    /// Lengths of prompts.
    pub prompts: Vec<usize>,
    /// Numbers of answers that decode together, each at the first of the depths, or 0.
    pub slots: Vec<usize>,
    /// How often everything is measured.
    pub rounds: usize,
}

impl BenchOptions {
    /// Positions that the longest measurement needs.
    pub fn context(&self) -> usize {
        let together = self.slots.first().map(|_| self.depth_together());
        let depths = self.depths.iter().copied().chain(together);
        let behind = self.steps.max(if self.tried { MOST_TRIED } else { 1 });
        let decode = depths.map(|depth| depth.saturating_add(behind));
        decode.chain(self.prompts.iter().copied()).max().unwrap_or(1)
    }

    /// Tokens in front of answers that decode together.
    fn depth_together(&self) -> usize {
        self.depths.first().copied().unwrap_or(0)
    }

    /// Sequences that the measurements need at once.
    pub fn most_slots(&self) -> usize {
        self.slots.iter().copied().max().unwrap_or(1)
    }

    /// Errors: nothing to measure, or more positions than `context` has.
    pub fn check(&self, context: usize) -> Result<()> {
        for (name, value) in [("steps", self.steps), ("rounds", self.rounds)] {
            if value == 0 {
                return Err(setting(name, 0, "at least 1".into()));
            }
        }
        if self.depths.is_empty() && self.prompts.is_empty() && self.slots.is_empty() {
            return Err(setting("depths, prompts and slots", 0, "at least one of them".into()));
        }
        if self.slots.contains(&0) {
            return Err(setting("slots", 0, "at least 1".into()));
        }
        if self.prompts.contains(&0) {
            return Err(setting("tokens of a prompt", 0, "at least 1".into()));
        }
        if self.context() > context {
            let expected = format!("at most {context}, the positions of the context");
            return Err(setting("depth and steps, or a prompt", self.context(), expected));
        }
        Ok(())
    }
}

/// Measures; `progress` is told in words what comes next.
///
/// Errors: options out of range; a step that fails; a rival that does not run or says something
/// unexpected.
pub fn run(
    engine: Engine,
    options: &BenchOptions,
    rival: Option<&Rival>,
    progress: &mut dyn FnMut(&str),
) -> Result<Report> {
    options.check(engine.context())?;
    let Parts { config, device, chunk, .. } = engine.into_parts();
    let mut bench = Bench {
        traffic: device.traffic(),
        device,
        chunk,
        tokens: tokens(options.context(), config.text.vocab_size),
        rounds: options.rounds,
        rival,
        rival_report: None,
        bandwidths: Vec::new(),
        progress,
    };
    let depths = options.depths.iter().map(|&depth| bench.decode(depth, options.steps));
    let decode = depths.collect::<Result<Vec<Measured>>>()?;
    let depth = options.depth_together();
    let slots = options.slots.iter().map(|&slots| bench.together(slots, depth, options.steps));
    let together = slots.collect::<Result<Vec<Measured>>>()?;
    let tried = match options.tried {
        true => options.depths.iter().map(|&depth| bench.tried(depth, options.steps)).collect(),
        false => Ok(Vec::new()),
    };
    let tried: Vec<Vec<Measured>> = tried?;
    let prompts = options.prompts.iter().map(|&tokens| bench.prefill(tokens));
    let prefill = prompts.collect::<Result<Vec<Measured>>>()?;
    Ok(Report {
        device: bench.device.description(),
        chunk,
        read_bandwidth: Spread::of(bench.bandwidths),
        decode,
        tried: tried.concat(),
        together,
        prefill,
        rival: bench.rival_report,
    })
}

/// Ids without meaning, the same in every run: speed does not depend on them.
fn tokens(count: usize, vocabulary: usize) -> Vec<u32> {
    (0..count as u32).map(|i| i.wrapping_mul(2_654_435_761) % vocabulary as u32).collect()
}

struct Bench<'a> {
    device: Box<dyn Device>,
    traffic: Traffic,
    chunk: usize,
    tokens: Vec<u32>,
    rounds: usize,
    rival: Option<&'a Rival>,
    rival_report: Option<RivalReport>,
    /// Bytes a second, of every round.
    bandwidths: Vec<f64>,
    progress: &'a mut dyn FnMut(&str),
}

impl Bench<'_> {
    /// Greedy decoding of `steps` tokens behind `depth` others.
    fn decode(&mut self, depth: usize, steps: usize) -> Result<Measured> {
        (self.progress)(&format!("decode at {depth}"));
        let slot = self.device.make_slot(depth + steps)?;
        self.read(slot, depth)?;
        let rings = self.device.memory().save_rings(slot)?;
        // Everything is touched once before it is measured.
        self.device.decode_greedy(slot, self.tokens[0])?;
        let task = Task::Decode { depth, steps };
        let bytes = self.traffic.decode(depth + steps / 2);
        let measured = self.rounds(task, bytes, &mut |bench| {
            bench.device.memory().restore(slot, depth, Some(&rings))?;
            let mut id = bench.tokens[0];
            let begin = Instant::now();
            for _ in 0..steps {
                id = bench.device.decode_greedy(slot, id)?;
            }
            Ok(steps as f64 / begin.elapsed().as_secs_f64())
        })?;
        self.device.free_slot(slot)?;
        Ok(measured)
    }

    /// `steps` passes each over 2, 4 and 8 tokens behind `depth` others, of which none are kept.
    fn tried(&mut self, depth: usize, steps: usize) -> Result<Vec<Measured>> {
        let slot = self.device.make_slot(depth + MOST_TRIED)?;
        self.read(slot, depth)?;
        let mut measured = Vec::new();
        for tried in [2, 4, MOST_TRIED] {
            let task = Task::Tried { tried, depth, steps };
            (self.progress)(&task.to_string());
            let tokens = self.tokens.iter().copied().cycle().take(tried).collect::<Vec<_>>();
            self.device.try_tokens(slot, &tokens)?;
            // Weights once, and the keys and values that each token sees.
            let one = self.traffic.decode(depth);
            let bytes = one + (tried - 1) as f64 * (one - self.traffic.decode(0));
            measured.push(self.rounds(task, bytes, &mut |bench| {
                let begin = Instant::now();
                for _ in 0..steps {
                    let mut trial = bench.device.try_tokens(slot, &tokens)?;
                    for number in 0..tried {
                        trial.leads_to(number, false)?;
                    }
                }
                Ok((tried * steps) as f64 / begin.elapsed().as_secs_f64())
            })?);
        }
        self.device.free_slot(slot)?;
        Ok(measured)
    }

    /// Greedy decoding of `steps` tokens of each of `count` answers together, behind `depth` others.
    fn together(&mut self, count: usize, depth: usize, steps: usize) -> Result<Measured> {
        let task = Task::Together { slots: count, depth, steps };
        (self.progress)(&task.to_string());
        let mut slots = Vec::new();
        for _ in 0..count {
            let slot = self.device.make_slot(depth + steps)?;
            self.read(slot, depth)?;
            slots.push((slot, self.device.memory().save_rings(slot)?));
        }
        let first = self.tokens[0];
        let step = |slot: Slot, token: u32| DecodeStep { slot, token, logits: false };
        let starts: Vec<DecodeStep> = slots.iter().map(|&(slot, _)| step(slot, first)).collect();
        self.device.decode_together(&starts).into_iter().collect::<Result<Vec<_>>>()?;
        // Weights once for all, keys and values of each.
        let one = self.traffic.decode(depth + steps / 2);
        let own = one - self.traffic.decode(0);
        let bytes = one + (count - 1) as f64 * own;
        let measured = self.rounds(task, bytes, &mut |bench| {
            for (slot, rings) in &slots {
                bench.device.memory().restore(*slot, depth, Some(rings))?;
            }
            let mut next = starts.clone();
            let begin = Instant::now();
            for _ in 0..steps {
                let decoded = bench.device.decode_together(&next);
                for (next, decoded) in next.iter_mut().zip(decoded) {
                    next.token = match decoded? {
                        Decoded::Likeliest(id) => id,
                        Decoded::Logits(logits) => greedy(&logits)?,
                    };
                }
            }
            Ok((count * steps) as f64 / begin.elapsed().as_secs_f64())
        })?;
        for (slot, _) in slots {
            self.device.free_slot(slot)?;
        }
        Ok(measured)
    }

    /// A prompt of `tokens`, to the logits of its last token.
    fn prefill(&mut self, tokens: usize) -> Result<Measured> {
        (self.progress)(&format!("prefill of {tokens}"));
        let bytes = self.traffic.prefill(tokens, self.chunk);
        self.rounds(Task::Prefill { tokens }, bytes, &mut |bench| {
            let slot = bench.device.make_slot(tokens)?;
            let begin = Instant::now();
            bench.read(slot, tokens)?;
            let seconds = begin.elapsed().as_secs_f64();
            bench.device.free_slot(slot)?;
            Ok(tokens as f64 / seconds)
        })
    }

    /// Reads the first `tokens` ids in chunks, as a prompt.
    fn read(&mut self, slot: Slot, tokens: usize) -> Result<()> {
        let mut chunks = self.tokens[..tokens].chunks(self.chunk).peekable();
        while let Some(tokens) = chunks.next() {
            let logits = if chunks.peek().is_some() { Wanted::Nothing } else { Wanted::Last };
            self.device.step(&[Work { slot, tokens, logits }])?;
        }
        Ok(())
    }

    /// All rounds of one task; `speed` measures ours, in tokens a second. `bytes` are those of a
    /// token, or of a whole prompt.
    fn rounds(
        &mut self,
        task: Task,
        bytes: f64,
        speed: &mut dyn FnMut(&mut Self) -> Result<f64>,
    ) -> Result<Measured> {
        let (mut ours, mut rivals, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        let (mut rates, mut shares) = (Vec::new(), Vec::new());
        for round in 1..=self.rounds {
            (self.progress)(&format!("{task}: round {round} of {}", self.rounds));
            let bandwidth = self.device.read_bandwidth()?;
            let own = speed(self)?;
            let rate = bytes * own / task.tokens_of_bytes() as f64;
            self.bandwidths.push(bandwidth);
            ours.push(own);
            rates.push(rate);
            shares.push(rate / bandwidth);
            if let Some(rival) = self.rival.filter(|_| task.arguments().is_some()) {
                let sample = rival.measure(task)?;
                rivals.push(sample.tokens_per_second);
                ratios.push(own / sample.tokens_per_second);
                self.rival_report.get_or_insert(sample.report);
            }
        }
        let compared = !rivals.is_empty();
        Ok(Measured {
            task,
            bytes,
            tokens_per_second: Spread::of(ours),
            bytes_per_second: Spread::of(rates),
            share_of_read_bandwidth: Spread::of(shares),
            rival_tokens_per_second: compared.then(|| Spread::of(rivals)),
            ratio: compared.then(|| Spread::of(ratios)),
        })
    }
}
