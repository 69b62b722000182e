//! Which models of the Gemma line a `config.json` can describe.

use crate::names::NameLayout;

/// A line of models with one text architecture.
///
/// Source: transformers 5.24 `models/auto` and the `configuration_*.py` of `gemma3`, `gemma4` and
/// `gemma4_unified`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Family {
    /// Gemma 4 E2B, E4B, 26B-A4B and 31B: vision and audio towers beside the text model.
    Gemma4,
    /// Gemma 4 12B: the same layers without per-layer inputs and experts, an embedder for images
    /// in place of the towers.
    Gemma4Unified,
    /// Gemma 3. Its norms multiply by 1 + w and its attention is scaled: converted and verified,
    /// never run.
    Gemma3,
}

impl Family {
    const ALL: [Family; 3] = [Family::Gemma4, Family::Gemma4Unified, Family::Gemma3];

    /// Family and name layout of a top-level `model_type`.
    pub fn of(model_type: &str) -> Option<(Family, NameLayout)> {
        Self::ALL.into_iter().find_map(|family| match model_type {
            text if text == family.text_type() => Some((family, NameLayout::TextOnly)),
            whole if whole == family.multimodal_type() => Some((family, NameLayout::Multimodal)),
            _ => None,
        })
    }

    /// Every `model_type` that [`Family::of`] knows, quoted, for messages.
    pub(super) fn known_types() -> String {
        let types =
            Self::ALL.iter().flat_map(|family| [family.multimodal_type(), family.text_type()]);
        types.map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ")
    }

    /// What people call it.
    pub fn name(self) -> &'static str {
        match self {
            Family::Gemma4 | Family::Gemma4Unified => "Gemma 4",
            Family::Gemma3 => "Gemma 3",
        }
    }

    /// `model_type` of a checkpoint with everything in it.
    pub fn multimodal_type(self) -> &'static str {
        match self {
            Family::Gemma4 => "gemma4",
            Family::Gemma4Unified => "gemma4_unified",
            Family::Gemma3 => "gemma3",
        }
    }

    /// `model_type` of the text model, alone or under `text_config`.
    pub fn text_type(self) -> &'static str {
        match self {
            Family::Gemma4 => "gemma4_text",
            Family::Gemma4Unified => "gemma4_unified_text",
            Family::Gemma3 => "gemma3_text",
        }
    }

    /// transformers' class for the text model alone, as `architectures` names it.
    pub fn causal_class(self) -> &'static str {
        match self {
            Family::Gemma4 => "Gemma4ForCausalLM",
            Family::Gemma4Unified => "Gemma4UnifiedForCausalLM",
            Family::Gemma3 => "Gemma3ForCausalLM",
        }
    }

    /// What the configuration class fills in for keys that are not there.
    pub(super) fn defaults(self) -> Defaults {
        match self {
            Family::Gemma4 => Defaults {
                vocab_size: 262_144,
                num_hidden_layers: 30,
                sliding_window: 512,
                max_position_embeddings: 131_072,
            },
            Family::Gemma4Unified => Defaults {
                vocab_size: 262_144,
                num_hidden_layers: 30,
                sliding_window: 1024,
                max_position_embeddings: 262_144,
            },
            Family::Gemma3 => Defaults {
                vocab_size: 262_208,
                num_hidden_layers: 26,
                sliding_window: 4096,
                max_position_embeddings: 131_072,
            },
        }
    }
}

/// Defaults in which the families differ, under the names of their keys.
pub(super) struct Defaults {
    pub vocab_size: usize,
    pub num_hidden_layers: usize,
    pub sliding_window: usize,
    pub max_position_embeddings: usize,
}
