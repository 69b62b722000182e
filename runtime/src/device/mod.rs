//! The border between the engine and what computes.
//!
//! A device is made from a loaded [`Model`](crate::Model). From then on it makes cache slots and
//! takes batches of (slot, tokens); how a step is computed, in which order, in how many kernels,
//! stays behind this border. The CPU is `cpu.rs`, a card `cuda/`; what slots hold can be taken out
//! and put back, `snapshot.rs`.

mod cpu;
pub mod cuda;
pub mod snapshot;

pub use cpu::{Cpu, CpuDevice, Pool, physical_cores};
pub use snapshot::{Contents, Rings, SlotMemory, reaches};

use crate::engine::setting;
use crate::error::{Result, RuntimeError};
use crate::model::MemoryPlan;
use crate::sampling::greedy;
use crate::traffic::Traffic;

/// A cache of one sequence on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Slot(pub(crate) usize);

impl Slot {
    /// The slot of this number, for devices elsewhere; a device knows those that it has made.
    pub fn numbered(number: usize) -> Self {
        Self(number)
    }
}

/// Which logits a piece of work asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// None: the tokens only fill the cache.
    Nothing,
    /// Those of the last token.
    Last,
    /// Those of every token.
    All,
}

/// The next tokens of one sequence.
#[derive(Debug, Clone, Copy)]
pub struct Work<'a> {
    /// The sequence.
    pub slot: Slot,
    /// Its next tokens; at least one.
    pub tokens: &'a [u32],
    /// What to return for them.
    pub logits: Wanted,
}

/// The token that an answer has just got, to be run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecodeStep {
    /// The sequence.
    pub slot: Slot,
    /// Its token.
    pub token: u32,
    /// Whether the next one's logits are wanted, or the likeliest id only.
    pub logits: bool,
}

/// What comes of it.
#[derive(Debug, Clone, PartialEq)]
pub enum Decoded {
    /// The next token's logits, `[vocabulary]`.
    Logits(Vec<f32>),
    /// The lowest id of the largest one.
    Likeliest(u32),
}

/// Tokens of one sequence that go through the layers together at most: one that is certain, and seven that
/// are tried behind it. Rings on a card have as many rows more than their windows.
pub const MOST_TRIED: usize = 8;

/// A pass over a token of an answer and others that may follow it. Nothing of it is in the slot before it is
/// kept; dropped, it leaves no trace.
pub trait Trial {
    /// What token `number` leads to, to the bit what it would have led to alone behind those before it.
    fn leads_to(&mut self, number: usize, logits: bool) -> Result<Decoded>;

    /// The slot holds the first `count` of the tokens.
    fn keep(self: Box<Self>, count: usize);
}

/// What computes the forward pass.
pub trait Device: Send {
    /// What it is, for people: `cpu, avx512, 8 threads`.
    fn description(&self) -> String;

    /// The bytes it takes.
    fn memory_plan(&self) -> MemoryPlan;

    /// The bytes that a step reads.
    fn traffic(&self) -> Traffic;

    /// Bytes a second that a plain read of the weights' memory reaches now: with the device's own
    /// threads, or on the card.
    fn read_bandwidth(&mut self) -> Result<f64>;

    /// An empty cache for a sequence of at most `context` positions.
    fn make_slot(&mut self, context: usize) -> Result<Slot>;

    /// Gives the cache of a sequence back.
    fn free_slot(&mut self, slot: Slot) -> Result<()>;

    /// What the slots hold.
    fn memory(&mut self) -> &mut dyn SlotMemory;

    /// Runs every piece of work; returns its logits `[rows, vocabulary]`, rows as wanted.
    ///
    /// The logits of a sequence do not depend on what else is in the batch, nor on how its tokens
    /// were cut into pieces. Errors leave the slots as they were before the piece that failed.
    fn step(&mut self, batch: &[Work<'_>]) -> Result<Vec<Vec<f32>>>;

    /// Runs the token that an answer has just got; returns the logits of the next one.
    ///
    /// On some devices an answer's tokens take another way than a prompt's, with sums in another
    /// order: then an answer does not depend on how its prompt was cut, since its own tokens always
    /// come this way.
    fn decode(&mut self, slot: Slot, token: u32) -> Result<Vec<f32>> {
        let work = Work { slot, tokens: &[token], logits: Wanted::Last };
        Ok(self.step(&[work])?.swap_remove(0))
    }

    /// The same for who wants the likeliest token only: the lowest id of the largest logit.
    fn decode_greedy(&mut self, slot: Slot, token: u32) -> Result<u32> {
        greedy(&self.decode(slot, token)?)
    }

    /// A decode step of each of several sequences, every slot at most once. Results are those of
    /// the steps one by one; a step that fails fails alone.
    fn decode_together(&mut self, steps: &[DecodeStep]) -> Vec<Result<Decoded>> {
        steps.iter().map(|step| self.decode_as(step)).collect()
    }

    /// Tokens that [`Device::try_tokens`] takes at most; 1: it takes none.
    fn most_tried(&self) -> usize {
        1
    }

    /// Runs the token that an answer has just got and others that may follow it, two to
    /// [`Device::most_tried`] in all, in one pass.
    ///
    /// Errors: fewer tokens or more; those of [`Device::decode`] for any of them. The slot is as it was.
    fn try_tokens(&mut self, _slot: Slot, tokens: &[u32]) -> Result<Box<dyn Trial + '_>> {
        Err(not_tried(tokens.len(), 1))
    }

    /// One of them.
    fn decode_as(&mut self, step: &DecodeStep) -> Result<Decoded> {
        let &DecodeStep { slot, token, logits } = step;
        Ok(match logits {
            true => Decoded::Logits(self.decode(slot, token)?),
            false => Decoded::Likeliest(self.decode_greedy(slot, token)?),
        })
    }
}

/// Refuses a number of tokens that cannot be tried together.
pub(crate) fn check_tried(tokens: &[u32], most: usize) -> Result<()> {
    match (2..=most).contains(&tokens.len()) {
        true => Ok(()),
        false => Err(not_tried(tokens.len(), most)),
    }
}

fn not_tried(tokens: usize, most: usize) -> RuntimeError {
    let expected = match most {
        1 => "none, on this device".into(),
        _ => format!("2 to {most}"),
    };
    setting("tokens tried together", tokens, expected)
}
