//! `w4pack bench`: how fast this machine runs a model, and llama.cpp beside it.

mod plot;

use super::open::{self, Files, Opened};
use super::picture::PictureFile;
use crate::args::bench::BenchArguments;
use crate::args::engine::{EngineArguments, SpeculateName};
use crate::output;
use anyhow::Result;
use serde_json::json;
use std::process::ExitCode;
use w4pack_runtime::bench::{self, BenchOptions, Rival};
use w4pack_runtime::device::physical_cores;

pub fn run(arguments: &BenchArguments, quiet: bool) -> Result<ExitCode> {
    let file = arguments.plot.as_deref().map(PictureFile::new).transpose()?;
    let options = BenchOptions {
        depths: arguments.depth.0.clone(),
        steps: arguments.steps,
        tried: arguments.engine.speculate == SpeculateName::Ngram,
        prompts: arguments.prompt_tokens.0.clone(),
        slots: arguments.slots.0.clone(),
        rounds: arguments.rounds,
    };
    let name = open::name(arguments.model.as_deref())?;
    let files = Files::find(&name)?;
    let text = files.config().text.clone();
    // No more context than is measured, so that a card keeps room to measure its bandwidth in.
    let context = arguments.engine.context.unwrap_or(options.context());
    options.check(context.min(text.max_position_embeddings))?;
    let engine = EngineArguments { context: Some(context), ..arguments.engine.clone() };
    let Opened { engine, .. } = files.open(&engine, options.most_slots(), quiet)?;
    let threads = match engine.card() {
        Some(card) => {
            if !quiet {
                eprintln!("{}", card.memory_table);
            }
            None
        }
        None => Some(arguments.engine.threads.unwrap_or_else(physical_cores)),
    };
    let rival = match (&arguments.rival, &arguments.rival_model) {
        (Some(program), Some(model)) => Some(Rival::new(program, model, threads, &text)?),
        _ => None,
    };
    let report = bench::run(engine, &options, rival.as_ref(), &mut |next| {
        if !quiet {
            eprintln!("{next}");
        }
    })?;
    if let Some(file) = file {
        file.write(&plot::plot(&report, &name))?;
    }
    if arguments.json {
        let mut object = json!({"model": name});
        if let (Some(object), Ok(serde_json::Value::Object(report))) =
            (object.as_object_mut(), serde_json::to_value(&report))
        {
            object.extend(report);
        }
        output::json(&object)?;
    } else {
        output::line(&report.to_string())?;
    }
    Ok(ExitCode::SUCCESS)
}
