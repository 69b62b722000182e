//! `w4pack eval`: questions to a local model or a server, and two results compared.

use super::engine;
use crate::args::engine::WeightsName;
use crate::args::eval::{
    AskingArguments, BfclArguments, CompareArguments, EvalArguments, EvalCommand, Gsm8kArguments,
    RecallArguments, Switch, WordingName,
};
use crate::message::{Usage, warn};
use crate::progress::Questions;
use crate::{home, locate, output};
use anyhow::Result;
use serde_json::{Value, json};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use w4pack_eval::bfcl::BfclOptions;
use w4pack_eval::recall::{RecallOptions, Wording, table::Table};
use w4pack_eval::server::is_this_machine;
use w4pack_eval::{
    Answerer, LocalAnswerer, Progress, Question, RunOptions, ServerAnswerer, ServerOptions,
    Summary, bfcl, compare, gsm8k, recall,
};
use w4pack_format::checkpoint::Checkpoint;
use w4pack_format::config::Config;
use w4pack_format::digest::sha256;
use w4pack_format::manifest::MANIFEST_FILE;
use w4pack_runtime::Sampling;
use w4pack_runtime::chat::ChatText;
use w4pack_runtime::weights::fingerprint;

/// Wait before a failed request is repeated for the first time.
const FIRST_WAIT: Duration = Duration::from_secs(1);

pub fn run(arguments: &EvalArguments, offline: bool, quiet: bool) -> Result<ExitCode> {
    match &arguments.what {
        EvalCommand::Recall(arguments) => {
            let manner = Manner { asking: &arguments.asking, offline, quiet };
            run_recall(arguments, &manner)?;
        }
        EvalCommand::Gsm8k(arguments) => {
            let manner = Manner { asking: &arguments.asking, offline, quiet };
            run_gsm8k(arguments, &manner)?;
        }
        EvalCommand::Bfcl(arguments) => {
            let manner = Manner { asking: &arguments.asking, offline, quiet };
            run_bfcl(arguments, &manner)?;
        }
        EvalCommand::Compare(arguments) => run_compare(arguments)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn run_recall(arguments: &RecallArguments, manner: &Manner<'_>) -> Result<()> {
    let wording = match arguments.wording {
        WordingName::Plain => Wording::Plain,
        WordingName::Trained => Wording::Trained,
    };
    let (lengths, depths) = (arguments.lengths.clone(), arguments.depths.clone());
    let seeds = arguments.seeds.clone();
    let questions = recall::questions(&RecallOptions { wording, lengths, depths, seeds })?;
    let summary = manner.ask("recall", questions, arguments.max_tokens)?;
    let table = Table::new(&summary);
    if let Some(path) = &arguments.plot {
        let title = format!("Recall: {}", manner.asking.model.as_deref().unwrap_or("w4pack"));
        output::file(path, table.svg(&title).as_bytes())?;
    }
    manner.print(&summary, &table.text())
}

fn run_gsm8k(arguments: &Gsm8kArguments, manner: &Manner<'_>) -> Result<()> {
    let questions = gsm8k::questions(&arguments.data)?;
    let summary = manner.ask("gsm8k", questions, arguments.max_tokens)?;
    manner.print(&summary, "")
}

fn run_bfcl(arguments: &BfclArguments, manner: &Manner<'_>) -> Result<()> {
    let questions = bfcl::questions(&BfclOptions {
        data: arguments.data.clone(),
        answers: arguments.answers.clone(),
        underscores: arguments.underscores,
    })?;
    let summary = manner.ask("bfcl", questions, arguments.max_tokens)?;
    let lines = summary.groups.iter().map(|group| {
        let category = group.group.get("category").and_then(Value::as_str).unwrap_or_default();
        format!("{category:<24}{}\n", group.score)
    });
    manner.print(&summary, &lines.collect::<String>())
}

fn run_compare(arguments: &CompareArguments) -> Result<()> {
    let comparison = compare(&arguments.a, &arguments.b)?;
    if arguments.json {
        output::json(&comparison)?;
    } else {
        print!("{comparison}");
    }
    Ok(())
}

/// Who is asked, and how.
struct Manner<'a> {
    asking: &'a AskingArguments,
    offline: bool,
    quiet: bool,
}

impl Manner<'_> {
    fn ask(
        &self,
        task: &'static str,
        questions: Vec<Question>,
        max_tokens: usize,
    ) -> Result<Summary> {
        let asking = self.asking;
        let mut questions = questions;
        match asking.limit {
            Some(0) => return Err(Usage::new("--limit is 0: at least 1").into()),
            Some(limit) => questions.truncate(limit),
            None => {}
        }
        let options = RunOptions {
            task,
            max_tokens,
            sampling: self.sampling()?,
            thinking: asking.thinking.map(|switch| switch == Switch::On),
            failures_are_wrong: asking.failures_are_wrong,
            out: asking.out.clone(),
        };
        let answerer = self.answerer()?;
        let bar = Questions::new(self.quiet);
        let records =
            w4pack_eval::run(&questions, &*answerer, &options, &mut |progress| match progress {
                Progress::Begun { questions, kept, others, dropped } => {
                    self.tell_what_is_kept(kept, others, dropped);
                    bar.begin(questions);
                }
                Progress::Answered { correct } => bar.answered(correct),
            });
        bar.finish();
        Ok(Summary::new(task, answerer.identity(), &records?))
    }

    fn tell_what_is_kept(&self, kept: usize, others: usize, dropped: usize) {
        if dropped > 0 {
            warn(&format!("--out ended in half a line: {dropped} bytes dropped"));
        }
        if self.quiet {
            return;
        }
        if kept > 0 {
            eprintln!("{kept} answers are there already");
        }
        if others > 0 {
            eprintln!("{others} answers there are to other questions, and do not count");
        }
    }

    fn print(&self, summary: &Summary, table: &str) -> Result<()> {
        if self.asking.json {
            output::json(&summary.to_json())?;
        } else {
            print!("{table}{summary}");
        }
        Ok(())
    }

    fn sampling(&self) -> Result<Sampling> {
        let asking = self.asking;
        let seed = (asking.temperature > 0.0).then_some(asking.seed);
        let (temperature, top_k) = (asking.temperature, asking.top_k);
        let sampling =
            Sampling { temperature, top_k, top_p: asking.top_p, min_p: asking.min_p, seed };
        sampling.check()?;
        Ok(sampling)
    }

    fn answerer(&self) -> Result<Box<dyn Answerer>> {
        let asking = self.asking;
        let Some(url) = &asking.url else { return self.local() };
        if self.offline && !is_this_machine(url) {
            let message = format!("--offline opens no connection, and {url} is not this machine");
            return Err(Usage::new(message).into());
        }
        Ok(Box::new(ServerAnswerer::new(ServerOptions {
            url: url.clone(),
            model: asking.model.clone().unwrap_or_default(),
            api_key: asking.api_key.clone(),
            concurrency: asking.concurrency,
            retries: asking.retries,
            first_wait: FIRST_WAIT,
            timeout: Duration::from_secs(asking.timeout),
        })?))
    }

    fn local(&self) -> Result<Box<dyn Answerer>> {
        let asking = self.asking;
        let name = match &asking.model {
            Some(model) => model.clone(),
            None => home::newest_conversion()?.display().to_string(),
        };
        let source = locate::model(&name, None)?;
        let checkpoint = Arc::new(Checkpoint::open(source.clone())?);
        let config = Config::load(&*source)?;
        let text = ChatText::load(&*source, &config)?.filter(|text| text.template().is_some());
        let text = text.ok_or_else(|| {
            Usage::new(format!("`{name}` has no tokenizer or no chat template to ask through"))
        })?;
        // Another conversion, or other weights, under the same name are another model.
        let (kind, hash) = match source.size(MANIFEST_FILE) {
            Some(_) => ("manifest_sha256", sha256(&source.read_file(MANIFEST_FILE)?)),
            None => {
                let bytes = fingerprint(&checkpoint)?;
                ("weights_blake3", bytes.iter().map(|byte| format!("{byte:02x}")).collect())
            }
        };
        let weights = match asking.engine.weights {
            WeightsName::Codes => "codes",
            WeightsName::Bf16 => "bf16",
        };
        let identity = json!({"model": name, kind: hash, "weights": weights});
        let engine = engine::open(&checkpoint, &asking.engine, 1, self.quiet)?;
        if !self.quiet {
            eprintln!("model: {name}, {}", engine.device());
        }
        Ok(Box::new(LocalAnswerer::new(engine, text, identity)))
    }
}
