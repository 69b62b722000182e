//! `w4pack/exact.safetensors`: what 16-bit steps cannot say about Google's bytes.
//!
//! With it every bf16 value of the source comes back bit for bit. The file is always written; a
//! tensor is present only when it has entries. `M` is a packed module's name in the output, e.g.
//! `model.layers.0.mlp.up_proj`; groups are numbered row-major over `[rows, cols / 32]`.
//!
//! | tensor | dtype, shape | says |
//! |---|---|---|
//! | `M\|step.gaps` | U8 | gap list: groups whose stored step lies outside the exact step interval |
//! | `M\|step.values` | F32 `[n]` | a step inside the interval for each: the canonical f32 one |
//! | `M\|verbatim.gaps` | U8 | gap list: groups that neither the stored step nor any f32 one gives back |
//! | `M\|verbatim.values` | BF16 `[n, 32]` | their values as they are |
//! | `M\|zero.rule` | U8 `[1]` | signs of code 0: absent or 0: all +0.0; 1: the sign of the stored step; 2: by bits |
//! | `M\|zero.gaps` | U8 | rules 0 and 1, gap list: groups with exceptions |
//! | `M\|zero.masks` | U32 `[n]` | bit i set: element i of that group has the other sign |
//! | `M\|zero.bits` | U8 | rule 2: a bit for each code-0 element in order, lowest first; set: -0.0 |
//!
//! A **gap list** holds ascending group numbers g0 < g1 < … as the differences g0, g1 - g0 - 1, …;
//! of a difference's bytes 255 means "add 255 and go on", a smaller one ends it. Elements of
//! verbatim groups take no part in the zero tensors. The writer takes the zero rule that needs the
//! fewest bytes, the lowest number on a tie.

/// Path of the file below a checkpoint.
pub const EXACT_FILE: &str = "w4pack/exact.safetensors";

/// The parts a module can have, in the order in which they are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)] // The table above says what they are.
pub enum Part {
    StepGaps,
    StepValues,
    VerbatimGaps,
    VerbatimValues,
    ZeroRule,
    ZeroGaps,
    ZeroMasks,
    ZeroBits,
}

impl Part {
    /// All parts.
    pub const ALL: [Part; 8] = [
        Part::StepGaps,
        Part::StepValues,
        Part::VerbatimGaps,
        Part::VerbatimValues,
        Part::ZeroRule,
        Part::ZeroGaps,
        Part::ZeroMasks,
        Part::ZeroBits,
    ];

    fn suffix(self) -> &'static str {
        match self {
            Part::StepGaps => "|step.gaps",
            Part::StepValues => "|step.values",
            Part::VerbatimGaps => "|verbatim.gaps",
            Part::VerbatimValues => "|verbatim.values",
            Part::ZeroRule => "|zero.rule",
            Part::ZeroGaps => "|zero.gaps",
            Part::ZeroMasks => "|zero.masks",
            Part::ZeroBits => "|zero.bits",
        }
    }

    /// The tensor's name for a module.
    pub fn tensor_name(self, module: &str) -> String {
        format!("{module}{}", self.suffix())
    }

    /// Module and part of a tensor's name; `None` for a name that is none of ours.
    pub fn of_tensor(name: &str) -> Option<(&str, Part)> {
        Part::ALL.into_iter().find_map(|part| Some((name.strip_suffix(part.suffix())?, part)))
    }
}

/// How the signs of a module's code-0 elements are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ZeroRule {
    /// All +0.0, but for the exceptions.
    Positive = 0,
    /// The sign of the stored step, but for the exceptions.
    SignOfStep = 1,
    /// One bit each.
    Bits = 2,
}
