//! `w4pack serve`: the model behind OpenAI's API.

use super::open::{self, Files, Opened};
use crate::args::serve::ServeArguments;
use crate::interrupt::Interrupt;
use crate::message::{Usage, warn};
use crate::output;
use anyhow::{Context, Result};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;
use w4pack_runtime::scheduler::{PromptCache, Scheduler, SchedulerOptions};
use w4pack_runtime::server::{HeaderValue, Server, ServerOptions, Service};
use w4pack_runtime::weights::fingerprint;
use w4pack_runtime::{Engine, RuntimeError};

/// How often a waiting server looks whether a signal has come.
const LOOK: Duration = Duration::from_millis(50);
/// Slots on the CPU when nobody says how many, if memory allows.
const MOST_DEFAULT_SLOTS: usize = 4;
/// Where a key may come from, if no flag gives one.
const KEY_VARIABLE: &str = "W4PACK_API_KEY";

pub fn run(arguments: &ServeArguments, quiet: bool) -> Result<ExitCode> {
    let options = options(arguments)?;
    let name = open::name(arguments.model.as_deref())?;
    let model_names = match arguments.served_model_name.is_empty() {
        true => vec![model_name(&name)],
        false => arguments.served_model_name.clone(),
    };
    // What is not there or not whole is refused before anybody is told an address.
    let files = Files::find(&name)?;
    // It listens before the model is there: whoever waits for it learns that from /health.
    let (host, port) = (options.host.clone(), options.port);
    let server = Server::start(ServerOptions { model_names, ..options })
        .with_context(|| format!("could not listen on {host}, port {port}"))?;
    output::line(&format!("listening on http://{}", server.address()))?;

    let service = load(files, arguments, &name, quiet)?;
    if !quiet {
        eprintln!("ready: {}", service.scheduler.device());
    }
    let interrupt = Interrupt::watch()?;
    server.ready(service);
    while !interrupt.has_come() {
        if !server.is_running() {
            return server
                .stop(Duration::ZERO)
                .map(|()| ExitCode::FAILURE)
                .context("the server ended");
        }
        std::thread::sleep(LOOK);
    }
    if !quiet {
        eprintln!("stopping: answers may take {} s to end", arguments.grace);
    }
    server.stop(Duration::from_secs(arguments.grace)).context("the server did not end well")?;
    Ok(ExitCode::SUCCESS)
}

/// Everything that can be wrong with the flags, before anything is opened. The names come later.
fn options(arguments: &ServeArguments) -> Result<ServerOptions> {
    let at_least_one = |flag: &str, value: usize| match value {
        0 => Err(Usage::new(format!("{flag} is 0: at least 1"))),
        _ => Ok(()),
    };
    at_least_one("--slots", arguments.slots.unwrap_or(1))?;
    at_least_one("--body-limit", arguments.body_limit)?;
    let cors = arguments.cors.iter().map(|origin| {
        let is_origin = origin == "*" || is_origin(origin);
        is_origin.then(|| HeaderValue::from_str(origin).ok()).flatten().ok_or_else(|| {
            let message = format!("--cors {origin}: that is no origin");
            Usage::new(message).hint("give scheme, host and port: `http://localhost:3000`, or `*`")
        })
    });
    if arguments.served_model_name.iter().any(String::is_empty) {
        return Err(Usage::new("--served-model-name is empty").into());
    }
    Ok(ServerOptions {
        host: arguments.host.clone(),
        port: arguments.port,
        model_names: Vec::new(),
        api_keys: api_keys(&arguments.api_key)?,
        cors: cors.collect::<Result<_, _>>()?,
        body_limit: arguments.body_limit.saturating_mul(1 << 20),
        ..ServerOptions::default()
    })
}

/// `scheme://host[:port]` and nothing behind it: what a browser sends.
fn is_origin(text: &str) -> bool {
    let rest = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    rest.is_some_and(|host| !host.is_empty() && !host.contains(['/', '?', '#', ' ', ',', '*']))
}

/// Keys from flags and the files they name, else from the environment.
fn api_keys(flags: &[String]) -> Result<Vec<String>> {
    let mut keys = Vec::new();
    for flag in flags {
        let Some(file) = flag.strip_prefix('@') else {
            keys.push(flag.clone());
            continue;
        };
        let text = std::fs::read_to_string(file)
            .map_err(|error| Usage::new(format!("could not read the keys in `{file}`: {error}")))?;
        let lines = text.lines().map(str::trim);
        let before = keys.len();
        keys.extend(lines.filter(|line| !line.is_empty()).map(str::to_owned));
        if keys.len() == before {
            return Err(Usage::new(format!("`{file}` holds no key"))
                .hint("write one a line")
                .into());
        }
    }
    if flags.is_empty() {
        keys.extend(std::env::var(KEY_VARIABLE).ok().filter(|key| !key.is_empty()));
    }
    // A key is sent in a header: others could never be given.
    let sendable =
        |key: &String| !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_graphic());
    match keys.iter().all(sendable) {
        true => Ok(keys),
        false => {
            Err(Usage::new("an API key is empty or holds other than visible ASCII characters")
                .into())
        }
    }
}

/// The last part of a path, or a Hub name as it is.
fn model_name(model: &str) -> String {
    let path = Path::new(model);
    let last =
        path.canonicalize().ok().and_then(|path| Some(path.file_name()?.to_str()?.to_owned()));
    last.unwrap_or_else(|| model.to_owned())
}

fn load(files: Files, arguments: &ServeArguments, name: &str, quiet: bool) -> Result<Service> {
    let Opened { checkpoint, engine, text, defaults, .. } =
        files.open(&arguments.engine, arguments.slots.unwrap_or(1), quiet)?;
    let text = text.ok_or_else(|| {
        Usage::new(format!("`{name}` has no tokenizer.json, so it cannot be served"))
    })?;
    if text.template().is_none() {
        warn(&format!("`{name}` has no chat template: /v1/completions works, chats do not"));
    }
    for warning in text.warnings() {
        warn(&format!("`{name}`: {warning}"));
    }
    let slots = match arguments.slots {
        Some(slots) => checked_slots(slots, &engine)?,
        None => default_slots(&engine),
    };
    let prompt_cache = arguments.cache_dir.as_ref().map(|folder| {
        let weights = fingerprint(&checkpoint)?;
        let limit = arguments.cache_limit.saturating_mul(1 << 20);
        Ok::<_, RuntimeError>(PromptCache { folder: folder.clone(), limit, weights })
    });
    let scheduling = SchedulerOptions {
        slots,
        queue: arguments.queue,
        turn_ends: text.turn_ends(),
        reuse_answers: arguments.reuse_answers,
        prompt_cache: prompt_cache.transpose()?,
        ..SchedulerOptions::default()
    };
    if !quiet {
        plan(&engine, slots);
    }
    Ok(Service::new(Scheduler::start(engine, scheduling)?, text, defaults.sampling))
}

/// On a card memory was planned for one. On the CPU: four, but no more than half of the memory that
/// is free holds when every slot is full.
fn default_slots(engine: &Engine) -> usize {
    if engine.card().is_some() {
        return 1;
    }
    let slot = slot_bytes(engine).max(1);
    available_bytes().map_or(1, |bytes| (bytes / 2 / slot).clamp(1, MOST_DEFAULT_SLOTS))
}

/// Refuses more slots than memory could ever hold. A card's are refused by its own plan.
fn checked_slots(slots: usize, engine: &Engine) -> Result<usize> {
    let (slot, Some(available)) = (slot_bytes(engine).max(1), available_bytes()) else {
        return Ok(slots);
    };
    let fitting = (available / slot).max(1);
    if engine.card().is_some() || slots <= fitting {
        return Ok(slots);
    }
    let message = format!(
        "--slots {slots}: a slot of {} positions takes {} MiB when full, and {} MiB are free",
        engine.context(),
        slot.div_ceil(1 << 20),
        available >> 20,
    );
    let hint = format!("at most --slots {fitting}, or a shorter --context");
    Err(Usage::new(message).hint(hint).into())
}

/// Bytes of one slot that is full.
fn slot_bytes(engine: &Engine) -> usize {
    let plan = engine.memory_plan();
    plan.total(engine.context()) - plan.total(0)
}

/// Memory that programs can still have; `None` where the system does not say.
fn available_bytes() -> Option<usize> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: usize = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes << 10)
}

/// Says what memory it takes.
fn plan(engine: &Engine, slots: usize) {
    if let Some(card) = engine.card() {
        eprintln!("{}\n{}", engine.device(), card.memory_table);
        return;
    }
    let slot = slot_bytes(engine);
    let total = engine.memory_plan().total(0) + slots * slot;
    let mib = |bytes: usize| bytes.div_ceil(1 << 20);
    eprintln!(
        "{}: {} MiB of memory, {} of them for {slots} {} of {} positions when full",
        engine.device(),
        mib(total),
        mib(slots * slot),
        if slots == 1 { "slot" } else { "slots" },
        engine.context(),
    );
}
