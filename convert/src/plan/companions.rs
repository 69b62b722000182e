//! The files beside the weights: tokenizer, template, settings.

use w4pack_format::checkpoint::Checkpoint;
use w4pack_format::config::CONFIG_FILE;
use w4pack_format::json;

use crate::{ConvertError, Layout};

/// A source file that holds no planned tensors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Companion {
    /// Path below the source.
    pub path: String,
    /// Its size.
    pub bytes: u64,
    /// What becomes of it.
    pub fate: CompanionFate,
}

/// What becomes of a file that holds no planned tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompanionFate {
    /// Copied byte for byte.
    Copied,
    /// Rewritten for the packed checkpoint: config.json.
    Rewritten,
    /// Not in the output; the reason in words.
    NotCopied(&'static str),
}

const TEMPLATE: &str = "chat_template.jinja";
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";

/// Endings of what tokenizers, templates and settings are made of. A file of a name that is not known
/// may be one of them: leaving it out could change answers, copying it cannot.
const COPIED_ENDINGS: [&str; 3] = [".json", ".jinja", ".model"];

/// A tokenizer's table in a form of its own.
const MERGES: &str = "merges.txt";

/// Terms that travel with the weights, with any ending.
const COPIED_STEMS: [&str; 4] = ["LICENSE", "LICENCE", "NOTICE", "USE_POLICY"];

/// The fate of every file that is not a shard, and warnings about what is missing among them.
pub(super) fn choose(
    checkpoint: &Checkpoint,
    layout: Layout,
) -> Result<(Vec<Companion>, Vec<String>), ConvertError> {
    let source = checkpoint.source();
    let mut companions = Vec::new();
    for file in source.files() {
        if checkpoint.shards().iter().all(|shard| shard.path != file.path) {
            let fate = match fate_of(checkpoint, &file.path) {
                CompanionFate::Copied if layout == Layout::Gguf && !is_of_terms(&file.path) => {
                    CompanionFate::NotCopied(IN_GGUF)
                }
                CompanionFate::Rewritten if layout == Layout::Gguf => {
                    CompanionFate::NotCopied(IN_GGUF)
                }
                fate => fate,
            };
            companions.push(Companion { path: file.path.clone(), bytes: file.bytes, fate });
        }
    }
    let mut warnings: Vec<String> = checkpoint
        .strays()
        .iter()
        .map(|path| format!("`{path}` belongs to no index and is not converted"))
        .collect();
    let place = source.label();
    let has = |path: &str| source.size(path).is_some();
    if !has("tokenizer.json") {
        warnings
            .push(format!("`{place}` has no tokenizer.json: the output runs on token ids only"));
    }
    if !has(TEMPLATE) && !has("chat_template.json") && !template_in_tokenizer_config(checkpoint)? {
        warnings.push(format!(
            "`{place}` has no chat template ({TEMPLATE}, or a chat_template in {TOKENIZER_CONFIG})"
        ));
    }
    Ok((companions, warnings))
}

const IN_GGUF: &str = "the GGUF file holds what llama.cpp needs of it";

fn is_of_terms(path: &str) -> bool {
    COPIED_STEMS.contains(&path.split('.').next().unwrap_or(path))
}

fn fate_of(checkpoint: &Checkpoint, path: &str) -> CompanionFate {
    if path == CONFIG_FILE {
        CompanionFate::Rewritten
    } else if Some(path) == checkpoint.index_path() || path.ends_with(".index.json") {
        CompanionFate::NotCopied("the output has one file and no index")
    } else if path == "README.md" {
        CompanionFate::NotCopied("the source's card describes the source")
    } else if path.contains('/') {
        CompanionFate::NotCopied("it lies in a subfolder")
    } else if path == MERGES
        || COPIED_ENDINGS.iter().any(|ending| path.ends_with(ending))
        || is_of_terms(path)
    {
        CompanionFate::Copied
    } else if checkpoint.strays().iter().any(|stray| stray == path) {
        CompanionFate::NotCopied("weights that belong to no index")
    } else {
        CompanionFate::NotCopied("w4pack does not know what it is for")
    }
}

fn template_in_tokenizer_config(checkpoint: &Checkpoint) -> Result<bool, ConvertError> {
    let source = checkpoint.source();
    if source.size(TOKENIZER_CONFIG).is_none() {
        return Ok(false);
    }
    let config = json::parse(TOKENIZER_CONFIG, &source.read_file(TOKENIZER_CONFIG)?)?;
    Ok(config.get("chat_template").is_some_and(|template| !template.is_null()))
}
