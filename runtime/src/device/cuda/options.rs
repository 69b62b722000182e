//! What can be chosen about a model on a card.

use super::plan::{KvType, TablePlace};
use super::ways::Products;
use crate::speculation::Speculation;

/// How a model is put on a card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CudaOptions {
    /// CUDA's number of the card.
    pub ordinal: usize,
    /// Bytes that may be allocated; `None`: what is free, but for a little.
    pub memory: Option<usize>,
    /// Positions of a sequence; `None`: as many as fit.
    pub context: Option<usize>,
    /// Sequences at once.
    pub slots: usize,
    /// Prompt tokens in one pass; `None`: as many as are of use and take little of the memory.
    pub chunk: Option<usize>,
    /// Where the per-layer table goes; `None`: on the card if there is room.
    pub table: Option<TablePlace>,
    /// How keys and values are stored.
    pub kv: KvType,
    /// How prompts are multiplied; `None`: the faster way, timed.
    pub products: Option<Products>,
    /// Whether there is to be room for tokens that are tried; [`Speculation::Auto`]: if it takes little.
    pub speculation: Speculation,
    /// Let a kernel start while the one before it ends, where the card can; off to measure that.
    pub overlap: bool,
    /// Let blocks of one launch take steps that depend on each other, in clusters or in chains, where the card
    /// can; the result is the same.
    pub clusters: bool,
    /// Whether the card begins with an answer's next token before the host asks for it, where there are few slots;
    /// the result is the same.
    pub ahead: When,
    /// Whether answers of several slots go through the layers together on ordinary cores; the result is the same.
    pub together: When,
    /// Kernels by name, see [`w4pack_kernels::cuda::images`]; `None`: the card's.
    pub kernels: Option<String>,
}

impl Default for CudaOptions {
    fn default() -> Self {
        Self {
            ordinal: 0,
            memory: None,
            context: None,
            slots: 1,
            chunk: None,
            table: None,
            kv: KvType::F16,
            products: None,
            speculation: Speculation::Off,
            overlap: true,
            clusters: true,
            ahead: When::default(),
            together: When::default(),
            kernels: std::env::var("W4PACK_KERNELS").ok().filter(|value| !value.is_empty()),
        }
    }
}

/// When something is done that only changes how long an answer takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum When {
    /// Never, to measure that.
    Never,
    /// Where it takes less time: steps run ahead once an answer's have followed each other for a while; what
    /// goes together was timed.
    #[default]
    WhenItPays,
    /// Wherever it can be, to test that.
    Always,
}

/// Left to the driver when no limit is given: the graph, and what else runs on the card.
pub const RESERVE: usize = 256 << 20;
