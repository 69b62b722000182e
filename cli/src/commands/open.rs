//! A checkpoint made ready to answer: its files checked, its weights on the device, its tokenizer and
//! template beside them.

use super::engine;
use crate::args::engine::EngineArguments;
use crate::message::warn;
use crate::{home, locate};
use anyhow::Result;
use std::sync::Arc;
use w4pack_format::checkpoint::Checkpoint;
use w4pack_format::config::Config;
use w4pack_runtime::chat::ChatText;
use w4pack_runtime::{Engine, GenerationDefaults};

/// A model that can be asked.
pub struct Opened {
    pub engine: Engine,
    /// `None` for a checkpoint without a tokenizer.
    pub text: Option<ChatText>,
    pub config: Config,
    pub defaults: GenerationDefaults,
}

/// The model's name: the one given, or the newest conversion, named on stderr.
pub fn name(given: Option<&str>) -> Result<String> {
    match given {
        Some(name) => Ok(name.to_owned()),
        None => {
            let newest = home::newest_conversion()?.display().to_string();
            eprintln!("model: {newest} (the newest conversion)");
            Ok(newest)
        }
    }
}

/// Opens a model and says what it holds that has no effect.
pub fn open(name: &str, arguments: &EngineArguments, quiet: bool) -> Result<Opened> {
    let source = locate::model(name, None)?;
    let checkpoint = Arc::new(Checkpoint::open(source.clone())?);
    let config = Config::load(&*source)?;
    let defaults = GenerationDefaults::load(&*source, &config)?;
    for key in config.unknown.iter().chain(&defaults.unknown) {
        warn(&format!("`{name}`: the key `{key}` is not known and has no effect"));
    }
    for stray in checkpoint.strays() {
        warn(&format!("`{name}`: `{stray}` is not part of the checkpoint and is not read"));
    }
    // The tokenizer takes a second of its own: read it beside the weights.
    let (engine, text) = std::thread::scope(|scope| {
        let text = scope.spawn(|| ChatText::load(&*source, &config));
        let engine = engine::open(&checkpoint, arguments, quiet);
        let text = text.join().map_err(|_| anyhow::anyhow!("the tokenizer's thread panicked"));
        engine.and_then(|engine| Ok((engine, text??)))
    })?;
    for note in engine.notes() {
        warn(&format!("`{name}`: {note}"));
    }
    Ok(Opened { engine, text, config, defaults })
}
