//! A card: weights in one arena, a decode step as one captured graph, prompts in chunks.
//!
//! `plan` decides what fits, `layout` what lies where, `load.rs` and `upload.rs` bring it there, `passes` is the
//! forward pass, which `prompt.rs`, `decode.rs`, `together.rs` and `tried.rs` run, `snapshot.rs` copies what
//! slots hold. All of them get the card from `queue.rs`, which knows what it runs ahead of the host (`ahead.rs`).
//! `ways.rs` chooses among the kernels that could do it, `about.rs` says what came of all that.

mod about;
mod ahead;
mod decode;
mod layout;
mod load;
mod options;
mod passes;
mod plan;
mod probe;
mod prompt;
mod queue;
mod snapshot;
mod together;
mod tried;
mod upload;
mod ways;
mod work_space;

pub use load::LoadReport;
pub use options::{CudaOptions, RESERVE, When};
pub use plan::{KvType, Plan, Sizes, TablePlace, Wish};
pub use probe::{plan_for_shape, read_bandwidth};
pub use ways::Products;

use super::{DecodeStep, Decoded, Device, MOST_TRIED, Slot, SlotMemory, Trial, Wanted, Work};
use crate::error::{Result, RuntimeError};
use crate::model::MemoryPlan;
use crate::speculation::Speculation;
use crate::traffic::Traffic;
use crate::weights::{LoadProgress, Survey, survey};
use ahead::{BEGUN_BY_HOST, Turn};
use layout::{Layout, lay_out, ring_rows};
use load::{Table, check_shape, fill};
use passes::Passes;
use queue::Queue;
use std::sync::Arc;
use std::time::Instant;
use w4pack_format::checkpoint::Checkpoint;
use w4pack_format::config::Config;
use w4pack_kernels::cuda::parameters::Matrix;
use w4pack_kernels::cuda::{Arena, CudaError, Gpu, Graph, Pinned};
use ways::Ways;

/// A model on a card.
pub struct CudaDevice {
    queue: Queue,
    config: Config,
    notes: Vec<String>,
    options: CudaOptions,
    plan: Plan,
    layout: Layout,
    ways: Ways,
    table: Table,
    slots: Vec<Option<Cache>>,
    /// By slot: its decode step.
    graphs: Vec<Graph>,
    /// The same with the other `Step`, for every second one of those that run ahead; empty where none do.
    ahead_graphs: Vec<Graph>,
    /// A step of two sequences at once, of three and so on; empty where they go one by one, or on ordinary cores.
    batch_graphs: Vec<Graph>,
    /// A step of `TRIED` tokens of one sequence; empty where none are tried, or on ordinary cores.
    tried_graphs: Vec<Graph>,
    /// `Step` on its way to the card, and what comes back.
    mailbox: Pinned,
    /// A row of logits on its way back.
    row: Pinned,
    load: LoadReport,
    traffic: Traffic,
    /// Bytes of the card in use before the arena was made: the driver's context, other programs.
    outside: usize,
    /// Bytes of the card in use more than that, once the model was ready.
    taken: usize,
    arena: Arena,
}

/// A sequence's place.
#[derive(Debug, Clone, Copy)]
struct Cache {
    length: usize,
    context: usize,
    /// The first position that all rings still have the row of.
    oldest: usize,
}

impl Cache {
    fn empty(context: usize) -> Self {
        Self { length: 0, context, oldest: 0 }
    }

    /// Rings of this window have been written up to `end`, whether or not that is kept.
    fn written(&mut self, end: usize, window: usize) {
        self.oldest = self.oldest.max(end.saturating_sub(ring_rows(window)));
    }
}

impl CudaDevice {
    /// Puts a checkpoint on a card.
    ///
    /// Errors: no card, or none with kernels; a model whose shape the kernels do not cover; too
    /// little memory, before anything is allocated; everything that [`crate::Model::load`] refuses.
    pub fn load(
        checkpoint: &Arc<Checkpoint>,
        options: CudaOptions,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Self> {
        let Survey { config, weights, notes, bytes, .. } = survey(checkpoint)?;
        check_shape(&config, &weights, options.kv)?;
        for (name, value) in [("chunk", options.chunk.unwrap_or(1)), ("slots", options.slots)] {
            if value == 0 {
                return Err(crate::engine::setting(name, 0, "at least 1".into()));
            }
        }
        let longest = config.text.max_position_embeddings;
        if let Some(context) = options.context
            && !(1..=longest).contains(&context)
        {
            let expected = format!("1 to {longest}, the positions the model was made for");
            return Err(crate::engine::setting("context", context, expected));
        }
        let mut gpu = Gpu::open(options.ordinal, options.kernels.as_deref())?;
        gpu.allow_overlap(options.overlap);
        let free = gpu.free_memory()?;
        let available = free.saturating_sub(RESERVE.min(free / 8));
        let mut wish = Wish {
            limit: options.memory.map_or(available, |limit| limit.min(free)),
            context: options.context,
            table: options.table,
            kv: options.kv,
            chunk: options.chunk.unwrap_or(1),
            slots: options.slots,
            ahead: options.ahead != When::Never,
            tried: if options.speculation == Speculation::Off { 1 } else { MOST_TRIED },
            multiprocessors: gpu.card().multiprocessors,
        };
        let plan =
            plan::settle(&config.text, &weights, &mut wish, options.chunk, options.speculation)?;
        let traffic = Traffic::of(
            &weights,
            &config.text,
            |matrix| matrix.rows,
            |matrix| matrix.bytes() as usize,
            options.kv.bytes_of_a_number(),
        );
        let arena = gpu.allocate(plan.sizes.arena())?;
        let layout =
            lay_out(&config.text, &weights, &wish, plan.context, plan.table, arena.address());

        let begin = Instant::now();
        let (table, load) = fill(&gpu, checkpoint, &layout, &arena, &plan, bytes, progress, begin)?;
        let mailbox = gpu.pinned(together::MAILBOX)?;
        let row = gpu.pinned(4 * config.text.vocab_size)?;
        let slots = options.slots;
        let mut device = Self {
            outside: gpu.card().memory - free,
            taken: 0,
            queue: Queue::new(gpu, options.ahead)?,
            config,
            notes,
            options,
            plan,
            layout,
            ways: Ways::ORDINARY,
            table,
            slots: vec![None; slots],
            graphs: Vec::new(),
            ahead_graphs: Vec::new(),
            batch_graphs: Vec::new(),
            tried_graphs: Vec::new(),
            mailbox,
            row,
            load,
            traffic,
            arena,
        };
        device.choose_ways()?;
        device.capture_steps()?;
        device.capture_batches()?;
        device.choose_together()?;
        device.capture_tried()?;
        let free = device.queue.settled()?.free_memory()?;
        device.taken = (device.card().memory - free).saturating_sub(device.outside);
        Ok(device)
    }

    fn passes(&mut self) -> Result<Passes<'_>> {
        self.passes_in(BEGUN_BY_HOST)
    }

    /// Those of a step in this turn.
    fn passes_in(&mut self, turn: Turn) -> Result<Passes<'_>> {
        let told = self.queue.told_at(turn)?;
        let work = self.layout.work.in_turn(turn);
        let table = match &self.table {
            Table::None => None,
            Table::OnCard(matrix) | Table::Host { matrix, .. } => Some((*matrix, false)),
            Table::Disk { .. } => self.layout.weights.per_layer_inputs.as_ref().map(|inputs| {
                let placed = &inputs.embed_tokens;
                let kind = layout::kind_of(placed.stored.storage) as i32;
                let (values, steps) = (work.table_words, work.table_steps);
                let columns = placed.stored.columns as i32;
                let rows = work.table_rows as i32;
                (Matrix { values, steps, rows, columns, kind, padding: 0 }, true)
            }),
        };
        Ok(Passes {
            gpu: self.queue.settled()?,
            text: &self.config.text,
            layout: &self.layout,
            work,
            told,
            kv: self.options.kv,
            ways: self.ways,
            table,
        })
    }

    fn cache(&self, slot: Slot) -> Result<Cache> {
        self.slots.get(slot.0).copied().flatten().ok_or(RuntimeError::NoSlot { slot: slot.0 })
    }

    fn check_room(&self, cache: Cache, tokens: usize) -> Result<()> {
        if cache.length + tokens > cache.context {
            return Err(RuntimeError::ContextExceeded {
                prompt: cache.length + tokens,
                max_tokens: 0,
                context: cache.context,
            });
        }
        Ok(())
    }
}

impl Device for CudaDevice {
    fn description(&self) -> String {
        let card = self.card();
        let products = match self.ways.products {
            Products::Mma => "tensor cores",
            Products::Ffma => "no tensor cores",
        };
        format!(
            "cuda:{}, {}, {} kernels, {products}",
            card.ordinal,
            card.name,
            self.queue.kernels()
        )
    }

    fn memory_plan(&self) -> MemoryPlan {
        // Everything is allocated from the start, whatever the cache holds.
        MemoryPlan {
            weights: self.arena.bytes() - self.plan.sizes.table,
            per_layer_table: self.plan.sizes.table,
            sliding_per_token: 0,
            sliding_window: self.config.text.sliding_window,
            full_per_token: 0,
        }
    }

    fn traffic(&self) -> Traffic {
        self.traffic
    }

    fn read_bandwidth(&mut self) -> Result<f64> {
        read_bandwidth(self.queue.settled()?)
    }

    fn make_slot(&mut self, context: usize) -> Result<Slot> {
        if context > self.plan.context {
            return Err(RuntimeError::ContextExceeded {
                prompt: context,
                max_tokens: 0,
                context: self.plan.context,
            });
        }
        let free = self.slots.iter().position(Option::is_none);
        let free = free.ok_or(RuntimeError::NoFreeSlot { slots: self.slots.len() })?;
        self.slots[free] = Some(Cache::empty(context));
        Ok(Slot(free))
    }

    fn free_slot(&mut self, slot: Slot) -> Result<()> {
        let cache = self.slots.get_mut(slot.0).and_then(Option::take);
        cache.map(drop).ok_or(RuntimeError::NoSlot { slot: slot.0 })
    }

    fn memory(&mut self) -> &mut dyn SlotMemory {
        self
    }

    fn step(&mut self, batch: &[Work<'_>]) -> Result<Vec<Vec<f32>>> {
        batch.iter().map(|work| self.read_prompt(work)).collect()
    }

    fn decode(&mut self, slot: Slot, token: u32) -> Result<Vec<f32>> {
        self.step_to_logits(slot, token)
    }

    fn decode_greedy(&mut self, slot: Slot, token: u32) -> Result<u32> {
        self.step_to_likeliest(slot, token)
    }

    fn decode_together(&mut self, steps: &[DecodeStep]) -> Vec<Result<Decoded>> {
        self.steps_together(steps)
    }

    fn most_tried(&self) -> usize {
        let is_ready = self.ways.several || !self.tried_graphs.is_empty();
        if self.layout.tried > 1 && is_ready { MOST_TRIED } else { 1 }
    }

    fn try_tokens(&mut self, slot: Slot, tokens: &[u32]) -> Result<Box<dyn Trial + '_>> {
        self.try_together(slot, tokens)
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        // The arena and the graphs go after this; nothing may still run on them.
        let _ = self.queue.settled().map(Gpu::wait);
    }
}

/// Why there is no card to use, if there is none.
pub fn unusable(ordinal: usize) -> Option<CudaError> {
    match w4pack_kernels::cuda::cards() {
        Ok(count) if ordinal < count => None,
        Ok(count) => Some(CudaError::NoSuchCard { ordinal, count }),
        Err(error) => Some(error),
    }
}
