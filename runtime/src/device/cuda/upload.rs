//! Weights from their file to the card, through pinned memory.
//!
//! Two pinned buffers: while one is copied to the card, the other is filled, by reads on all
//! threads. Words and steps arrive as they lie in the file.

use super::layout::Placed;
use crate::error::{Result, RuntimeError};
use crate::weights::{LoadProgress, Storage, Stored, tensors_of};
use rayon::prelude::*;
use w4pack_format::checkpoint::Checkpoint;
use w4pack_format::scale::ScaleDtype;
use w4pack_kernels::cuda::{Address, Gpu, Pinned};

/// Bytes of a pinned buffer.
const BUFFER: usize = 32 << 20;

/// Bytes of one read.
const READ: usize = 2 << 20;

pub(super) struct Uploader<'a> {
    gpu: &'a Gpu,
    checkpoint: &'a Checkpoint,
    buffers: [Pinned; 2],
    /// Which buffer is filled next.
    next: usize,
    progress: &'a mut dyn FnMut(LoadProgress),
    pub seen: LoadProgress,
}

impl<'a> Uploader<'a> {
    pub fn new(
        gpu: &'a Gpu,
        checkpoint: &'a Checkpoint,
        total: u64,
        progress: &'a mut dyn FnMut(LoadProgress),
    ) -> Result<Self> {
        let buffers = [gpu.pinned(BUFFER)?, gpu.pinned(BUFFER)?];
        let seen = LoadProgress { bytes: 0, total };
        Ok(Self { gpu, checkpoint, buffers, next: 0, progress, seen })
    }

    /// A matrix to its place.
    pub fn matrix(&mut self, placed: &Placed) -> Result<()> {
        let targets = [placed.matrix.values, placed.matrix.steps];
        for (tensor, target) in tensors_of(&placed.stored).iter().zip(targets) {
            let size = tensor_bytes(self.checkpoint, tensor);
            let mut first = 0;
            while first < size {
                let length = (size - first).min(BUFFER);
                let buffer = &mut self.buffers[self.next].bytes_mut()[..length];
                read(self.checkpoint, &placed.stored, tensor, first, buffer)?;
                // The other buffer has been copied when this returns; the copy of this one then
                // goes on while the other is filled.
                self.gpu.wait()?;
                // SAFETY: the plan gave this tensor these bytes of the arena.
                unsafe { self.gpu.upload(target + first as Address, buffer)? };
                self.next = 1 - self.next;
                first += length;
                self.count(length);
            }
        }
        Ok(())
    }

    /// A matrix into pinned memory, its tensors one after another.
    pub fn pinned(&mut self, stored: &Stored) -> Result<Pinned> {
        let tensors = tensors_of(stored);
        let total = tensors.iter().map(|tensor| tensor_bytes(self.checkpoint, tensor)).sum();
        let mut memory = self.gpu.pinned(total)?;
        let mut rest = memory.bytes_mut();
        for tensor in &tensors {
            let size = tensor_bytes(self.checkpoint, tensor);
            let (mut part, behind) = rest.split_at_mut(size);
            rest = behind;
            let mut first = 0;
            while !part.is_empty() {
                let (piece, more) = part.split_at_mut(part.len().min(BUFFER));
                read(self.checkpoint, stored, tensor, first, piece)?;
                first += piece.len();
                self.count(piece.len());
                part = more;
            }
        }
        Ok(memory)
    }

    fn count(&mut self, bytes: usize) {
        self.seen.bytes += bytes as u64;
        (self.progress)(self.seen);
    }
}

fn tensor_bytes(checkpoint: &Checkpoint, tensor: &str) -> usize {
    checkpoint.tensor(tensor).map_or(0, |found| (found.info.end - found.info.begin) as usize)
}

/// Reads a range of a tensor, in pieces on all threads; steps are checked.
fn read(
    checkpoint: &Checkpoint,
    stored: &Stored,
    tensor: &str,
    first: usize,
    buffer: &mut [u8],
) -> Result<()> {
    let steps = match stored.storage {
        Storage::Packed(dtype) if tensor.ends_with(".weight_scale") => Some(dtype),
        _ => None,
    };
    buffer.par_chunks_mut(READ).enumerate().try_for_each(|(piece, bytes)| {
        let begin = first + piece * READ;
        checkpoint.read_range(tensor, begin as u64, bytes)?;
        let Some(dtype) = steps else { return Ok(()) };
        match first_fault(dtype, bytes) {
            None => Ok(()),
            Some((index, value)) => {
                let index = begin / dtype.bytes() + index;
                let groups = stored.columns / 32;
                Err(RuntimeError::Scale {
                    file: crate::weights::file_of(checkpoint, tensor),
                    tensor: tensor.into(),
                    row: index / groups,
                    group: index % groups,
                    value,
                })
            }
        }
    })
}

/// The first step that makes no number of its codes: 0, NaN or infinite.
fn first_fault(dtype: ScaleDtype, bytes: &[u8]) -> Option<(usize, f32)> {
    // By bits: there are 145 million steps in an E2B.
    let half = |exponent: u16| {
        let is_faulty = |bits: u16| bits & 0x7fff == 0 || bits & exponent == exponent;
        bytes.as_chunks().0.iter().position(|&bytes| is_faulty(u16::from_le_bytes(bytes)))
    };
    let index = match dtype {
        ScaleDtype::F16 => half(0x7c00),
        ScaleDtype::BF16 => half(0x7f80),
        ScaleDtype::F32 => {
            let is_faulty = |step: f32| step == 0.0 || !step.is_finite();
            bytes.as_chunks().0.iter().position(|&bytes| is_faulty(f32::from_le_bytes(bytes)))
        }
    };
    index.map(|index| (index, dtype.read(&bytes[index * dtype.bytes()..])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_faulty_step_is_found_in_every_dtype() {
        for dtype in ScaleDtype::ALL {
            for fault in [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
                let mut bytes = Vec::new();
                for step in [1.0, -0.5, 6e-8, -6e-5, 65504.0] {
                    dtype.write(step, &mut bytes);
                }
                assert_eq!(first_fault(dtype, &bytes), None);
                dtype.write(fault, &mut bytes);
                let (index, value) = first_fault(dtype, &bytes).expect("a fault");
                assert_eq!(index, 5);
                assert!(value.is_nan() == fault.is_nan() && (value == fault || value.is_nan()));
            }
        }
    }
}
