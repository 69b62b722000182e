//! Whether guessing tokens ahead changes an answer, and what it brings, by kind of text:
//! `cargo run --release --example speculation -- MODEL cpu|cuda PROMPTS.jsonl [LIMIT [TOKENS [GOING ON]]]`.
//!
//! PROMPTS has a line each with `kind`, `messages` and perhaps `tools`, as `fixtures/trained/held_out.jsonl`. LIMIT
//! of them, as many of each kind, are answered with TOKENS tokens at most, greedily and (every fourth) drawn as the model
//! asks for; each with `ngram`, with `auto`, with `auto` and a guesser that is nearly always wrong, and before and
//! after each of these without guesses: the machine's speed moves, and drawing is the host's work. `goes-on` as the last word goes on behind the tokens that end an
//! answer. Answers are compared id by id; any that differs makes this fail.

use serde_json::Value;
use std::collections::BTreeMap;
use std::error::Error;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use w4pack_format::checkpoint::Checkpoint;
use w4pack_format::config::Config;
use w4pack_format::source::FolderSource;
use w4pack_runtime::chat::{ChatText, Conversation};
use w4pack_runtime::device::cuda::{CudaDevice, CudaOptions};
use w4pack_runtime::speculation::{Draft, Drafted, Drafter, MakeDrafter};
use w4pack_runtime::{
    Engine, EngineOptions, GenerationDefaults, LoadOptions, Model, Request, RuntimeError, Sampling,
    Speculation,
};

type Outcome<T> = Result<T, Box<dyn Error>>;

const USAGE: &str =
    "give MODEL, cpu or cuda, PROMPTS.jsonl, and perhaps LIMIT, TOKENS and `goes-on`";
const CONTEXT: usize = 8192;
const CARD_MEMORY: usize = 8 << 30;

/// What a way of guessing has come to for one kind of text.
#[derive(Default)]
struct Sum {
    prompts: usize,
    tokens: usize,
    steps: usize,
    decode: Duration,
    drafted: Drafted,
}

/// Guesses that have nothing to do with the text, and claims to be sure of them.
struct Wrong(u32);

impl Drafter for Wrong {
    fn append(&mut self, tokens: &[u32]) {
        self.0 = self.0.wrapping_add(tokens.len() as u32);
    }

    fn draft(&mut self, most: usize) -> Draft {
        let tokens =
            (0..most as u32).map(|number| self.0.wrapping_add(37 * number) % 200).collect();
        Draft { tokens, matched: 9 }
    }
}

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, device, prompts, rest @ ..] = &arguments[..] else { return Err(USAGE.into()) };
    let number = |at: usize, default: usize| rest.get(at).map_or(Ok(default), |text| text.parse());
    let (limit, tokens) = (number(0, 200)?, number(1, 160)?);
    let goes_on = rest.get(2).is_some_and(|word| word == "goes-on");
    let source = Arc::new(FolderSource::open(Path::new(folder))?);
    let config = Config::load(&*source)?;
    let defaults = GenerationDefaults::load(&*source, &config)?;
    let text = ChatText::load(&*source, &config)?.ok_or("the model has no tokenizer")?;
    let checkpoint = Arc::new(Checkpoint::open(source)?);
    let mut engine = open(&checkpoint, device)?;
    println!("{folder}, {}", engine.device());
    engine = match engine.speculating(Speculation::Ngram) {
        Ok(engine) => engine,
        // A model whose tokens this card runs one by one.
        Err(error @ RuntimeError::NoSpeculation { .. }) => {
            println!("skipped: {error}");
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    };

    let prompts = read(prompts, &text, limit)?;
    let request = |ids: &[u32], drawn: bool, seed: usize| Request {
        prompt: ids.to_vec(),
        max_tokens: Some(tokens),
        stop_ids: defaults.stop_ids.clone(),
        ignore_eos: goes_on,
        sampling: match drawn {
            true => Sampling { temperature: 1.0, seed: Some(seed as u64), ..defaults.sampling },
            false => Sampling::GREEDY,
        },
        logits: false,
    };
    let wrong: MakeDrafter = || Box::new(Wrong(0));
    let off = ("off", Speculation::Off, None);
    let ways = [
        off,
        ("ngram", Speculation::Ngram, None),
        off,
        ("auto", Speculation::Auto, None),
        off,
        ("wrong guesses", Speculation::Auto, Some(wrong)),
        off,
    ];
    let mut ways = ways.map(|(name, how, guesser)| (name, engine.speculator(how, guesser)));
    let mut answers = 0;
    let mut sums: BTreeMap<(String, usize), Sum> = BTreeMap::new();
    let mut differing = 0;
    // Everything is touched once before it is measured.
    engine.generate(&request(&prompts[0].1, false, 0), &mut |_| ControlFlow::Continue(()))?;
    for drawn in [false, true] {
        let every = if drawn { 4 } else { 1 };
        for (seed, (kind, ids)) in prompts.iter().enumerate().step_by(every) {
            let request = request(ids, drawn, seed);
            let kind = format!("{kind}, {}", if drawn { "drawn" } else { "greedy" });
            let mut plain: Option<Vec<u32>> = None;
            for (way, (name, speculator)) in ways.iter_mut().enumerate() {
                // Each way goes on with what it has learnt from its answers before.
                engine.exchange_speculator(speculator);
                let answer = engine.generate(&request, &mut |_| ControlFlow::Continue(()))?;
                engine.exchange_speculator(speculator);
                if answer.tokens != *plain.get_or_insert_with(|| answer.tokens.clone()) {
                    println!("DIFFERS: {name}, {kind}, prompt {seed}");
                    differing += 1;
                }
                let sum = sums.entry((kind.clone(), way)).or_default();
                sum.prompts += 1;
                sum.tokens += answer.tokens.len();
                sum.steps += answer.tokens.len() - 1;
                sum.decode += answer.decode;
                sum.drafted.drafted += answer.drafted.drafted;
                sum.drafted.accepted += answer.drafted.accepted;
            }
            answers += 1;
        }
    }
    table(&sums);
    println!("{answers} answers of each way, {differing} differ");
    if differing > 0 { Err("guessing tokens ahead has changed answers".into()) } else { Ok(()) }
}

fn open(checkpoint: &Arc<Checkpoint>, device: &str) -> Outcome<Engine> {
    match device {
        "cpu" => {
            let model = Model::load(checkpoint, &LoadOptions::default(), &mut |_| {})?;
            let longest = model.config.text.max_position_embeddings;
            let context = Some(CONTEXT.min(longest));
            Ok(Engine::new(model, EngineOptions { context, ..EngineOptions::default() })?)
        }
        "cuda" => {
            let options = CudaOptions {
                memory: Some(CARD_MEMORY),
                context: None,
                speculation: Speculation::Ngram,
                ..CudaOptions::default()
            };
            let card = CudaDevice::load(checkpoint, options, &mut |_| {})?;
            let chunk = card.chunk();
            Ok(Engine::on_card(card, chunk)?)
        }
        _ => Err(USAGE.into()),
    }
}

/// Kind and ids of prompts, as many of each kind.
fn read(file: &str, text: &ChatText, limit: usize) -> Outcome<Vec<(String, Vec<u32>)>> {
    let mut by_kind: BTreeMap<String, Vec<Vec<u32>>> = BTreeMap::new();
    for line in std::fs::read_to_string(file)?.lines() {
        let line: Value = serde_json::from_str(line)?;
        let list = |name: &str| line[name].as_array().cloned().unwrap_or_default();
        let (messages, tools) = (list("messages"), list("tools"));
        let conversation =
            Conversation { messages: &messages, tools: &tools, ..Conversation::default() };
        let kind = line["kind"].as_str().ok_or("a line has no kind")?.to_owned();
        by_kind.entry(kind).or_default().push(text.prompt(&conversation)?.ids);
    }
    let each = limit.div_ceil(by_kind.len().max(1));
    let prompts = by_kind.into_iter().flat_map(|(kind, prompts)| {
        prompts.into_iter().take(each).map(move |ids| (kind.clone(), ids))
    });
    let prompts: Vec<_> = prompts.take(limit).collect();
    if prompts.is_empty() { Err("there are no prompts".into()) } else { Ok(prompts) }
}

fn table(sums: &BTreeMap<(String, usize), Sum>) {
    println!(
        "{:<22}{:>9}{:>9}{:>11}{:>8}{:>17}{:>8}{:>17}{:>8}{:>17}{:>8}",
        "",
        "answers",
        "tokens",
        "off tok/s",
        "ngram",
        "right of tried",
        "auto",
        "right of tried",
        "wrong",
        "right of tried",
        "slowest"
    );
    for ((kind, _), off) in sums.iter().filter(|((_, way), _)| *way == 0) {
        let way = |way: usize| &sums[&(kind.clone(), way)];
        let speed = |sum: &Sum| sum.steps as f64 / sum.decode.as_secs_f64();
        let plain = |ways: &[usize]| {
            let seconds: f64 = ways.iter().map(|&number| 1.0 / speed(way(number))).sum();
            ways.len() as f64 / seconds
        };
        // What guesses bring is beside the runs before and after.
        let gain = |number: usize| speed(way(number)) / plain(&[number - 1, number + 1]);
        let all = plain(&[0, 2, 4, 6]);
        let slowest = [0, 2, 4, 6].map(|number| speed(way(number))).into_iter().fold(all, f64::min);
        let right = |sum: &Sum| format!("{} of {}", sum.drafted.accepted, sum.drafted.drafted);
        println!(
            "{kind:<22}{:>9}{:>9}{:>11.1}{:>8.3}{:>17}{:>8.3}{:>17}{:>8.3}{:>17}{:>8.3}",
            off.prompts,
            off.tokens,
            all,
            gain(1),
            right(way(1)),
            gain(3),
            right(way(3)),
            gain(5),
            right(way(5)),
            slowest / all,
        );
    }
}
