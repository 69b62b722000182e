//! Reads the matrices that a survey has found.

use super::buffer::{Arena, Buffer};
use super::in_file::RowsInFile;
use super::inventory::{Storage, file_of};
use super::matrix::{Matrix, Scales, WeightValues};
use super::survey::{PIECE, Stored, Survey, survey};
use crate::error::{Result, RuntimeError};
use crate::model::Model;
use bytemuck::Pod;
use std::sync::Arc;
use w4pack_format::checkpoint::Checkpoint;
use w4pack_format::group::GROUP;
use w4pack_format::scale::ScaleDtype;

// Tensors are little-endian and are read straight into the memory of their elements.
#[cfg(target_endian = "big")]
compile_error!("w4pack reads checkpoints on little-endian machines only");

/// How a checkpoint is loaded.
#[derive(Debug, Clone, Copy, Default)]
pub struct LoadOptions {
    /// What packed weights stand for.
    pub weights: WeightValues,
}

/// [`load`], but the rows of the per-layer table stay in the file until they are wanted.
pub(crate) fn load_without_table(
    checkpoint: &Arc<Checkpoint>,
    options: &LoadOptions,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<Model> {
    let Survey { config, weights, notes, bytes, matrices } = survey(checkpoint)?;
    let table = weights.per_layer_inputs.as_ref().map(|inputs| inputs.embed_tokens.clone());
    let left_out = table.as_ref().map_or(0, Stored::bytes);
    let mut loader = Loader::new(checkpoint, options, progress, bytes - left_out, matrices)?;
    let weights = weights.try_map(&mut |stored| match &table {
        Some(table) if *table == stored => {
            let rows = RowsInFile::new(checkpoint.clone(), stored, options.weights);
            Ok(Matrix::InFile(rows))
        }
        _ => loader.matrix(&stored),
    })?;
    Ok(Model { config, weights, notes })
}

/// How far loading has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadProgress {
    /// Bytes read so far.
    pub bytes: u64,
    /// Bytes to read in all.
    pub total: u64,
}

pub(crate) fn load(
    checkpoint: &Checkpoint,
    options: &LoadOptions,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<Model> {
    let Survey { config, weights, notes, bytes, matrices } = survey(checkpoint)?;
    let mut loader = Loader::new(checkpoint, options, progress, bytes, matrices)?;
    let weights = weights.try_map(&mut |stored| loader.matrix(&stored))?;
    Ok(Model { config, weights, notes })
}

/// A step that makes no number of its codes.
pub(super) fn scale_fault(
    file: String,
    tensor: String,
    row: usize,
    group: usize,
    value: f32,
) -> RuntimeError {
    RuntimeError::Scale { file, tensor, row, group, value }
}

struct Loader<'a> {
    checkpoint: &'a Checkpoint,
    options: &'a LoadOptions,
    progress: &'a mut dyn FnMut(LoadProgress),
    seen: LoadProgress,
    memory: Arena,
}

impl<'a> Loader<'a> {
    /// For so many matrices of so many bytes.
    fn new(
        checkpoint: &'a Checkpoint,
        options: &'a LoadOptions,
        progress: &'a mut dyn FnMut(LoadProgress),
        bytes: u64,
        matrices: usize,
    ) -> Result<Self> {
        let seen = LoadProgress { bytes: 0, total: bytes };
        // Words and steps of each.
        let memory = Arena::new(bytes as usize, 2 * matrices);
        let no_memory =
            || RuntimeError::Memory { what: "the model's matrices".into(), bytes: bytes as usize };
        let memory = memory.ok_or_else(no_memory)?;
        Ok(Self { checkpoint, options, progress, seen, memory })
    }

    fn matrix(&mut self, stored: &Stored) -> Result<Matrix> {
        let Stored { name, rows, columns, storage } = stored;
        let (rows, columns) = (*rows, *columns);
        match storage {
            Storage::Plain => {
                let values = self.read(name, rows * columns)?;
                Ok(Matrix::Bf16 { rows, columns, values })
            }
            Storage::Stacked { first_row } => {
                let values = self.read_from(name, first_row * columns, rows * columns)?;
                Ok(Matrix::Bf16 { rows, columns, values })
            }
            Storage::Packed(dtype) => {
                let words = self.read(&format!("{name}.weight_packed"), rows * columns / 8)?;
                let scales = self.scales(name, *dtype, rows, columns)?;
                Ok(Matrix::Packed { rows, columns, words, scales, values: self.options.weights })
            }
        }
    }

    fn scales(
        &mut self,
        module: &str,
        dtype: ScaleDtype,
        rows: usize,
        columns: usize,
    ) -> Result<Scales> {
        let tensor = format!("{module}.weight_scale");
        let groups = columns / GROUP;
        let scales = match dtype {
            ScaleDtype::F16 => Scales::F16(self.read(&tensor, rows * groups)?),
            ScaleDtype::BF16 => Scales::Bf16(self.read(&tensor, rows * groups)?),
            ScaleDtype::F32 => Scales::F32(self.read(&tensor, rows * groups)?),
        };
        match scales.first_fault() {
            None => Ok(scales),
            Some((index, value)) => {
                let file = file_of(self.checkpoint, &tensor);
                Err(scale_fault(file, tensor, index / groups, index % groups, value))
            }
        }
    }

    /// The elements of a tensor whose size the inventory has checked.
    fn read<T: Pod>(&mut self, tensor: &str, elements: usize) -> Result<Buffer<T>> {
        self.read_from(tensor, 0, elements)
    }

    /// The same for some of them, from number `begin` on.
    fn read_from<T: Pod>(
        &mut self,
        tensor: &str,
        begin: usize,
        elements: usize,
    ) -> Result<Buffer<T>> {
        let no_memory = || RuntimeError::Memory {
            what: format!("tensor `{tensor}`"),
            bytes: elements * size_of::<T>(),
        };
        let mut values = self.memory.take(elements).ok_or_else(no_memory)?;
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut values);
        let mut first = (begin * size_of::<T>()) as u64;
        for piece in bytes.chunks_mut(PIECE) {
            self.checkpoint.read_range(tensor, first, piece)?;
            first += piece.len() as u64;
            self.seen.bytes += piece.len() as u64;
            (self.progress)(self.seen);
        }
        Ok(values)
    }
}
