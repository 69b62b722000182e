//! What a conversion is asked to do.

use std::fmt;
use std::str::FromStr;

use w4pack_format::names::Role;
use w4pack_format::scale::ScaleDtype;

/// How a checkpoint is laid out in the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Layout {
    /// Every linear and both tables in 4 bits, one table shared by input and head, tied.
    Emb4,
    /// The same, and the table once more as `lm_head`, not tied.
    Emb4Untied,
    /// Every linear in 4 bits, both tables in bf16, tied.
    Linear,
    /// Every linear and the per-layer table in 4 bits, `embed_tokens` in bf16, tied.
    LinearPle4,
    /// One GGUF file: every linear and both tables as Q4_0 blocks, for llama.cpp.
    Gguf,
}

impl Layout {
    /// All of them.
    pub const ALL: [Layout; 5] =
        [Layout::Emb4, Layout::Emb4Untied, Layout::Linear, Layout::LinearPle4, Layout::Gguf];

    /// The name on the command line and in the manifest.
    pub fn name(self) -> &'static str {
        match self {
            Layout::Emb4 => "emb4",
            Layout::Emb4Untied => "emb4-untied",
            Layout::Linear => "linear",
            Layout::LinearPle4 => "linear-ple4",
            Layout::Gguf => "gguf",
        }
    }

    /// Whether tensors of this role become packed words.
    pub fn packs(self, role: Role) -> bool {
        match role {
            Role::Linear => true,
            Role::EmbedTokens => {
                matches!(self, Layout::Emb4 | Layout::Emb4Untied | Layout::Gguf)
            }
            Role::EmbedTokensPerLayer => self != Layout::Linear,
            Role::Router | Role::Vector => false,
        }
    }

    /// Whether the packed `embed_tokens` is stored once more, as the head.
    pub fn has_own_head(self) -> bool {
        self == Layout::Emb4Untied
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl FromStr for Layout {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Layout::ALL.into_iter().find(|layout| layout.name() == text);
        found.ok_or_else(|| {
            let names = Layout::ALL.map(Layout::name).join(", ");
            format!("`{text}` is not a layout ({names})")
        })
    }
}

/// What becomes of the vision and audio side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Towers {
    /// Left out: the output has text-only names and a text-only configuration.
    Drop,
    /// Copied byte for byte: the output has Google's multimodal names and configuration.
    Keep,
}

impl Towers {
    /// The name on the command line and in the manifest.
    pub fn name(self) -> &'static str {
        match self {
            Towers::Drop => "drop",
            Towers::Keep => "keep",
        }
    }
}

/// The settings of a conversion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// What is packed, and under which names.
    pub layout: Layout,
    /// What becomes of the vision and audio side.
    pub towers: Towers,
    /// The dtype of the stored steps. A tensor whose steps leave its range gets f32.
    pub scale_dtype: ScaleDtype,
    /// Keep a tensor with a group off the grid in bf16 instead of refusing it.
    pub allow_off_grid: bool,
    /// Threads that recover and hash; 0: as many as the machine has.
    pub threads: usize,
}

impl Default for Options {
    /// Layout `emb4` without the towers, f16 steps, nothing off the grid, all cores.
    fn default() -> Self {
        Options {
            layout: Layout::Emb4,
            towers: Towers::Drop,
            scale_dtype: ScaleDtype::F16,
            allow_off_grid: false,
            threads: 0,
        }
    }
}

impl Options {
    /// The options as the manifest records them. Threads are not among them: they change no byte.
    pub fn recorded(&self) -> w4pack_format::manifest::Options {
        w4pack_format::manifest::Options {
            layout: self.layout.name().into(),
            scale_dtype: self.scale_dtype.name().into(),
            towers: self.towers.name().into(),
            allow_off_grid: self.allow_off_grid,
        }
    }
}
