//! How loaders hold entries of `targets` and `ignore` against modules.

use regex::Regex;

use super::scene::{Module, ModuleKind, Scene};
use super::scheme::Scheme;

/// A loader's way of matching.
pub(super) trait Matching {
    /// The module's name in the loader.
    fn name(&self, module: &Module) -> String;

    /// Whether an entry that is no pattern names the module, or its class.
    fn names(&self, entry: &str, module: &Module) -> bool;

    /// Whether an entry matches.
    fn hits(&self, entry: &str, module: &Module) -> bool {
        match entry.strip_prefix("re:") {
            // Both use Python's `re.match`: anchored in front, not behind.
            Some(pattern) => Regex::new(&format!("^(?:{pattern})"))
                .is_ok_and(|pattern| pattern.is_match(&self.name(module))),
            None => self.names(entry, module),
        }
    }

    /// Whether the loader builds a packed module: a target matches and nothing ignores it.
    fn covers(&self, scheme: &Scheme, module: &Module) -> bool {
        let any = |entries: &[String]| entries.iter().any(|entry| self.hits(entry, module));
        any(&scheme.targets) && !any(&scheme.ignore)
    }
}

/// transformers and compressed-tensors: exact names, and the exact names of a module's classes.
pub(super) struct Official;

impl Matching for Official {
    fn name(&self, module: &Module) -> String {
        module.name.clone()
    }

    fn names(&self, entry: &str, module: &Module) -> bool {
        let classes: &[&str] = match module.kind {
            ModuleKind::Linear | ModuleKind::Head | ModuleKind::Tower => &["Linear", "Module"],
            ModuleKind::Embedding(_) => &["Gemma4TextScaledWordEmbedding", "Embedding", "Module"],
        };
        entry == module.name || classes.contains(&entry)
    }
}

/// vLLM: its own module names, and parts of its own class names whatever their case.
pub(super) struct Vllm<'a>(pub &'a Scene);

impl Vllm<'_> {
    /// `model.language_model.layers…` becomes `language_model.model.layers…` in the multimodal
    /// class; text-only names stay.
    fn renamed(&self, name: &str) -> String {
        if !self.0.is_multimodal() {
            return name.into();
        }
        if name == "lm_head" {
            return "language_model.lm_head".into();
        }
        match name.strip_prefix("model.language_model.") {
            Some(rest) => format!("language_model.model.{rest}"),
            None => name.strip_prefix("model.").unwrap_or(name).into(),
        }
    }
}

impl Matching for Vllm<'_> {
    fn name(&self, module: &Module) -> String {
        self.renamed(&module.name)
    }

    fn names(&self, entry: &str, module: &Module) -> bool {
        let class = match module.kind {
            // Every linear class of vLLM has the word in its name; the head's has not.
            ModuleKind::Linear | ModuleKind::Tower => "ColumnParallelLinear",
            ModuleKind::Embedding(_) => "VocabParallelEmbedding",
            ModuleKind::Head => "ParallelLMHead",
        };
        // Entries with a dot are renamed like tensors; a bare `lm_head` is not.
        let entry_name = if entry.contains('.') { self.renamed(entry) } else { entry.into() };
        entry_name == self.name(module) || class.to_lowercase().contains(&entry.to_lowercase())
    }
}
