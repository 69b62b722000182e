//! A card: weights in one arena, a decode step as one captured graph, prompts in chunks.
//!
//! `plan` decides what fits, `layout` what lies where, `load.rs` and `upload.rs` bring it there, `passes` is the forward pass,
//! `snapshot.rs` copies what slots hold.

mod layout;
mod load;
mod options;
mod passes;
mod plan;
mod probe;
mod snapshot;
mod upload;

pub use load::LoadReport;
pub use options::{CudaOptions, RESERVE};
pub use passes::Products;
pub use plan::{KvType, Plan, Sizes, TablePlace, Wish};
pub use probe::{plan_for_shape, read_bandwidth};

use super::{Device, Slot, SlotMemory, Wanted, Work};
use crate::error::{Result, RuntimeError};
use crate::model::MemoryPlan;
use crate::traffic::Traffic;
use crate::weights::{LoadProgress, Survey, survey};
use layout::{Layout, lay_out};
use load::{Table, check_shape, fill};
use passes::Passes;
use std::sync::Arc;
use std::time::Instant;
use w4pack_format::checkpoint::Checkpoint;
use w4pack_format::config::Config;
use w4pack_kernels::cuda::parameters::{Matrix, Step};
use w4pack_kernels::cuda::{Arena, Card, CudaError, Gpu, Graph, Pinned};

/// A model on a card.
pub struct CudaDevice {
    gpu: Gpu,
    config: Config,
    notes: Vec<String>,
    options: CudaOptions,
    plan: Plan,
    layout: Layout,
    products: Products,
    /// Whether one token goes through the layers on tensor cores.
    tensor_token: bool,
    table: Table,
    slots: Vec<Option<Cache>>,
    /// A slot's decode step, captured when it is first taken.
    graphs: Vec<Option<Graph>>,
    /// `Step` on its way to the card, and what comes back.
    mailbox: Pinned,
    load: LoadReport,
    traffic: Traffic,
    /// Bytes of the card in use before the arena was made: the driver's context, other programs.
    outside: usize,
    arena: Arena,
}

/// A sequence's place.
#[derive(Debug, Clone, Copy)]
struct Cache {
    length: usize,
    context: usize,
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
        let Survey { config, weights, notes, bytes } = survey(checkpoint)?;
        check_shape(&config, &weights, options.kv)?;
        for (name, value) in [("chunk", options.chunk), ("slots", options.slots)] {
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
        let wish = Wish {
            limit: options.memory.map_or(available, |limit| limit.min(free)),
            context: options.context,
            table: options.table,
            kv: options.kv,
            chunk: options.chunk,
            slots: options.slots,
            multiprocessors: gpu.card().multiprocessors,
        };
        let plan = plan::plan(&config.text, &weights, &wish)?;
        let traffic = Traffic::of(
            &weights,
            &config.text,
            |matrix| matrix.rows,
            |matrix| matrix.bytes() as usize,
            options.kv.bytes_of_a_number(),
        );
        let arena = gpu.allocate(plan.sizes.total())?;
        let layout =
            lay_out(&config.text, &weights, &wish, plan.context, plan.table, arena.address());

        let begin = Instant::now();
        let (table, load) = fill(&gpu, checkpoint, &layout, &arena, &plan, bytes, progress, begin)?;
        let mailbox = gpu.pinned(64)?;
        let slots = options.slots;
        let mut device = Self {
            outside: gpu.card().memory - free,
            gpu,
            config,
            notes,
            options,
            plan,
            layout,
            products: Products::Ffma,
            tensor_token: false,
            table,
            slots: vec![None; slots],
            graphs: (0..slots).map(|_| None).collect(),
            mailbox,
            load,
            traffic,
            arena,
        };
        device.products = match device.options.products {
            Some(products) => products,
            None => device.faster_products()?,
        };
        device.tensor_token = device.products == Products::Mma
            && passes::fits_tensor_cores(&device.config.text, &device.layout, device.gpu.card());
        Ok(device)
    }

    /// config.json, checked.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What the checkpoint holds and the model does not use, in words.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Positions of a sequence.
    pub fn context(&self) -> usize {
        self.plan.context
    }

    /// What lies on the card.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The card's handle, to measure with.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// The card.
    pub fn card(&self) -> &Card {
        self.gpu.card()
    }

    /// How prompts are multiplied.
    pub fn products(&self) -> Products {
        self.products
    }

    /// Whether a single token goes through the layers on tensor cores: where prompts do, and every
    /// matrix has f16 steps and whole tiles.
    pub fn takes_tokens_on_tensor_cores(&self) -> bool {
        self.tensor_token
    }

    /// How loading went.
    pub fn load_report(&self) -> LoadReport {
        self.load
    }

    /// The plan as a table, and beside it what the card had in use before.
    pub fn memory_table(&self) -> String {
        let Sizes { weights, table, full, sliding, work } = self.plan.sizes;
        let mib = |bytes: usize| bytes as f64 / f64::from(1 << 20);
        let mut text = String::new();
        let place = self.plan.table.name();
        for (name, bytes) in [
            ("weights", weights),
            (&*format!("per-layer table ({place})"), table),
            (&*format!("keys and values, full layers, {}", self.options.kv.name()), full),
            ("keys and values, sliding layers", sliding),
            ("work space", work),
            ("in all", self.plan.sizes.total()),
        ] {
            text += &format!("{name:<40} {:>9.1} MiB\n", mib(bytes));
        }
        text += &format!(
            "{:<40} {:>9.1} MiB (driver and other programs, before)",
            "outside of this",
            mib(self.outside)
        );
        text
    }

    /// Times one product both ways and returns the faster way.
    fn faster_products(&self) -> Result<Products> {
        let tokens = self.layout.work.chunk.min(64);
        let timer = self.gpu.timer()?;
        let mut seconds = [0.0; 2];
        for (seconds, products) in seconds.iter_mut().zip([Products::Mma, Products::Ffma]) {
            let passes = Passes { products, ..self.passes() };
            passes.sample_product(tokens)?;
            *seconds = timer.measure(|| (0..3).try_for_each(|_| passes.sample_product(tokens)))?;
        }
        Ok(if seconds[0] < seconds[1] { Products::Mma } else { Products::Ffma })
    }

    fn passes(&self) -> Passes<'_> {
        let work = &self.layout.work;
        let table = match &self.table {
            Table::None => None,
            Table::OnCard(matrix) | Table::Host { matrix, .. } => Some((*matrix, false)),
            Table::Disk { .. } => self.layout.weights.per_layer_inputs.as_ref().map(|inputs| {
                let placed = &inputs.embed_tokens;
                let kind = layout::kind_of(placed.stored.storage) as i32;
                let (values, steps) = (work.table_words, work.table_steps);
                let columns = placed.stored.columns as i32;
                let rows = work.chunk as i32;
                (Matrix { values, steps, rows, columns, kind, padding: 0 }, true)
            }),
        };
        Passes {
            gpu: &self.gpu,
            text: &self.config.text,
            layout: &self.layout,
            kv: self.options.kv,
            products: self.products,
            tensor_token: self.tensor_token,
            table,
        }
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

    /// Rows of a table that stays on disk, for these tokens, to the card.
    fn fetch_table_rows(&mut self, tokens: &[u32]) -> Result<()> {
        let Table::Disk { checkpoint, words } = &mut self.table else { return Ok(()) };
        let Some(inputs) = &self.layout.weights.per_layer_inputs else { return Ok(()) };
        let stored = &inputs.embed_tokens.stored;
        let tensors = crate::weights::tensors_of(stored);
        let work = &self.layout.work;
        let targets = [work.table_words, work.table_steps];
        let row_bytes = layout::row_bytes(stored);
        // Copies of earlier rows must be done before their memory is used again.
        self.gpu.wait()?;
        let mut rest = words.bytes_mut();
        for ((tensor, target), bytes) in tensors.iter().zip(targets).zip(row_bytes) {
            let (part, behind) = rest.split_at_mut(tokens.len() * bytes);
            rest = behind;
            for (&token, row) in tokens.iter().zip(part.chunks_exact_mut(bytes)) {
                checkpoint.read_range(tensor, u64::from(token) * bytes as u64, row)?;
            }
            // SAFETY: the plan has rows for a chunk of tokens.
            unsafe { self.gpu.upload(target, part)? };
        }
        Ok(())
    }

    /// Puts a step into the mailbox and on its way.
    fn send_step(&mut self, position: usize, token: i32) -> Result<()> {
        let step = Step { position: position as i32, token, best: 0 };
        let bytes = &mut self.mailbox.bytes_mut()[..16];
        bytes[..4].copy_from_slice(&step.position.to_le_bytes());
        bytes[4..8].copy_from_slice(&step.token.to_le_bytes());
        bytes[8..].copy_from_slice(&step.best.to_le_bytes());
        // SAFETY: `step` has 16 bytes; the mailbox is not written again before the stream is done.
        unsafe { self.gpu.upload(self.layout.work.step, bytes)? };
        Ok(())
    }

    /// Runs the decode step of `token`; its logits and best id are on the card afterwards.
    fn run_step(&mut self, slot: Slot, token: u32) -> Result<()> {
        let cache = self.cache(slot)?;
        self.check_room(cache, 1)?;
        crate::forward::check_ids(&self.config.text, &[token], cache.length)?;
        self.gpu.bind()?;
        self.fetch_table_rows(&[token])?;
        if self.graphs[slot.0].is_none() {
            let passes = self.passes();
            let graph = self.gpu.capture(|| passes.step(&self.layout.caches[slot.0]))?;
            self.graphs[slot.0] = Some(graph);
        }
        self.send_step(cache.length, token as i32)?;
        let graph = self.graphs[slot.0].as_ref().expect("captured above");
        self.gpu.run(graph)?;
        Ok(())
    }

    fn commit_step(&mut self, slot: Slot) {
        if let Some(cache) = &mut self.slots[slot.0] {
            cache.length += 1;
        }
    }

    /// Reads a piece of a prompt, in chunks.
    fn read_prompt(&mut self, work: &Work<'_>) -> Result<Vec<f32>> {
        let cache = self.cache(work.slot)?;
        if work.tokens.is_empty() {
            return Err(RuntimeError::EmptyPrompt);
        }
        crate::forward::check_ids(&self.config.text, work.tokens, cache.length)?;
        self.check_room(cache, work.tokens.len())?;
        self.gpu.bind()?;
        let chunk = match work.logits {
            Wanted::All => self.layout.work.chunk_for_all,
            _ => self.layout.work.chunk,
        };
        let (mut logits, mut first) = (Vec::new(), cache.length);
        let mut pieces = work.tokens.chunks(chunk).peekable();
        while let Some(tokens) = pieces.next() {
            let wanted = match work.logits {
                Wanted::Last if pieces.peek().is_some() => Wanted::Nothing,
                wanted => wanted,
            };
            self.read_chunk(work.slot, first, tokens, wanted, &mut logits)?;
            first += tokens.len();
        }
        if let Some(cache) = &mut self.slots[work.slot.0] {
            cache.length = first;
        }
        Ok(logits)
    }

    fn read_chunk(
        &mut self,
        slot: Slot,
        first: usize,
        tokens: &[u32],
        wanted: Wanted,
        logits: &mut Vec<f32>,
    ) -> Result<()> {
        self.fetch_table_rows(tokens)?;
        let ids: Vec<u8> = tokens.iter().flat_map(|id| id.to_le_bytes()).collect();
        let layout_work = self.layout.work;
        // SAFETY: the plan has ids for a chunk of tokens.
        unsafe { self.gpu.upload(layout_work.chunk_ids, &ids)? };
        let (owning, all) = (self.config.text.owning_layers(), self.config.text.layers.len());
        let (vocabulary, hidden) = (self.config.text.vocab_size, self.config.text.hidden_size);
        let width = self.config.text.hidden_size_per_layer_input;
        let count = tokens.len();
        let layers = if wanted == Wanted::All { 0..all } else { 0..owning };
        let passes = self.passes();
        let caches = &self.layout.caches[slot.0];
        passes.chunk_layers(caches, first, count, layers)?;
        passes.commit(caches, first, count)?;
        match wanted {
            Wanted::Nothing => {}
            Wanted::All => {
                let rows = (layout_work.wide / vocabulary).max(1);
                for begin in (0..count).step_by(rows) {
                    let rows = rows.min(count - begin);
                    passes.chunk_head(begin, rows)?;
                    let old = logits.len();
                    logits.resize(old + rows * vocabulary, 0.0);
                    let target = bytemuck::cast_slice_mut(&mut logits[old..]);
                    // SAFETY: `chunk_head` wrote these logits.
                    unsafe { self.gpu.download(target, layout_work.chunk_wide)? };
                }
            }
            Wanted::Last => {
                // From the first KV-shared layer on only the last token is of interest.
                let last = count - 1;
                let x = layout_work.chunk_stream + (4 * last * hidden) as u64;
                let per_layer = layout_work.chunk_per_layer + (4 * last * all * width) as u64;
                let turns = layout_work.chunk_turns + (8 * last * self.layout.vectors.pairs) as u64;
                self.send_step(first + last, tokens[last] as i32)?;
                let (passes, caches) = (self.passes(), &self.layout.caches[slot.0]);
                passes.token_layers(caches, owning..all, x, per_layer, turns)?;
                *logits = self.download_logits()?;
            }
        }
        // The ids and the mailbox may be written again.
        self.gpu.wait()?;
        Ok(())
    }

    fn download_logits(&self) -> Result<Vec<f32>> {
        let mut logits = vec![0.0f32; self.config.text.vocab_size];
        // SAFETY: the head has written a row of the vocabulary.
        unsafe {
            self.gpu.download(bytemuck::cast_slice_mut(&mut logits), self.layout.work.logits)?;
        }
        Ok(logits)
    }
}

impl Device for CudaDevice {
    fn description(&self) -> String {
        let card = self.card();
        let products = match self.products {
            Products::Mma => "tensor cores",
            Products::Ffma => "no tensor cores",
        };
        format!("cuda:{}, {}, {} kernels, {products}", card.ordinal, card.name, self.gpu.kernels())
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
        read_bandwidth(&self.gpu)
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
        self.slots[free] = Some(Cache { length: 0, context });
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
        self.run_step(slot, token)?;
        let logits = self.download_logits()?;
        self.commit_step(slot);
        Ok(logits)
    }

    fn decode_greedy(&mut self, slot: Slot, token: u32) -> Result<u32> {
        self.run_step(slot, token)?;
        let best_address = self.layout.work.step + 8;
        let bytes = &mut self.mailbox.bytes_mut()[16..24];
        // SAFETY: `best` has 8 bytes; they are read after the wait.
        unsafe { self.gpu.download(bytes, best_address)? };
        let best = bytemuck::pod_read_unaligned(&self.mailbox.bytes()[16..24]);
        let id = Step::chosen(best);
        if Step::is_nan(best) {
            return Err(RuntimeError::BrokenLogits { id: id as usize, value: f32::NAN });
        }
        self.commit_step(slot);
        Ok(id)
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        // The arena and the graphs go after this; nothing may still run on them.
        let _ = self.gpu.bind();
        let _ = self.gpu.wait();
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
