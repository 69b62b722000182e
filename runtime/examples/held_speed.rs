//! What a held answer costs: `cargo run --release --example held_speed -- TOKENIZER_JSON [MODEL]`.
//!
//! With a vocabulary alone: time and memory to make its grammars, to compile one, and for each mask
//! along a written answer. With a model folder too: decoding with and without a constraint, token for
//! token, and the share that the masks take.

use serde_json::{Value, json};
use std::error::Error;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use w4pack_format::checkpoint::Checkpoint;
use w4pack_format::config::Config;
use w4pack_format::source::FolderSource;
use w4pack_runtime::chat::{CallRules, ChatText, Choice, Grammars, Tokenizer, ToolDeclaration};
use w4pack_runtime::constraint::Constraint;
use w4pack_runtime::scheduler::{Event, Job, Scheduler, SchedulerOptions, Summary};
use w4pack_runtime::{
    Adjustments, Engine, EngineOptions, LoadOptions, Model, Sampling, WeightValues,
};

type Outcome<T> = Result<T, Box<dyn Error>>;

const PROMPT: &str = "<bos><|turn>user\nx<turn|>\n<|turn>model\n";
const STOPS: [u32; 3] = [1, 106, 50];

fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1);
    let tokenizer = arguments.next().ok_or("give a tokenizer.json")?;
    vocabulary(Path::new(&tokenizer))?;
    match arguments.next() {
        Some(folder) => model(Path::new(&folder)),
        None => Ok(()),
    }
}

fn schema() -> Value {
    json!({"type": "object", "required": ["title", "tags", "price"], "properties": {
        "price": {"type": "number"},
        "tags": {"type": "array", "items": {"enum": ["new", "old", "rare"]}},
        "title": {"type": "string"},
    }})
}

fn vocabulary(file: &Path) -> Outcome<()> {
    let start = Instant::now();
    let tokenizer = Arc::new(Tokenizer::from_bytes(&std::fs::read(file)?, None, Some(2))?);
    println!("tokenizer: {} tokens, read in {:.2?}", tokenizer.len(), start.elapsed());

    let (start, memory) = (Instant::now(), resident()?);
    let grammars = Grammars::new(&tokenizer, tokenizer.len(), &STOPS)?;
    println!("trie: {:.2?}, {} MiB", start.elapsed(), (resident()? - memory) >> 20);
    let (start, memory) = (Instant::now(), resident()?);
    grammars.json_object(PROMPT)?;
    println!("first JSON grammar: {:.2?}, {} MiB", start.elapsed(), (resident()? - memory) >> 20);

    let schema = schema();
    let tools = [ToolDeclaration { name: "add_item", parameters: Some(&schema), strict: true }];
    let rules =
        CallRules { tools: &tools, choice: Choice::Required, parallel: true, after_prompt: PROMPT };
    let (start, memory) = (Instant::now(), resident()?);
    grammars.calls(&rules)?;
    println!("first call grammar: {:.2?}, {} MiB", start.elapsed(), (resident()? - memory) >> 20);

    let title =
        "A long and winding story of the sea, told by those who came back from it.".repeat(4);
    let object = json!({"price": 12.5, "tags": ["new", "rare"], "title": title});
    let call = format!(
        "<|tool_call>call:add_item{{price:12.5,tags:[<|\"|>new<|\"|>,<|\"|>rare<|\"|>],title:<|\"|>{title}<|\"|>}}<tool_call|>"
    );
    type Make<'g> = Box<dyn Fn() -> Outcome<Box<dyn Constraint>> + 'g>;
    let answers: [(&str, String, Make<'_>); 3] = [
        ("json_object", object.to_string(), Box::new(|| Ok(grammars.json_object(PROMPT)?))),
        (
            "json_schema",
            serde_json::to_string_pretty(&object)?,
            Box::new(|| Ok(grammars.json_schema(&schema, PROMPT)?)),
        ),
        ("required call", call, Box::new(|| grammars.calls(&rules)?.ok_or("a constraint".into()))),
    ];
    for (name, text, make) in answers {
        let ids = tokenizer.encode_prompt(&text)?;
        let start = Instant::now();
        let constraint = make()?;
        let compiled = start.elapsed();
        let (first, again) = (masks(constraint, &ids)?, masks(make()?, &ids)?);
        println!("{name}: compiled in {compiled:.2?}; {}; again {}", first, again);
    }
    Ok(())
}

/// What each mask along the ids took.
fn masks(mut constraint: Box<dyn Constraint>, ids: &[u32]) -> Outcome<String> {
    let mut times = Vec::new();
    for &id in ids {
        let start = Instant::now();
        constraint.next()?;
        constraint.accept(id)?;
        times.push(start.elapsed());
    }
    let mean = times.iter().sum::<Duration>() / times.len() as u32;
    let longest = times.iter().max().copied().unwrap_or_default();
    Ok(format!("{} masks, {mean:.1?} each, at most {longest:.1?}", times.len()))
}

fn model(folder: &Path) -> Outcome<()> {
    let source = Arc::new(FolderSource::open(folder)?);
    let config = Config::load(&*source)?;
    let text = ChatText::load(&*source, &config)?.ok_or("the model has no tokenizer")?;
    let checkpoint = Checkpoint::open(source)?;
    let load = LoadOptions { weights: WeightValues::Codes };
    let model = Model::load(&checkpoint, &load, &mut |_| {})?;
    let engine = Engine::new(model, EngineOptions { context: Some(1024), ..Default::default() })?;
    let scheduler = Scheduler::start(engine, SchedulerOptions::default())?;
    let prompt = text.tokenizer().encode_prompt(PROMPT)?;
    // A string without an end keeps both answers equally long.
    let schema =
        json!({"type": "array", "items": {"type": "string", "minLength": 100_000}, "minItems": 1});
    for round in 0..3 {
        let free = decode(&scheduler, &prompt, None)?;
        let held = text.grammars()?.json_schema(&schema, PROMPT)?;
        let held = decode(&scheduler, &prompt, Some(held))?;
        let (free, held) = (each(&free), each(&held));
        let share = (held.as_secs_f64() / free.as_secs_f64() - 1.0) * 100.0;
        println!("round {round}: free {free:.1?} a token, held {held:.1?}: {share:+.1} %");
    }
    scheduler.stop(Duration::ZERO);
    Ok(())
}

fn each(summary: &Summary) -> Duration {
    summary.decode / (summary.completion_tokens - 1).max(1) as u32
}

/// Samples 200 tokens, whatever they are.
fn decode(
    scheduler: &Scheduler,
    prompt: &[u32],
    constraint: Option<Box<dyn Constraint>>,
) -> Outcome<Summary> {
    let (sender, heard) = mpsc::channel();
    // Drawn, not the likeliest: a free greedy answer would take a shorter way.
    let sampling = Sampling { temperature: 1.0, seed: Some(1), ..Sampling::GREEDY };
    scheduler.submit(Job {
        prompt: prompt.to_vec(),
        max_tokens: 200,
        stop_ids: Vec::new(),
        sampling,
        adjustments: Adjustments::default(),
        logprobs: None,
        constraint,
        listener: Box::new(move |event| {
            match event {
                Event::Ended(summary) => drop(sender.send(Ok(summary.clone()))),
                Event::Failed(error) => drop(sender.send(Err(error))),
                _ => {}
            }
            ControlFlow::Continue(())
        }),
    })?;
    Ok(heard.recv()??)
}

/// Bytes of memory this process holds.
fn resident() -> Outcome<usize> {
    let pages: usize = std::fs::read_to_string("/proc/self/statm")?
        .split_whitespace()
        .nth(1)
        .ok_or("statm has two numbers")?
        .parse()?;
    Ok(pages * 4096)
}
