//! A checkpoint made ready to answer: its files checked, its weights on the device, its tokenizer and
//! template beside them.

use super::engine;
use crate::args::engine::EngineArguments;
use crate::message::warn;
use crate::{heap, home, locate};
use anyhow::Result;
use std::sync::Arc;
use w4pack_format::checkpoint::Checkpoint;
use w4pack_format::config::Config;
use w4pack_format::source::Source;
use w4pack_runtime::chat::ChatText;
use w4pack_runtime::{Engine, GenerationDefaults};

/// A model that can be asked.
pub struct Opened {
    pub checkpoint: Arc<Checkpoint>,
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

/// The files of a checkpoint: found, and sound as far as that can be seen without reading weights.
pub struct Files {
    name: String,
    source: Arc<dyn Source>,
    checkpoint: Arc<Checkpoint>,
    config: Config,
    defaults: GenerationDefaults,
}

impl Files {
    /// Finds them.
    pub fn find(name: &str) -> Result<Files> {
        let source = locate::model(name, None)?;
        let checkpoint = Arc::new(Checkpoint::open(source.clone())?);
        let config = Config::load(&*source)?;
        let defaults = GenerationDefaults::load(&*source, &config)?;
        Ok(Files { name: name.to_owned(), source, checkpoint, config, defaults })
    }

    /// The model's configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Loads the model for so many sequences at once, and says what the files hold that has no effect.
    pub fn open(self, arguments: &EngineArguments, slots: usize, quiet: bool) -> Result<Opened> {
        let Files { name, source, checkpoint, config, defaults } = self;
        for key in config.unknown.iter().chain(&defaults.unknown) {
            warn(&format!("`{name}`: the key `{key}` is not known and has no effect"));
        }
        for stray in checkpoint.strays() {
            warn(&format!("`{name}`: `{stray}` is not part of the checkpoint and is not read"));
        }
        // The tokenizer takes a second of its own: read it beside the weights.
        let (engine, text) = std::thread::scope(|scope| {
            let text = scope.spawn(|| ChatText::load(&*source, &config));
            let engine = engine::open(&checkpoint, arguments, slots, quiet);
            let text = text.join().map_err(|_| anyhow::anyhow!("the tokenizer's thread panicked"));
            engine.and_then(|engine| Ok((engine, text??)))
        })?;
        heap::give_back();
        for note in engine.notes() {
            warn(&format!("`{name}`: {note}"));
        }
        Ok(Opened { checkpoint, engine, text, config, defaults })
    }
}
