//! A table whose rows are read from the file when they are wanted.
//!
//! For the per-layer table, of which a token needs one row of some 5 KB: half of a packed E2B's
//! bytes need not be in memory.

use super::buffer::Buffer;
use super::inventory::{Storage, file_of};
use super::load::scale_fault;
use super::matrix::{Matrix, Scales, WeightValues};
use super::survey::Stored;
use crate::error::Result;
use bytemuck::{Pod, Zeroable};
use std::fmt;
use std::sync::Arc;
use w4pack_format::checkpoint::Checkpoint;
use w4pack_format::group::GROUP;
use w4pack_format::scale::ScaleDtype;

/// Rows in a file.
#[derive(Clone)]
pub struct RowsInFile {
    checkpoint: Arc<Checkpoint>,
    stored: Stored,
    values: WeightValues,
}

impl RowsInFile {
    pub(super) fn new(checkpoint: Arc<Checkpoint>, stored: Stored, values: WeightValues) -> Self {
        Self { checkpoint, stored, values }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.stored.rows
    }

    /// Number of columns.
    pub fn columns(&self) -> usize {
        self.stored.columns
    }

    /// Whether its values are products rounded to bf16.
    pub fn is_rounded(&self) -> bool {
        matches!(self.stored.storage, Storage::Packed(_)) && self.values == WeightValues::Bf16
    }

    /// The rows of these numbers, in their order, as a matrix.
    ///
    /// Errors: the file cannot be read or has become shorter; a step that makes no number of its
    /// codes.
    pub fn gather(&self, numbers: &[u32]) -> Result<Matrix> {
        let Stored { name, columns, storage, .. } = &self.stored;
        let (rows, columns) = (numbers.len(), *columns);
        let values = |first_row: usize| -> Result<Matrix> {
            let values = self.read(name, first_row, columns, numbers)?;
            Ok(Matrix::Bf16 { rows, columns, values })
        };
        match storage {
            Storage::Plain => values(0),
            Storage::Stacked { first_row } => values(*first_row),
            Storage::Packed(dtype) => {
                let words = self.read(&format!("{name}.weight_packed"), 0, columns / 8, numbers)?;
                let (tensor, groups) = (format!("{name}.weight_scale"), columns / GROUP);
                let scales = match dtype {
                    ScaleDtype::F16 => Scales::F16(self.read(&tensor, 0, groups, numbers)?),
                    ScaleDtype::BF16 => Scales::Bf16(self.read(&tensor, 0, groups, numbers)?),
                    ScaleDtype::F32 => Scales::F32(self.read(&tensor, 0, groups, numbers)?),
                };
                if let Some((index, value)) = scales.first_fault() {
                    let row = numbers[index / groups] as usize;
                    let file = file_of(&self.checkpoint, &tensor);
                    return Err(scale_fault(file, tensor, row, index % groups, value));
                }
                Ok(Matrix::Packed { rows, columns, words, scales, values: self.values })
            }
        }
    }

    /// Rows of `width` elements of a tensor.
    fn read<T: Pod>(
        &self,
        tensor: &str,
        first_row: usize,
        width: usize,
        numbers: &[u32],
    ) -> Result<Buffer<T>> {
        let mut elements = vec![<T as Zeroable>::zeroed(); numbers.len() * width];
        for (row, &number) in elements.chunks_exact_mut(width).zip(numbers) {
            let begin = (first_row + number as usize) * width * size_of::<T>();
            self.checkpoint.read_range(tensor, begin as u64, bytemuck::cast_slice_mut(row))?;
        }
        Ok(elements.into())
    }
}

impl fmt::Debug for RowsInFile {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("RowsInFile").field(&self.stored).finish()
    }
}

/// Two of them are equal if they lie in the same place.
impl PartialEq for RowsInFile {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.checkpoint, &other.checkpoint)
            && self.stored == other.stored
            && self.values == other.values
    }
}
