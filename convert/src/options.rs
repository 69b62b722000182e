//! What a conversion is asked to do.

use std::fmt;
use std::str::FromStr;

use w4pack_format::scale::ScaleDtype;

/// How a checkpoint is laid out in the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Layout {
    /// Every linear and both tables in 4 bits, one table shared by input and head, tied.
    Emb4,
}

impl Layout {
    /// The name on the command line and in the manifest.
    pub fn name(self) -> &'static str {
        match self {
            Layout::Emb4 => "emb4",
        }
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
        match text {
            "emb4" => Ok(Layout::Emb4),
            other => Err(format!("`{other}` is not a layout (emb4)")),
        }
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
