//! The CPU: the forward pass over the kernels, on a pool of threads.

use super::{Device, Slot, Work};
use crate::arithmetic::Arithmetic;
use crate::cache::Cache;
use crate::error::{Result, RuntimeError};
use crate::forward::{NoObserver, forward};
use crate::model::{MemoryPlan, Model};
use crate::weights::Matrix;
use rayon::prelude::*;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread::available_parallelism;
use w4pack_kernels::cpu::Kernels;

/// Arithmetic by the kernels, rows shared among the threads of the current rayon pool.
#[derive(Debug, Clone, Copy)]
pub struct Cpu {
    kernels: &'static Kernels,
}

impl Cpu {
    /// Arithmetic by the given kernels.
    pub fn new(kernels: &'static Kernels) -> Self {
        Self { kernels }
    }
}

/// Rows below which a matrix is not worth sharing among more threads.
const LEAST_ROWS: usize = 32;

impl Arithmetic for Cpu {
    type Number = f32;

    fn table_row(&self, table: &Matrix, row: usize, out: &mut [f32]) {
        table.view().row_values(row, out);
    }

    fn linear(&self, weight: &Matrix, x: &[f32]) -> Vec<f32> {
        let view = weight.view();
        let tokens = x.len() / view.columns();
        // Outputs of a row lie together while threads write them: [rows, tokens].
        let mut by_row = vec![0.0; view.rows() * tokens];
        let pieces = 4 * rayon::current_num_threads();
        let rows = view.rows().div_ceil(pieces).max(LEAST_ROWS);
        by_row.par_chunks_mut(rows * tokens).enumerate().for_each(|(piece, out)| {
            self.kernels.multiply(&view, piece * rows, x, out);
        });
        if tokens == 1 {
            return by_row;
        }
        let mut out = vec![0.0; by_row.len()];
        out.par_chunks_mut(view.rows()).enumerate().for_each(|(token, out)| {
            for (out, row) in out.iter_mut().zip(by_row.chunks_exact(tokens)) {
                *out = row[token];
            }
        });
        out
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
}

impl CpuDevice {
    /// A device over `model` with `threads` workers.
    ///
    /// Errors: no threads asked for, or the system gives none.
    pub fn new(model: Arc<Model>, threads: usize) -> Result<Self> {
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
        let arithmetic = Cpu::new(Kernels::best());
        Ok(Self { model, arithmetic, pool, slots: Vec::new() })
    }

    fn run(&mut self, work: &Work<'_>) -> Result<Vec<f32>> {
        let Self { model, arithmetic, pool, slots } = self;
        let cache = slots
            .get_mut(work.slot.0)
            .and_then(Option::as_mut)
            .ok_or(RuntimeError::NoSlot { slot: work.slot.0 })?;
        let (tokens, wanted) = (work.tokens, work.logits);
        pool.install(|| forward(model, arithmetic, cache, tokens, wanted, &mut NoObserver))
    }
}

impl Device for CpuDevice {
    fn description(&self) -> String {
        let threads = self.pool.current_num_threads();
        let plural = if threads == 1 { "" } else { "s" };
        format!("cpu, {}, {threads} thread{plural}", self.arithmetic.kernels.name())
    }

    fn memory_plan(&self) -> MemoryPlan {
        self.model.memory_plan()
    }

    fn make_slot(&mut self, context: usize) -> Result<Slot> {
        let cache = Some(Cache::new(&self.model.config.text, context));
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
        cache.map(drop).ok_or(RuntimeError::NoSlot { slot: slot.0 })
    }

    fn step(&mut self, batch: &[Work<'_>]) -> Result<Vec<Vec<f32>>> {
        batch.iter().map(|work| self.run(work)).collect()
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
