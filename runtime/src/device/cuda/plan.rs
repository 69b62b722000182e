//! What a card will hold, decided before anything is allocated: where the per-layer table goes and how
//! long a context fits. No call of a driver is made here.

use super::layout::lay_out;
use crate::device::MOST_TRIED;
use crate::error::{Result, RuntimeError};
use crate::model::Weights;
use crate::speculation::Speculation;
use crate::weights::Stored;
use w4pack_format::config::TextConfig;
use w4pack_kernels::cuda::parameters::BATCH_TOKENS;

/// How keys and values are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KvType {
    /// Keys and values are normed, so they are far inside f16's range, and it keeps three bits
    /// more than bf16.
    #[default]
    F16,
    /// For norm weights beyond f16's range.
    Bf16,
    /// A byte a number and an f16 step for every 32: 0.53 of the size.
    Q8,
}

impl KvType {
    /// `f16`, `bf16` or `q8`; also in the kernels' names.
    pub fn name(self) -> &'static str {
        match self {
            KvType::F16 => "f16",
            KvType::Bf16 => "bf16",
            KvType::Q8 => "q8",
        }
    }

    /// Bytes that a number takes, steps of its group included.
    pub(super) fn bytes_of_a_number(self) -> f64 {
        if self == KvType::Q8 { 1.0 + 2.0 / 32.0 } else { 2.0 }
    }

    pub(super) fn number_bytes(self) -> usize {
        if self == KvType::Q8 { 1 } else { 2 }
    }
}

/// Where the per-layer table is, of which a token reads one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TablePlace {
    /// On the card.
    Gpu,
    /// In pinned memory of the host, which the card reads.
    Host,
    /// In its file; a row is read for each token.
    Disk,
}

impl TablePlace {
    /// `gpu`, `host` or `disk`.
    pub fn name(self) -> &'static str {
        match self {
            TablePlace::Gpu => "gpu",
            TablePlace::Host => "host",
            TablePlace::Disk => "disk",
        }
    }
}

/// What the planner is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wish {
    /// Bytes that may be allocated.
    pub limit: usize,
    /// Positions of a sequence; `None`: as many as fit.
    pub context: Option<usize>,
    /// `None`: on the card if there is room.
    pub table: Option<TablePlace>,
    /// How keys and values are stored.
    pub kv: KvType,
    /// Prompt tokens in one pass.
    pub chunk: usize,
    /// Sequences at once.
    pub slots: usize,
    /// Tokens of one sequence that are tried together at most; 1: none are.
    pub tried: usize,
    /// Whether steps may be run ahead, which takes each slot's step twice, of [`MOST_SLOTS_AHEAD`] slots at most.
    pub ahead: bool,
    /// Of the card.
    pub multiprocessors: usize,
}

/// Bytes by purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sizes {
    /// Words, steps and vectors, but for the per-layer table.
    pub weights: usize,
    /// The per-layer table, if it is on the card.
    pub table: usize,
    /// Keys and values of full layers.
    pub full: usize,
    /// Keys and values of sliding layers.
    pub sliding: usize,
    /// Everything that lives for a step or a chunk.
    pub work: usize,
    /// What the driver takes for the captured decode steps, and to reach a table in the host's memory.
    pub driver: usize,
}

/// The driver gives memory in blocks of this size.
const BLOCK: usize = 2 << 20;

/// Bytes that the driver takes for a kernel of a captured graph, and kernels of a layer, of one token and of
/// several: more than were seen (E2B's steps of 8 slots, 250 kernels each, took 4 MiB; those of 16, alone and together, 22).
const GRAPH_NODE: usize = 2048;
const KERNELS_OF_LAYER: [usize; 2] = [9, 12];

/// Numbers of tokens tried in one pass for which there is a captured graph; others are filled up.
pub(super) const TRIED: [usize; 3] = [2, 4, MOST_TRIED];

/// Slots of which steps run ahead: more of them mostly go together, and what the driver takes for their steps is only
/// roughly known.
pub(super) const MOST_SLOTS_AHEAD: usize = 8;

/// Bytes of the host's memory for which the card keeps a byte of page table: 8 for a page of 4 KiB.
const MAPPED: usize = 512;

/// What the driver takes for the decode steps of all slots, one by one, together and tried, and for
/// `mapped` bytes of the host's memory.
pub(super) fn driver_bytes(layers: usize, wish: &Wish, mapped: usize) -> usize {
    let tried = TRIED.iter().filter(|&&tokens| tokens <= wish.tried).count();
    let is_twice = wish.ahead && wish.slots <= MOST_SLOTS_AHEAD;
    let alone = if is_twice { 2 * wish.slots } else { wish.slots };
    let together = wish.slots.min(BATCH_TOKENS) - 1 + tried;
    let kernels = KERNELS_OF_LAYER.map(|of_layer| layers * of_layer + 20);
    let graphs = (alone * kernels[0] + together * kernels[1]) * GRAPH_NODE;
    (graphs + mapped / MAPPED).next_multiple_of(BLOCK)
}

impl Sizes {
    /// Bytes of the one allocation: everything but the driver's, in whole blocks of the driver.
    pub fn arena(&self) -> usize {
        let Self { weights, table, full, sliding, work, driver: _ } = self;
        (weights + table + full + sliding + work).next_multiple_of(BLOCK)
    }

    /// All of it.
    pub fn total(&self) -> usize {
        self.arena() + self.driver
    }
}

/// A plan that fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Positions of a sequence.
    pub context: usize,
    /// Where the per-layer table is.
    pub table: TablePlace,
    /// Bytes by purpose.
    pub sizes: Sizes,
}

/// The plan where the prompt tokens of a pass (`chunk`) and the room for tokens that are tried may be left
/// to it; `wish` says afterwards what was settled on.
///
/// Errors: those of [`plan`].
pub(super) fn settle(
    text: &TextConfig,
    weights: &Weights<Stored>,
    wish: &mut Wish,
    chunk: Option<usize>,
    speculation: Speculation,
) -> Result<Plan> {
    let with_chunk = |wish: &Wish| match chunk {
        Some(chunk) => Ok((plan(text, weights, &Wish { chunk, ..*wish })?, chunk)),
        None => plan_with_chunk(text, weights, wish),
    };
    let (plan, chunk) = match speculation {
        Speculation::Auto => plan_with_tried(wish, &with_chunk)?,
        Speculation::Off | Speculation::Ngram => with_chunk(wish)?,
    };
    wish.chunk = chunk;
    Ok(plan)
}

/// The plan, and the prompt tokens in one pass where nobody says (`wish.chunk` is not looked at): a
/// large card is full from about 2,048 on. Their work space is a small part of the memory, and neither
/// the context nor the place of the table suffers by it.
///
/// Errors: those of [`plan`] with the shortest chunk.
pub(super) fn plan_with_chunk(
    text: &TextConfig,
    weights: &Weights<Stored>,
    wish: &Wish,
) -> Result<(Plan, usize)> {
    const LEAST: usize = 256;
    const PART: usize = 48;
    let least = plan(text, weights, &Wish { chunk: LEAST, ..*wish })?;
    for chunk in [2048, 1024, 512] {
        let Ok(found) = plan(text, weights, &Wish { chunk, ..*wish }) else { continue };
        let takes_little = found.sizes.work <= least.sizes.work + wish.limit / PART;
        if takes_little && (found.context, found.table) == (least.context, least.table) {
            return Ok((found, chunk));
        }
    }
    Ok((least, LEAST))
}

/// `plan` with room for tokens that are tried, where nobody says and that takes little: the table stays
/// where it is, and of a context that nobody asked for at most a fiftieth goes. `wish.tried` is what was
/// settled on.
///
/// Errors: those of `plan` without that room.
pub(super) fn plan_with_tried(
    wish: &mut Wish,
    plan: &dyn Fn(&Wish) -> Result<(Plan, usize)>,
) -> Result<(Plan, usize)> {
    wish.tried = 1;
    let without = plan(wish)?;
    let Ok(with) = plan(&Wish { tried: MOST_TRIED, ..*wish }) else { return Ok(without) };
    let takes_little = with.0.context >= without.0.context - without.0.context / 50;
    if !takes_little || with.0.table != without.0.table {
        return Ok(without);
    }
    wish.tried = MOST_TRIED;
    Ok(with)
}

/// The longest context (or the one wished for) that fits into `wish.limit`.
///
/// Errors: it does not fit; then the message names the longest that would, or the bytes that even
/// one position needs.
pub fn plan(text: &TextConfig, weights: &Weights<Stored>, wish: &Wish) -> Result<Plan> {
    let longest = text.max_position_embeddings;
    let sizes =
        |context: usize, table: TablePlace| lay_out(text, weights, wish, context, table, 0).sizes;
    // The longest context for a place of the table, if any fits.
    let fitting = |table: TablePlace| -> Option<usize> {
        let fits = |context: usize| sizes(context, table).total() <= wish.limit;
        if !fits(1) {
            return None;
        }
        let (mut low, mut high) = (1, longest + 1);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if fits(middle) { low = middle } else { high = middle }
        }
        Some(low)
    };
    let enough = wish.context.unwrap_or(longest.min(8192));
    let has_table = weights.per_layer_inputs.is_some();
    let table = match wish.table {
        Some(table) => table,
        None if !has_table => TablePlace::Gpu,
        None if fitting(TablePlace::Gpu).is_some_and(|context| context >= enough) => {
            TablePlace::Gpu
        }
        None => TablePlace::Host,
    };
    let refuse = |longest: Option<usize>| RuntimeError::CardMemory {
        needed: sizes(wish.context.unwrap_or(1), table).total(),
        limit: wish.limit,
        context: wish.context.unwrap_or(1),
        longest,
        table_on_card: has_table && table == TablePlace::Gpu,
    };
    let context = match (fitting(table), wish.context) {
        (None, _) => return Err(refuse(None)),
        (Some(longest), Some(wished)) if wished > longest => return Err(refuse(Some(longest))),
        (Some(_), Some(wished)) => wished,
        (Some(longest), None) => longest,
    };
    Ok(Plan { context, table, sizes: sizes(context, table) })
}
