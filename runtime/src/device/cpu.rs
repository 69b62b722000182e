//! The CPU: the forward pass over the kernels, on a pool of threads.

use super::{Contents, DecodeStep, Decoded, Device, Rings, Slot, SlotMemory, Wanted, Work};
use crate::arithmetic::Arithmetic;
use crate::cache::Cache;
use crate::error::{Result, RuntimeError};
use crate::forward::{NoObserver, Piece, forward_together};
use crate::model::{MemoryPlan, Model};
use crate::sampling::greedy;
use crate::weights::Matrix;
use rayon::prelude::*;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread::available_parallelism;
use w4pack_kernels::cpu::{Kernels, Output, Precision};

/// Arithmetic by the kernels, rows shared among the threads of the current rayon pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cpu {
    kernels: &'static Kernels,
    precision: Precision,
}

impl Cpu {
    /// Arithmetic by the given kernels, with activations of 16 bits for packed matrices.
    pub fn new(kernels: &'static Kernels) -> Self {
        Self { kernels, precision: Precision::Bits16 }
    }

    /// The instruction set, and the activations where they are coarse.
    fn name(&self) -> String {
        match self.precision {
            Precision::Bits16 => self.kernels.name().into(),
            Precision::Bits8 => format!("{}, 8-bit activations", self.kernels.name()),
        }
    }

    /// The same with activations of `precision`.
    pub fn in_precision(self, precision: Precision) -> Self {
        Self { precision, ..self }
    }
}

impl Default for Cpu {
    /// By the best kernels of this machine.
    fn default() -> Self {
        Self::new(Kernels::best())
    }
}

/// Rows below which a matrix is not worth sharing among more threads; whole tiles of the kernels.
const LEAST_ROWS: usize = 32;

impl Arithmetic for Cpu {
    type Number = f32;

    fn table_row(&self, table: &Matrix, row: usize, out: &mut [f32]) {
        table.view().row_values(row, out);
    }

    fn linear(&self, weight: &Matrix, x: &[f32]) -> Vec<f32> {
        let view = weight.view();
        let activations = self.kernels.prepare(&view, x, self.precision);
        let tokens = activations.tokens();
        let mut outputs = vec![0.0; view.rows() * tokens];
        let pieces = 4 * rayon::current_num_threads();
        let rows = view.rows().div_ceil(pieces).next_multiple_of(LEAST_ROWS);
        // A stripe of rows for each piece; which thread takes it does not matter.
        let mut stripes = Vec::with_capacity(pieces);
        let mut rest = Output::whole(&mut outputs, tokens);
        while rest.rows() > rows {
            let stripe;
            (stripe, rest) = rest.split_at(rows);
            stripes.push(stripe);
        }
        stripes.push(rest);
        stripes.into_par_iter().enumerate().for_each(|(piece, stripe)| {
            self.kernels.multiply(&view, piece * rows, &activations, stripe);
        });
        outputs
    }

    fn dot(&self, a: &[f32], b: &[f32]) -> f32 {
        self.kernels.dot(a, b)
    }

    fn add_scaled(&self, factor: f32, x: &[f32], out: &mut [f32]) {
        self.kernels.add_scaled(factor, x, out);
    }

    fn for_each_row(
        &self,
        rows: &mut [f32],
        width: usize,
        work: impl Fn(usize, &mut [f32]) + Sync + Send,
    ) {
        rows.par_chunks_mut(width).enumerate().for_each(|(number, row)| work(number, row));
    }
}

/// The CPU device: a model in memory, a pool of threads, a cache for each slot.
pub struct CpuDevice {
    model: Arc<Model>,
    arithmetic: Cpu,
    pool: rayon::ThreadPool,
    slots: Vec<Option<Cache<f32>>>,
    /// Caches of slots that were given back, for the next ones: their memory is there already.
    spare: Vec<Cache<f32>>,
}

impl CpuDevice {
    /// A device over `model` with `threads` workers and the best kernels of this machine.
    ///
    /// Errors: no threads asked for, or the system gives none.
    pub fn new(model: Arc<Model>, threads: usize) -> Result<Self> {
        Self::with(model, threads, Cpu::default())
    }

    /// The same with a chosen arithmetic.
    pub fn with(model: Arc<Model>, threads: usize, arithmetic: Cpu) -> Result<Self> {
        if threads == 0 {
            return Err(RuntimeError::Setting {
                name: "threads",
                value: "0".into(),
                expected: "at least 1".into(),
            });
        }
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(|number| format!("w4pack-{number}"))
            .build()
            .map_err(|cause| RuntimeError::Threads { threads, cause: cause.to_string() })?;
        Ok(Self { model, arithmetic, pool, slots: Vec::new(), spare: Vec::new() })
    }

    /// Runs a batch in which no slot comes twice, in one pass.
    fn run(&mut self, batch: &[Work<'_>]) -> Result<Vec<Vec<f32>>> {
        let Self { model, arithmetic, pool, slots, .. } = self;
        let mut caches: Vec<Option<&mut Cache<f32>>> =
            slots.iter_mut().map(Option::as_mut).collect();
        let mut pieces = Vec::new();
        for &Work { slot, tokens, logits } in batch {
            let cache = caches.get_mut(slot.0).and_then(Option::take);
            let cache = cache.ok_or(RuntimeError::NoSlot { slot: slot.0 })?;
            pieces.push(Piece { cache, tokens, wanted: logits });
        }
        pool.install(|| forward_together(model, arithmetic, &mut pieces, &mut NoObserver))
    }
}

impl Device for CpuDevice {
    fn description(&self) -> String {
        let threads = self.pool.current_num_threads();
        let plural = if threads == 1 { "" } else { "s" };
        format!("cpu, {}, {threads} thread{plural}", self.arithmetic.name())
    }

    fn memory_plan(&self) -> MemoryPlan {
        self.model.memory_plan()
    }

    fn make_slot(&mut self, context: usize) -> Result<Slot> {
        let mut cache =
            self.spare.pop().unwrap_or_else(|| Cache::new(&self.model.config.text, context));
        cache.reset(context);
        let cache = Some(cache);
        match self.slots.iter().position(Option::is_none) {
            Some(free) => {
                self.slots[free] = cache;
                Ok(Slot(free))
            }
            None => {
                self.slots.push(cache);
                Ok(Slot(self.slots.len() - 1))
            }
        }
    }

    fn free_slot(&mut self, slot: Slot) -> Result<()> {
        let cache = self.slots.get_mut(slot.0).and_then(Option::take);
        self.spare.push(cache.ok_or(RuntimeError::NoSlot { slot: slot.0 })?);
        Ok(())
    }

    fn memory(&mut self) -> &mut dyn SlotMemory {
        self
    }

    fn step(&mut self, batch: &[Work<'_>]) -> Result<Vec<Vec<f32>>> {
        let slots: BTreeSet<usize> = batch.iter().map(|work| work.slot.0).collect();
        if slots.len() == batch.len() {
            return self.run(batch);
        }
        // A slot that comes twice: its second piece needs what the first one stores.
        let mut logits = Vec::new();
        for work in batch {
            logits.extend(self.run(std::slice::from_ref(work))?);
        }
        Ok(logits)
    }

    fn decode_together(&mut self, steps: &[DecodeStep]) -> Vec<Result<Decoded>> {
        let batch: Vec<Work<'_>> = steps
            .iter()
            .map(|DecodeStep { slot, token, .. }| {
                let tokens = std::slice::from_ref(token);
                Work { slot: *slot, tokens, logits: Wanted::Last }
            })
            .collect();
        let Ok(rows) = self.step(&batch) else {
            // One of them cannot go on; one by one shows which.
            return steps.iter().map(|step| self.decode_as(step)).collect();
        };
        let decoded = steps.iter().zip(rows).map(|(step, row)| match step.logits {
            true => Ok(Decoded::Logits(row)),
            false => greedy(&row).map(Decoded::Likeliest),
        });
        decoded.collect()
    }
}

impl CpuDevice {
    fn cache(&self, slot: Slot) -> Result<&Cache<f32>> {
        let cache = self.slots.get(slot.0).and_then(Option::as_ref);
        cache.ok_or(RuntimeError::NoSlot { slot: slot.0 })
    }

    fn cache_mut(&mut self, slot: Slot) -> Result<&mut Cache<f32>> {
        let cache = self.slots.get_mut(slot.0).and_then(Option::as_mut);
        cache.ok_or(RuntimeError::NoSlot { slot: slot.0 })
    }
}

impl SlotMemory for CpuDevice {
    fn positions(&self, slot: Slot) -> Result<usize> {
        Ok(self.cache(slot)?.length())
    }

    fn slot_bytes(&self, slot: Slot) -> Result<usize> {
        Ok(self.cache(slot)?.bytes())
    }

    fn save_rings(&mut self, slot: Slot) -> Result<Rings> {
        self.cache(slot)?.rings()
    }

    fn restore(&mut self, slot: Slot, target: usize, rings: Option<&Rings>) -> Result<()> {
        self.cache_mut(slot)?.restore(target, rings)
    }

    fn export(&mut self, slot: Slot) -> Result<Contents> {
        self.cache(slot)?.contents()
    }

    fn import(&mut self, slot: Slot, contents: &Contents) -> Result<()> {
        self.cache_mut(slot)?.fill(contents)
    }

    fn arithmetic(&self) -> String {
        let order = if cfg!(target_endian = "little") { "little" } else { "big" };
        let layers = &self.model.weights.layers;
        let rounded = layers.iter().any(|layer| layer.q_proj.is_rounded());
        let values = if rounded { "weights rounded to bf16" } else { "weights as they are" };
        format!("cpu, {}, {values}, f32 {order}-endian", self.arithmetic.name())
    }

    fn answers_serve_as_prompts(&self) -> bool {
        true
    }
}

/// Cores that this process may use, hyper-threads counted once where the system tells.
pub fn physical_cores() -> usize {
    let allowed = available_parallelism().map_or(1, |threads| threads.get());
    let mut cores = BTreeSet::new();
    for thread in 0.. {
        // Linux; elsewhere there is no such file and every thread counts.
        let folder = format!("/sys/devices/system/cpu/cpu{thread}/topology");
        let read = |file: &str| std::fs::read_to_string(format!("{folder}/{file}")).ok();
        let (Some(package), Some(core)) = (read("physical_package_id"), read("core_id")) else {
            break;
        };
        cores.insert((package, core));
    }
    if cores.is_empty() { allowed } else { allowed.min(cores.len()) }
}
