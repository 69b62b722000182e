//! `w4pack run`: a prompt in, an answer out.

use super::open::{self, Files, Opened};
use crate::args::RunArguments;
use crate::message::{Usage, warn};
use crate::output;
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::io::Write;
use std::ops::ControlFlow;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use w4pack_runtime::chat::{
    ChatText, Conversation, Most, SpecialTokens, StreamDecoder, Tokenizer, messages,
};
use w4pack_runtime::speculation::Drafted;
use w4pack_runtime::{Engine, Generation, Request, logits_file::write_logits};

/// Longest answer when nobody says otherwise and the context has room.
const DEFAULT_MAX_TOKENS: usize = 1024;

pub fn run(arguments: &RunArguments, quiet: bool) -> Result<ExitCode> {
    let name = open::name(arguments.model.as_deref())?;
    if let Some(path) = &arguments.logits {
        check_logits_target(path, &name)?;
    }
    let Opened { mut engine, text, config, defaults, .. } =
        Files::find(&name)?.open(&arguments.engine, 1, quiet)?;
    let prompt = prompt(text.as_ref(), arguments, &name)?;

    let room = engine.context().saturating_sub(prompt.len()).max(1);
    let request = Request {
        max_tokens: Some(arguments.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS.min(room))),
        stop_ids: defaults.stop_ids.clone(),
        ignore_eos: arguments.ignore_eos,
        sampling: arguments.sampling.over(&defaults.sampling),
        logits: arguments.logits.is_some(),
        prompt,
    };
    if let (Some(card), false) = (engine.card(), quiet) {
        eprintln!("{}\n{}", engine.device(), card.memory_table);
    } else if !quiet {
        let plan = engine.memory_plan();
        let total = plan.total(request.prompt.len() + request.max_tokens.unwrap_or(0));
        eprintln!("{}: {} MiB of memory", engine.device(), total.div_ceil(1 << 20));
    }
    let tokenizer = text.as_ref().map(|text| text.tokenizer().clone());
    let mut printer = Printer::new(tokenizer, !arguments.json);
    let generation = engine.generate(&request, &mut |id| printer.token(id, &request))?;
    printer.finish()?;

    if let (Some(path), Some(logits)) = (&arguments.logits, &generation.logits) {
        write_logits(path, logits, config.text.vocab_size)?;
    }
    let report = report(&generation, printer.text(), &name, &engine);
    if arguments.json {
        output::line(&report.to_string())?;
    } else if !quiet {
        summary(&generation);
    }
    Ok(ExitCode::SUCCESS)
}

/// A file of logits takes the place of what has its name: that must be a plain file, and none of
/// the model's.
fn check_logits_target(path: &Path, model: &str) -> Result<()> {
    let refuse = |problem: &str| {
        let message = format!("cannot write logits to `{}`: {problem}", path.display());
        Err(Usage::new(message).hint("give another file with --logits").into())
    };
    if std::fs::symlink_metadata(path).is_ok_and(|found| !found.is_file()) {
        return refuse("it is there and is no plain file");
    }
    let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let Ok(folder) = folder.unwrap_or(Path::new(".")).canonicalize() else {
        return refuse("its folder is not there");
    };
    let in_model = Path::new(model).canonicalize().is_ok_and(|model| folder.starts_with(model));
    if in_model {
        return refuse("it lies in the model's folder");
    }
    Ok(())
}

/// The prompt's ids. The template's warnings concern conversations with tools; here is one question.
fn prompt(text: Option<&ChatText>, arguments: &RunArguments, model: &str) -> Result<Vec<u32>> {
    let Some(question) = &arguments.input.prompt else {
        return Ok(arguments.input.tokens.clone().unwrap_or_default());
    };
    let text = text.ok_or_else(|| {
        Usage::new(format!("`{model}` has no tokenizer.json, so it cannot read a --prompt"))
            .hint("give token ids with --tokens")
    })?;
    if arguments.raw {
        return Ok(text.tokenizer().encode_raw(question, Most::ANY)?);
    }
    if text.template().is_none() {
        let message = format!("`{model}` has no chat template to put a --prompt in");
        return Err(Usage::new(message).hint("give --raw to send the text as it is").into());
    }
    let messages = [messages::from_user(question)];
    Ok(text.prompt(&Conversation { messages: &messages, ..Conversation::default() })?.ids)
}

/// Turns ids into text as they come, and prints it if somebody reads.
struct Printer {
    decoder: Option<StreamDecoder>,
    text: String,
    print: bool,
    /// Ids without a piece of text, named once each at the end.
    unknown: Vec<u32>,
    first: bool,
    failed: Option<std::io::Error>,
}

impl Printer {
    fn new(tokenizer: Option<Arc<Tokenizer>>, print: bool) -> Printer {
        let decoder = tokenizer.map(|tokenizer| StreamDecoder::new(tokenizer, SpecialTokens::Hide));
        let (text, unknown) = (String::new(), Vec::new());
        Printer { decoder, text, print, unknown, first: true, failed: None }
    }

    fn token(&mut self, id: u32, request: &Request) -> ControlFlow<()> {
        let ends = request.stop_ids.contains(&id) && !request.ignore_eos;
        let piece = match &mut self.decoder {
            // Without a tokenizer the ids themselves are the answer.
            None if self.first => id.to_string(),
            None => format!(",{id}"),
            Some(_) if ends => String::new(),
            Some(decoder) => decoder.push(id).unwrap_or_else(|_| {
                self.unknown.push(id);
                String::new()
            }),
        };
        self.first = false;
        self.emit(&piece)
    }

    fn emit(&mut self, piece: &str) -> ControlFlow<()> {
        self.text.push_str(piece);
        if self.print && !piece.is_empty() {
            let mut stdout = std::io::stdout().lock();
            let written = stdout.write_all(piece.as_bytes()).and_then(|()| stdout.flush());
            if let Err(error) = written {
                self.failed = Some(error);
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    }

    fn finish(&mut self) -> Result<()> {
        let rest = self.decoder.as_mut().map(StreamDecoder::finish).unwrap_or_default();
        let _ = self.emit(&rest);
        if self.print && self.failed.is_none() {
            let _ = self.emit("\n");
            self.text.pop();
        }
        self.unknown.sort_unstable();
        self.unknown.dedup();
        if !self.unknown.is_empty() {
            let ids = self.unknown.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
            warn(&format!("tokenizer.json has no text for the generated ids {ids}"));
        }
        match self.failed.take() {
            Some(error) => Err(error).context("could not write the answer to stdout"),
            None => Ok(()),
        }
    }

    /// The text, `None` for a checkpoint without a tokenizer.
    fn text(&self) -> Option<&str> {
        self.decoder.as_ref().map(|_| self.text.as_str())
    }
}

fn report(generation: &Generation, text: Option<&str>, model: &str, engine: &Engine) -> Value {
    json!({
        "text": text,
        "tokens": generation.tokens,
        "prompt_tokens": generation.prompt_tokens,
        "completion_tokens": generation.tokens.len(),
        "finish_reason": generation.finish_reason.name(),
        "seed": generation.seed,
        "prefill_tokens_per_second": generation.prefill_tokens_per_second(),
        "decode_tokens_per_second": generation.decode_tokens_per_second(),
        "drafted_tokens": generation.drafted.drafted,
        "accepted_tokens": generation.drafted.accepted,
        "model": model,
        "device": engine.device(),
        "context": engine.context(),
        "gpu": engine.card().map(|card| json!({
            "planned_bytes": card.sizes.total(),
            "measured_bytes": card.taken,
            "outside_bytes": card.outside,
            "weights_bytes": card.sizes.weights,
            "per_layer_table_bytes": card.sizes.table,
            "full_layers_kv_bytes": card.sizes.full,
            "sliding_layers_kv_bytes": card.sizes.sliding,
            "work_space_bytes": card.sizes.work,
            "driver_bytes": card.sizes.driver,
            "load_bytes": card.load.bytes,
            "load_seconds": card.load.duration.as_secs_f64(),
            "load_bytes_per_second": card.load.bytes as f64 / card.load.duration.as_secs_f64(),
        })),
    })
}

fn summary(generation: &Generation) {
    let seed = generation.seed.map_or_else(String::new, |seed| format!(", seed {seed}"));
    let decode = generation
        .decode_tokens_per_second()
        .map_or_else(String::new, |speed| format!(", decode {speed:.1} tok/s"));
    let drafted = match generation.drafted {
        Drafted { drafted: 0, .. } => String::new(),
        Drafted { drafted, accepted } => format!(", {accepted} of {drafted} guessed tokens right"),
    };
    eprintln!(
        "{} prompt tokens, {} generated ({}); prefill {:.1} tok/s{decode}{drafted}{seed}",
        generation.prompt_tokens,
        generation.tokens.len(),
        generation.finish_reason.name(),
        generation.prefill_tokens_per_second(),
    );
}
