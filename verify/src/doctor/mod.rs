//! What other loaders would make of a checkpoint, told before they are tried.
//!
//! A rule is something that one loader does with some checkpoint: refuse it, read it wrongly, or
//! leave a weight uninitialised. Each rule looks at a [`scene`] (which tensors there are, what
//! config.json says of them) with the loader's own way of [`matching`] names, and says what it found.
//!
//! Source: the loaders' code and runs of it; transformers 5.24 with compressed-tensors 0.20, vLLM
//! 0.33 and llama.cpp of November 2026.

mod advice;
mod display;
mod llama_cpp;
mod matching;
mod scales;
mod scene;
mod scheme;
mod transformers;
mod vllm;

use std::sync::Arc;

use serde::Serialize;
use w4pack_format::Result;
use w4pack_format::source::Source;

use advice::Advice;
use scene::Scene;

/// A loader.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub enum Loader {
    /// transformers with compressed-tensors.
    #[serde(rename = "transformers")]
    Transformers,
    /// vLLM.
    #[serde(rename = "vllm")]
    Vllm,
    /// llama.cpp, and what is built on it: Ollama, LM Studio.
    #[serde(rename = "llama.cpp")]
    LlamaCpp,
}

impl Loader {
    /// All of them.
    pub const ALL: [Loader; 3] = [Loader::Transformers, Loader::Vllm, Loader::LlamaCpp];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Loader::Transformers => "transformers",
            Loader::Vllm => "vllm",
            Loader::LlamaCpp => "llama.cpp",
        }
    }

    /// The versions whose behaviour the rules describe.
    pub fn versions(self) -> &'static str {
        match self {
            Loader::Transformers => "transformers 5.24.0 with compressed-tensors 0.20.1",
            Loader::Vllm => "vLLM 0.33.0",
            Loader::LlamaCpp => "llama.cpp of November 2026",
        }
    }

    /// The names of the loader's rules.
    pub fn rules(self) -> &'static [&'static str] {
        match self {
            Loader::Transformers => transformers::RULES,
            Loader::Vllm => vllm::RULES,
            Loader::LlamaCpp => llama_cpp::RULES,
        }
    }
}

/// What the loader does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Effect {
    /// It stops with an error.
    Refuses,
    /// It loads, and some weight holds what was in memory, or random numbers.
    Uninitialised,
    /// It loads, and computes with other numbers or other text than the checkpoint means.
    Misreads,
    /// It loads; worth knowing all the same.
    Note,
}

/// One rule that the checkpoint breaks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The rule's name.
    pub rule: &'static str,
    /// What the loader does.
    pub effect: Effect,
    /// The tensors or fields concerned: the first few, and how many more there are.
    pub concerns: Vec<String>,
    /// What happens, in words.
    pub detail: String,
}

/// What a loader would make of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Diagnosis {
    /// The checkpoint, as the user named it.
    pub checkpoint: String,
    /// The loader.
    pub loader: Loader,
    /// The versions whose behaviour was asked for.
    pub versions: &'static str,
    /// Whether it loads and reads every weight as it is meant.
    pub loads: bool,
    /// Broken rules, the worst first.
    pub findings: Vec<Finding>,
    /// What to do instead.
    pub advice: Option<Advice>,
}

impl Diagnosis {
    /// 0 if the loader takes the checkpoint as it is meant, else 1.
    pub fn exit_code(&self) -> u8 {
        u8::from(!self.loads)
    }
}

/// Says what a loader would make of a checkpoint. Reads headers, config.json and every scale.
///
/// Errors: files that no loader could read: hostile headers, a config.json that is not JSON or
/// describes no Gemma 4.
pub fn diagnose(checkpoint: Arc<dyn Source>, loader: Loader) -> Result<Diagnosis> {
    let label = checkpoint.label().to_string();
    let (mut findings, advice) = match loader {
        Loader::LlamaCpp => {
            let findings = llama_cpp::findings(&*checkpoint)?;
            let advice = advice::for_llama_cpp(&label, &findings);
            (findings, advice)
        }
        Loader::Transformers | Loader::Vllm if is_gguf(&*checkpoint) => {
            let detail = "it reads the safetensors of a checkpoint, and would at best unpack a GGUF \
                          file to dense weights";
            let finding = about(GGUF_FILE, Effect::Refuses, vec![label.clone()], detail);
            (Vec::from_iter(finding), Some(advice::for_gguf_file(&label, loader)))
        }
        Loader::Transformers | Loader::Vllm => {
            let scene = Scene::open(checkpoint)?;
            let findings = match loader {
                Loader::Vllm => vllm::findings(&scene),
                _ => transformers::findings(&scene),
            };
            let advice = advice::for_safetensors(&label, loader, &scene, &findings);
            (findings, advice)
        }
    };
    findings.sort_by_key(|finding| finding.effect);
    let loads = findings.iter().all(|finding| finding.effect == Effect::Note);
    let versions = loader.versions();
    Ok(Diagnosis { checkpoint: label, loader, versions, loads, findings, advice })
}

/// The rule of loaders that read safetensors, broken by a GGUF file.
const GGUF_FILE: &str = "gguf-file";

/// Whether a source has GGUF files and no safetensors.
fn is_gguf(source: &dyn Source) -> bool {
    let has = |ending: &str| {
        source.files().iter().any(|file| file.path.ends_with(ending) && !file.path.contains('/'))
    };
    has(".gguf") && !has(".safetensors")
}

/// Names that a finding lists; a broken checkpoint can break a rule in hundreds of tensors.
const LISTED: usize = 5;

/// A finding about some tensors or fields; `None` if there are none.
fn about(
    rule: &'static str,
    effect: Effect,
    concerned: Vec<String>,
    detail: impl Into<String>,
) -> Option<Finding> {
    if concerned.is_empty() {
        return None;
    }
    let more = concerned.len().saturating_sub(LISTED);
    let mut concerns: Vec<String> = concerned.into_iter().take(LISTED).collect();
    if more > 0 {
        concerns.push(format!("and {more} more"));
    }
    Some(Finding { rule, effect, concerns, detail: detail.into() })
}
