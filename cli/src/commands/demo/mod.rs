//! `w4pack demo`: the whole way on a small checkpoint, and what each step proved.

mod questions;

use crate::args::DemoArguments;
use crate::commands::convert::summary;
use crate::output;
use anyhow::{Context, Result, bail, ensure};
use questions::{Chat, Question};
use std::fs;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use w4pack_convert::{Options, Silent, convert};
use w4pack_fixtures::trained;
use w4pack_format::checkpoint::Checkpoint;
use w4pack_format::scale::ScaleDtype;
use w4pack_format::source::FolderSource;
use w4pack_runtime::{
    Engine, EngineOptions, Generation, LoadOptions, Model, Request, Sampling, WeightValues,
};
use w4pack_verify::report::{Report, Verdict};
use w4pack_verify::verify;

/// Longest answer.
const NEW_TOKENS: usize = 64;
/// `<|tool_response>`: behind its calls the model waits for the results.
const STOP_IDS: [u32; 1] = [50];

pub fn run(arguments: &DemoArguments, _quiet: bool) -> Result<ExitCode> {
    // Removed when it goes out of scope, whatever happens.
    let scratch;
    let folder = match &arguments.out {
        Some(out) => out.as_path(),
        None => {
            scratch = tempfile::tempdir().context("could not make a temporary folder")?;
            scratch.path()
        }
    };
    let google = make(folder)?;
    let packed = pack(&google, folder, ScaleDtype::F16, "packed")?;
    prove(&packed, &google)?;
    break_it(&packed, &google, folder)?;
    run_it(&packed, &google, folder)?;
    if arguments.out.is_some() {
        output::line(&format!("\nThe checkpoints are in {}.", folder.display()))?;
    }
    output::line("\nAll five steps held.")?;
    Ok(ExitCode::SUCCESS)
}

fn make(folder: &Path) -> Result<PathBuf> {
    heading(1, "A small Gemma 4, trained for this, in Google's layout")?;
    let out = folder.join("google");
    trained::write(&out)?;
    let bytes: usize = trained::FILES.iter().map(|file| file.1.len()).sum();
    output::line(&format!(
        "5.9 million parameters, {bytes} bytes: every feature of Gemma 4 E2B in small, trained from \
         nothing on\nmade-up data, every weight on the 4-bit grid. fixtures/trained/README.md says \
         what it can and cannot do."
    ))?;
    Ok(out)
}

fn pack(google: &Path, folder: &Path, scale_dtype: ScaleDtype, name: &str) -> Result<PathBuf> {
    let first = scale_dtype == ScaleDtype::F16;
    if first {
        heading(2, "Convert it: recover every code and every step")?;
    }
    let out = folder.join(name);
    let options = Options { scale_dtype, ..Options::default() };
    let report = convert(Arc::new(FolderSource::open(google)?), &out, &options, &Silent)?;
    if first {
        output::print(&summary(&report))?;
    }
    Ok(out)
}

fn check(packed: &Path, google: &Path) -> Result<Report> {
    let packed = Arc::new(FolderSource::open(packed)?);
    let google = Arc::new(FolderSource::open(google)?);
    Ok(verify(packed, Some(google), &w4pack_verify::Options::default(), &()))
}

fn prove(packed: &Path, google: &Path) -> Result<()> {
    heading(3, "Prove it, with arithmetic that shares nothing with the converter")?;
    let report = check(packed, google)?;
    output::line(&report.to_string())?;
    ensure!(report.verdict == Verdict::Proved, "the conversion was not proved");
    Ok(())
}

fn break_it(packed: &Path, google: &Path, folder: &Path) -> Result<()> {
    heading(4, "Break it: one of all the 4-bit codes is changed by one")?;
    let damaged = folder.join("damaged");
    copy_folder(packed, &damaged)?;
    let checkpoint = Checkpoint::open_folder(&damaged)?;
    let victim = "model.layers.3.mlp.up_proj.weight_packed";
    let found = checkpoint.tensor(victim).with_context(|| format!("`{victim}` is not there"))?;
    let offset = found.shard.header.data_start() + found.info.begin + found.info.bytes() / 2;
    let file =
        fs::OpenOptions::new().read(true).write(true).open(damaged.join(&found.shard.path))?;
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset)?;
    file.write_all_at(&[byte[0] ^ 1], offset)?;
    let report = check(&damaged, google)?;
    ensure!(report.verdict == Verdict::Disproved, "the damage was not found");
    for fault in &report.faults {
        let place = match (&fault.tensor, fault.row, fault.group) {
            (Some(tensor), Some(row), Some(group)) => format!("{tensor}, row {row}, group {group}"),
            (Some(tensor), ..) => tensor.clone(),
            _ => fault.file.clone(),
        };
        output::line(&format!("found: {place}: {}", fault.detail))?;
    }
    let count = report.whole.int4_codes_disagreeing;
    output::line(&format!(
        "{count} of {} codes disagrees: disproved, as it must be.",
        report.whole.elements
    ))?;
    ensure!(count == 1, "one code was changed, {count} were counted");
    Ok(())
}

fn run_it(packed: &Path, google: &Path, folder: &Path) -> Result<()> {
    heading(5, "Run it: questions to the packed words")?;
    let chat = Chat::load()?;
    let questions = chat.questions()?;
    let mut packed = engine(packed, WeightValues::Codes)?;
    for question in &questions {
        let answer = generate(&mut packed, question)?;
        let text = chat.read(question, &answer.tokens)?;
        let speed = answer.prefill_tokens_per_second();
        output::line(&format!(
            "{}, {} tokens read at {speed:.0} tok/s\n  > {}\n  {text}",
            question.about, answer.prompt_tokens, question.shown
        ))?;
        let expected = &question.expected;
        ensure!(text == *expected, "the answer must be `{expected}`");
    }

    let exact = pack(google, folder, ScaleDtype::F32, "packed-f32")?;
    let mut source = engine(google, WeightValues::Codes)?;
    let mut rounded = engine(&exact, WeightValues::Bf16)?;
    let (mut exact, mut near, mut logits) = (0.0f32, 0.0f32, 0);
    for question in &questions {
        let googles = generate(&mut source, question)?;
        exact = exact.max(distance(&googles, &generate(&mut rounded, question)?)?);
        near = near.max(distance(&googles, &generate(&mut packed, question)?)?);
        logits += googles.logits.as_ref().map_or(0, Vec::len);
    }
    output::line(&format!(
        "\nLargest difference of {logits} logits from those of the bf16 source: {exact:e} with \
         f32 steps and\nproducts rounded to bf16, which are Google's values; {near:.3} with f16 \
         steps and unrounded products."
    ))?;
    ensure!(exact == 0.0, "packed words gave other logits than the source");
    Ok(())
}

fn engine(folder: &Path, weights: WeightValues) -> Result<Engine> {
    let checkpoint = Checkpoint::open_folder(folder)?;
    let model = Model::load(&checkpoint, &LoadOptions { weights }, &mut |_| {})?;
    Ok(Engine::new(model, EngineOptions::default())?)
}

fn generate(engine: &mut Engine, question: &Question) -> Result<Generation> {
    let config = engine.config();
    let request = Request {
        prompt: question.ids.clone(),
        max_tokens: Some(NEW_TOKENS),
        stop_ids: STOP_IDS.iter().copied().chain(config.eos_token_ids.clone()).collect(),
        ignore_eos: false,
        sampling: Sampling::GREEDY,
        logits: true,
    };
    Ok(engine.generate(&request, &mut |_| ControlFlow::Continue(()))?)
}

/// Largest absolute difference of the logits at the prompt's positions, which see the same tokens.
fn distance(one: &Generation, other: &Generation) -> Result<f32> {
    let (Some(a), Some(b)) = (&one.logits, &other.logits) else {
        bail!("no logits were kept");
    };
    let vocabulary = a.len() / (one.prompt_tokens + one.tokens.len() - 1);
    let prompt = one.prompt_tokens * vocabulary;
    let pairs = a[..prompt].iter().zip(&b[..prompt]);
    Ok(pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max))
}

fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

fn heading(number: usize, text: &str) -> Result<()> {
    output::line(&format!("\n{number}. {text}\n"))
}
