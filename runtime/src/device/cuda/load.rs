//! What a model must be to run on a card, and how it gets there.

use super::layout::{self, Layout};
use super::plan::{KvType, Plan, TablePlace};
use super::upload::Uploader;
use crate::error::{Result, RuntimeError};
use crate::weights::LoadProgress;
use std::sync::Arc;
use std::time::{Duration, Instant};
use w4pack_format::checkpoint::Checkpoint;
use w4pack_format::config::Config;
use w4pack_kernels::cuda::parameters::{MOST_CHAINED, Matrix};
use w4pack_kernels::cuda::{Arena, Gpu, Pinned};

/// How long loading took and what it moved.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LoadReport {
    /// Bytes of matrices.
    pub bytes: u64,
    /// From the first read until the last byte was on the card.
    pub duration: Duration,
}

/// The per-layer table as its place has it.
pub(super) enum Table {
    None,
    OnCard(Matrix),
    Host { matrix: Matrix, _memory: Pinned },
    Disk { checkpoint: Arc<Checkpoint>, words: Pinned },
}

/// Brings every byte to its place; the per-layer table last.
#[allow(clippy::too_many_arguments)]
pub(super) fn fill(
    gpu: &Gpu,
    checkpoint: &Arc<Checkpoint>,
    layout: &Layout,
    arena: &Arena,
    plan: &Plan,
    bytes: u64,
    progress: &mut dyn FnMut(LoadProgress),
    begin: Instant,
) -> Result<(Table, LoadReport)> {
    // SAFETY: the whole arena. NaN everywhere: what is read before it is written shows.
    unsafe { gpu.fill(arena.address(), 0xff, arena.bytes())? };
    for (address, vector) in &layout.vectors.contents {
        // SAFETY: the layout gave the vector this address.
        unsafe { gpu.upload(*address, bytemuck::cast_slice(vector))? };
    }
    // SAFETY: counters of the layout.
    unsafe {
        gpu.fill(layout.work.finished, 0, 4 * layout.heads)?;
        gpu.fill(layout.work.done, 0, 4 * MOST_CHAINED)?;
    }
    let total = match plan.table {
        TablePlace::Disk => bytes - table_stored_bytes(layout),
        _ => bytes,
    };
    let mut uploader = Uploader::new(gpu, checkpoint, total, progress)?;
    let table_values = layout.weights.per_layer_inputs.as_ref().map(|inputs| &inputs.embed_tokens);
    layout.weights.clone().try_map(&mut |placed: layout::Placed| {
        // A matrix without an address is the table, and not on the card.
        if placed.matrix.values != 0 { uploader.matrix(&placed) } else { Ok(()) }
    })?;
    let table = match (table_values, plan.table) {
        (None, _) => Table::None,
        (Some(placed), TablePlace::Gpu) => Table::OnCard(placed.matrix),
        (Some(placed), TablePlace::Host) => {
            let memory = uploader.pinned(&placed.stored)?;
            let values = memory.device_address()?;
            let [words, _] = layout::row_bytes(&placed.stored);
            let steps = values + (words * placed.stored.rows) as u64;
            let kind = layout::kind_of(placed.stored.storage) as i32;
            let (rows, columns) = (placed.stored.rows as i32, placed.stored.columns as i32);
            Table::Host {
                matrix: Matrix { values, steps, rows, columns, kind, padding: 0 },
                _memory: memory,
            }
        }
        (Some(placed), TablePlace::Disk) => {
            let row: usize = layout::row_bytes(&placed.stored).iter().sum();
            let words = gpu.pinned(layout.work.table_rows * row)?;
            Table::Disk { checkpoint: checkpoint.clone(), words }
        }
    };
    let bytes = uploader.seen.bytes;
    gpu.wait()?;
    Ok((table, LoadReport { bytes, duration: begin.elapsed() }))
}

fn table_stored_bytes(layout: &Layout) -> u64 {
    let inputs = layout.weights.per_layer_inputs.as_ref();
    inputs.map_or(0, |inputs| inputs.embed_tokens.stored.bytes())
}

/// What the kernels do not cover is refused in words.
pub(super) fn check_shape(
    config: &Config,
    weights: &crate::model::Weights<crate::weights::Stored>,
    kv: KvType,
) -> Result<()> {
    let refuse = |problem: String| Err(RuntimeError::CudaShape { problem });
    let text = &config.text;
    for (number, layer) in text.layers.iter().enumerate() {
        if ![32, 64, 256, 512].contains(&layer.head_dim) {
            return refuse(format!(
                "layer {number} has heads of {}, there are kernels for 32, 64, 256 and 512",
                layer.head_dim
            ));
        }
        if weights.layers[number].experts.is_some() {
            return refuse(format!("layer {number} has experts, there are no kernels for them"));
        }
        let own = weights.layers[number].keys_and_values.as_ref();
        if own.is_some_and(|own| own.v_proj.is_none()) {
            return refuse(format!("layer {number} takes its values from its keys' projection"));
        }
        let largest = own.map_or(0.0, |own| own.k_norm.iter().fold(0.0f32, |m, w| m.max(w.abs())));
        let bound = largest * (layer.head_dim as f32).sqrt();
        if kv != KvType::Bf16 && bound >= 65504.0 {
            return refuse(format!(
                "keys of layer {number} may reach {bound}, beyond f16; give --kv bf16"
            ));
        }
    }
    let mut problem = None;
    let _ = weights.clone().try_map(&mut |stored| {
        if stored.columns % 32 != 0 {
            problem = Some(format!(
                "`{}` has {} columns, no multiple of 32",
                stored.name, stored.columns
            ));
        }
        Ok::<_, RuntimeError>(stored)
    });
    match problem {
        Some(problem) => refuse(problem),
        None => Ok(()),
    }
}
