//! The CPU: the forward pass over the kernels, on a pool of threads.

mod attention;
mod pool;
mod read;
mod spare;
mod tried;

pub use pool::Pool;

use super::{
    Contents, DecodeStep, Decoded, Device, MOST_TRIED, Rings, Slot, SlotMemory, Trial, Wanted, Work,
};
use crate::arithmetic::{Arithmetic, Heads};
use crate::cache::{Cache, LayerCache};
use crate::error::{Result, RuntimeError};
use crate::forward::{NoObserver, Piece, forward_together};
use crate::model::{MemoryPlan, Model};
use crate::number::Kept;
use crate::sampling::greedy;
use crate::traffic::Traffic;
use crate::weights::Matrix;
use half::f16;
use spare::Spare;
use std::collections::BTreeSet;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::available_parallelism;
use w4pack_kernels::cpu::{CacheNumber, Kernels, Output, Precision};

/// Arithmetic by the kernels, shared among the threads of a pool; keys and values are kept as `S`.
#[derive(Debug)]
pub struct Cpu<S = f16> {
    kernels: &'static Kernels,
    precision: Precision,
    pool: Pool,
    spare: Spare,
    kept: PhantomData<S>,
}

impl<S: Kept<f32> + CacheNumber> Cpu<S> {
    /// Arithmetic by the given kernels on the threads of `pool`, with activations of 16 bits for packed
    /// matrices.
    pub fn new(kernels: &'static Kernels, pool: Pool) -> Self {
        let (precision, spare) = (Precision::Bits16, Spare::default());
        Self { kernels, precision, pool, spare, kept: PhantomData }
    }

    /// The same with activations of `precision`.
    pub fn in_precision(self, precision: Precision) -> Self {
        Self { precision, ..self }
    }

    /// The instruction set, and the activations where they are coarse.
    fn name(&self) -> String {
        match self.precision {
            Precision::Bits16 => self.kernels.name().into(),
            Precision::Bits8 => format!("{}, 8-bit activations", self.kernels.name()),
        }
    }

    /// Rows of a matrix that a thread multiplies before it looks whether another one is late.
    fn rows_of_a_unit(&self, matrix: &w4pack_kernels::cpu::Matrix<'_>) -> usize {
        let units = UNITS_OF_A_THREAD * self.pool.threads();
        let most = (LARGEST_UNIT / matrix.columns()).max(LEAST_ROWS);
        let rows = matrix.rows().div_ceil(units).clamp(LEAST_ROWS, most);
        rows.next_multiple_of(LEAST_ROWS)
    }
}

/// Units that a thread's share of a matrix is cut into at least, so that little is left to wait for
/// when it is late.
const UNITS_OF_A_THREAD: usize = 8;
/// Elements of a unit at most: 576 KiB of words and steps, 30 to 60 microseconds.
const LARGEST_UNIT: usize = 1 << 20;
/// Rows below which a matrix is not worth sharing among more threads; whole tiles of the kernels.
const LEAST_ROWS: usize = 32;

/// Numbers that a thread does by itself before others are asked to help: some 10 microseconds.
const ALONE: usize = 1 << 15;

impl<S: Kept<f32> + CacheNumber> Arithmetic for Cpu<S> {
    type Number = f32;
    type Kept = S;

    fn table_row(&self, table: &Matrix, row: usize, out: &mut [f32]) {
        table.view().row_values(row, out);
    }

    fn linear(&self, weight: &Matrix, x: &[f32]) -> Vec<f32> {
        let view = weight.view();
        let activations = self.kernels.prepare_shared(&view, x, self.precision, |parts, fill| {
            self.pool.for_each_chunk(parts, 1, |_, part| fill(&mut part[0]));
        });
        let tokens = activations.tokens();
        let mut outputs = self.spare.room(view.rows() * tokens);
        let rows = self.rows_of_a_unit(&view);
        // A stripe of rows for each unit; which thread takes it does not matter.
        let mut stripes = Vec::with_capacity(view.rows().div_ceil(rows));
        let mut rest = Output::whole(&mut outputs, tokens);
        while rest.rows() > rows {
            let stripe;
            (stripe, rest) = rest.split_at(rows);
            stripes.push(Some(stripe));
        }
        stripes.push(Some(rest));
        self.pool.for_each_chunk(&mut stripes, 1, |unit, stripe| {
            let stripe = stripe[0].take().expect("every unit comes once");
            self.kernels.multiply(&view, unit * rows, &activations, stripe);
        });
        outputs
    }

    fn take_back(&self, numbers: Vec<f32>) {
        self.spare.take_back(numbers);
    }

    fn attend(
        &self,
        kept: &LayerCache<S>,
        first: usize,
        heads: Heads,
        queries: &[f32],
        out: &mut [f32],
    ) {
        attention::attend(self.kernels, &self.pool, kept, first, heads, queries, out);
    }

    fn rms_norm(&self, rows: &mut [f32], width: usize, weight: Option<&[f32]>, epsilon: f64) {
        let together = (ALONE / width).max(1) * width;
        self.pool.for_each_chunk(rows, together, |_, rows| {
            for row in rows.chunks_exact_mut(width) {
                self.kernels.rms_norm(row, weight, epsilon as f32);
            }
        });
    }

    fn gelu_times(&self, gate: &mut [f32], other: &[f32]) {
        self.pool.for_each_chunk(gate, ALONE, |number, gate| {
            self.kernels.gelu_times(gate, &other[number * ALONE..][..gate.len()]);
        });
    }

    fn soft_cap(&self, numbers: &mut [f32], cap: f64) {
        self.pool.for_each_chunk(numbers, ALONE, |_, numbers| {
            self.kernels.soft_cap(numbers, cap as f32);
        });
    }
}

/// The CPU device: a model in memory, a pool of threads, a cache for each slot.
///
/// Keys and values are kept as `S`: they are normed, so that they are far inside f16's range, and it
/// keeps three bits more than bf16.
pub struct CpuDevice<S = f16> {
    model: Arc<Model>,
    arithmetic: Cpu<S>,
    slots: Vec<Option<Cache<S>>>,
    /// Caches of slots that were given back, for the next ones: their memory is there already.
    spare: Vec<Cache<S>>,
}

impl CpuDevice {
    /// A device over `model` with `threads` workers and the best kernels of this machine; keys and
    /// values are kept in f16.
    ///
    /// Errors: no threads asked for, or the system gives none.
    pub fn new(model: Arc<Model>, threads: usize) -> Result<Self> {
        Ok(Self::with(model, Cpu::new(Kernels::best(), Pool::new(threads)?)))
    }
}

impl<S: Kept<f32> + CacheNumber> CpuDevice<S> {
    /// The same with a chosen arithmetic.
    pub fn with(model: Arc<Model>, arithmetic: Cpu<S>) -> Self {
        Self { model, arithmetic, slots: Vec::new(), spare: Vec::new() }
    }

    /// Runs a batch in which no slot comes twice, in one pass.
    fn run(&mut self, batch: &[Work<'_>]) -> Result<Vec<Vec<f32>>> {
        let Self { model, arithmetic, slots, .. } = self;
        let mut caches: Vec<Option<&mut Cache<S>>> = slots.iter_mut().map(Option::as_mut).collect();
        let mut pieces = Vec::new();
        for &Work { slot, tokens, logits } in batch {
            let cache = caches.get_mut(slot.0).and_then(Option::take);
            let cache = cache.ok_or(RuntimeError::NoSlot { slot: slot.0 })?;
            pieces.push(Piece { cache, tokens, wanted: logits });
        }
        // A fault of this program ends the answer and not the process. What it leaves in the caches
        // are staged rows, which the next pass drops.
        let pass = || forward_together(model, arithmetic, &mut pieces, &mut NoObserver);
        catch_unwind(AssertUnwindSafe(pass)).unwrap_or(Err(RuntimeError::Panic))
    }
}

impl<S: Kept<f32> + CacheNumber> Device for CpuDevice<S> {
    fn description(&self) -> String {
        let threads = self.arithmetic.pool.threads();
        let plural = if threads == 1 { "" } else { "s" };
        format!("cpu, {}, {threads} thread{plural}", self.arithmetic.name())
    }

    fn memory_plan(&self) -> MemoryPlan {
        self.model.memory_plan(size_of::<S>())
    }

    fn traffic(&self) -> Traffic {
        let Model { config, weights, .. } = &*self.model;
        let kept = size_of::<S>() as f64;
        Traffic::of(weights, &config.text, Matrix::rows, Matrix::bytes, kept)
    }

    fn read_bandwidth(&mut self) -> Result<f64> {
        Ok(read::bandwidth(&self.arithmetic.pool, &self.model.weights))
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

    fn most_tried(&self) -> usize {
        MOST_TRIED
    }

    fn try_tokens(&mut self, slot: Slot, tokens: &[u32]) -> Result<Box<dyn Trial + '_>> {
        self.try_together(slot, tokens)
    }
}

impl<S: Kept<f32> + CacheNumber> CpuDevice<S> {
    fn cache(&self, slot: Slot) -> Result<&Cache<S>> {
        let cache = self.slots.get(slot.0).and_then(Option::as_ref);
        cache.ok_or(RuntimeError::NoSlot { slot: slot.0 })
    }

    fn cache_mut(&mut self, slot: Slot) -> Result<&mut Cache<S>> {
        let cache = self.slots.get_mut(slot.0).and_then(Option::as_mut);
        cache.ok_or(RuntimeError::NoSlot { slot: slot.0 })
    }
}

impl<S: Kept<f32> + CacheNumber> SlotMemory for CpuDevice<S> {
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
        let (kernels, kept) = (self.arithmetic.name(), S::NAME);
        format!("cpu, {kernels}, {values}, keys and values in {kept} {order}-endian")
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
