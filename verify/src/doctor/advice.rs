//! What to do about what was found.

use serde::Serialize;

use super::scene::Scene;
use super::{Effect, Finding, Loader};

/// The next step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Advice {
    /// The layout that this loader reads.
    pub layout: &'static str,
    /// In words, with the command.
    pub text: String,
}

/// Rules that no other layout mends: the checkpoint itself is damaged or incomplete.
const BEYOND_LAYOUTS: [&str; 6] =
    ["missing-weight", "missing-part", "weight-shape", "columns", "faulty-scales", "other-weights"];

fn is_broken(findings: &[Finding]) -> bool {
    findings.iter().any(|finding| finding.effect != Effect::Note)
}

/// For loaders that read safetensors.
pub(super) fn for_safetensors(
    label: &str,
    loader: Loader,
    scene: &Scene,
    findings: &[Finding],
) -> Option<Advice> {
    if !is_broken(findings) {
        return None;
    }
    let packs_tables = scene.packed().any(|module| module.name.contains("embed_tokens"));
    let layout = match (loader, packs_tables) {
        // The only one with every table in 4 bits that vLLM loads.
        (Loader::Vllm, true) => "emb4-untied",
        (_, true) => "emb4",
        (_, false) => "linear",
    };
    let broken = |finding: &&Finding| BEYOND_LAYOUTS.contains(&finding.rule);
    let text = match findings.iter().find(broken) {
        Some(finding) => format!(
            "`{}` is a fault of the checkpoint, not of its layout: convert its bf16 source with \
             `w4pack convert SOURCE --layout {layout}`",
            finding.rule
        ),
        None => {
            format!("`w4pack convert {label} --layout {layout}` lays the same codes out for it")
        }
    };
    Some(Advice { layout, text })
}

/// For llama.cpp.
pub(super) fn for_llama_cpp(label: &str, findings: &[Finding]) -> Option<Advice> {
    if !is_broken(findings) {
        return None;
    }
    let text = match findings.iter().any(|finding| finding.rule == "no-gguf") {
        true => format!("`w4pack convert {label} --layout gguf` writes the same codes as Q4_0"),
        false => "convert the bf16 source with `w4pack convert SOURCE --layout gguf`".into(),
    };
    Some(Advice { layout: "gguf", text })
}

/// For loaders of safetensors that are given a GGUF file.
pub(super) fn for_gguf_file(label: &str, loader: Loader) -> Advice {
    let layout = if loader == Loader::Vllm { "emb4-untied" } else { "emb4" };
    let text = format!("`w4pack convert {label} --layout {layout}` lays the same codes out for it");
    Advice { layout, text }
}
