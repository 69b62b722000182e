//! A weight matrix as it lies in the checkpoint.

use super::buffer::Buffer;
use super::in_file::RowsInFile;
use half::{bf16, f16};
use w4pack_format::group::GROUP;
use w4pack_kernels::cpu;

/// Which value a code and its step stand for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WeightValues {
    /// code·step, unrounded.
    #[default]
    Codes,
    /// code·step rounded once to bf16, which is the value Google stores.
    Bf16,
}

/// The steps of a packed matrix, in the dtype of the file, `[rows, columns / 32]`.
#[derive(Debug, Clone, PartialEq)]
pub enum Scales {
    /// IEEE half precision.
    F16(Buffer<f16>),
    /// bfloat16.
    Bf16(Buffer<bf16>),
    /// Single precision.
    F32(Buffer<f32>),
}

/// A weight matrix `[rows, columns]`, row-major.
#[derive(Debug, Clone, PartialEq)]
pub enum Matrix {
    /// Codes of 4 bits and a step for every 32 of them.
    Packed {
        /// Outputs.
        rows: usize,
        /// Inputs, a multiple of 32.
        columns: usize,
        /// `[rows, columns / 8]`.
        words: Buffer<u32>,
        /// `[rows, columns / 32]`.
        scales: Scales,
        /// What a product of both stands for.
        values: WeightValues,
    },
    /// Plain values.
    Bf16 {
        /// Outputs.
        rows: usize,
        /// Inputs.
        columns: usize,
        /// `[rows, columns]`.
        values: Buffer<bf16>,
    },
    /// Not in memory. The per-layer table only: it is never multiplied, its rows are gathered.
    InFile(RowsInFile),
}

impl Matrix {
    /// Number of rows: outputs of a linear, entries of a table.
    pub fn rows(&self) -> usize {
        match self {
            Matrix::Packed { rows, .. } | Matrix::Bf16 { rows, .. } => *rows,
            Matrix::InFile(table) => table.rows(),
        }
    }

    /// Number of columns: inputs of a linear, width of a table.
    pub fn columns(&self) -> usize {
        match self {
            Matrix::Packed { columns, .. } | Matrix::Bf16 { columns, .. } => *columns,
            Matrix::InFile(table) => table.columns(),
        }
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> usize {
        match self {
            Matrix::Packed { words, scales, .. } => 4 * words.len() + scales.bytes(),
            Matrix::Bf16 { values, .. } => 2 * values.len(),
            Matrix::InFile(_) => 0,
        }
    }

    /// Its bytes, as they lie in memory.
    pub fn memory(&self) -> Vec<&[u8]> {
        match self {
            Matrix::Packed { words, scales, .. } => {
                let scales = match scales {
                    Scales::F16(steps) => bytemuck::cast_slice::<_, u8>(steps),
                    Scales::Bf16(steps) => bytemuck::cast_slice::<_, u8>(steps),
                    Scales::F32(steps) => bytemuck::cast_slice::<_, u8>(steps),
                };
                vec![bytemuck::cast_slice(words), scales]
            }
            Matrix::Bf16 { values, .. } => vec![bytemuck::cast_slice(values)],
            Matrix::InFile(_) => Vec::new(),
        }
    }

    /// The step of a group of a packed matrix; 1 for plain values.
    pub fn step(&self, row: usize, group: usize) -> f32 {
        match self {
            Matrix::Packed { columns, scales, .. } => scales.get(row * (columns / GROUP) + group),
            Matrix::Bf16 { .. } | Matrix::InFile(_) => 1.0,
        }
    }

    /// Whether its values are products rounded to bf16.
    pub fn is_rounded(&self) -> bool {
        match self {
            Matrix::Packed { values, .. } => *values == WeightValues::Bf16,
            Matrix::Bf16 { .. } => false,
            Matrix::InFile(table) => table.is_rounded(),
        }
    }

    /// The matrix as the kernels take it.
    ///
    /// # Panics
    /// When it is not in memory: see [`RowsInFile::gather`].
    pub fn view(&self) -> cpu::Matrix<'_> {
        let view = match self {
            Matrix::Packed { words, scales, values, .. } => cpu::Values::Packed {
                words,
                steps: match scales {
                    Scales::F16(steps) => cpu::Steps::F16(steps),
                    Scales::Bf16(steps) => cpu::Steps::Bf16(steps),
                    Scales::F32(steps) => cpu::Steps::F32(steps),
                },
                round_to_bf16: *values == WeightValues::Bf16,
            },
            Matrix::Bf16 { values, .. } => cpu::Values::Bf16(values),
            Matrix::InFile(table) => panic!("rows of {table:?} were not gathered"),
        };
        cpu::Matrix::new(self.rows(), self.columns(), view)
    }
}

impl Scales {
    /// Number of steps.
    pub fn len(&self) -> usize {
        match self {
            Scales::F16(steps) => steps.len(),
            Scales::Bf16(steps) => steps.len(),
            Scales::F32(steps) => steps.len(),
        }
    }

    /// Whether there is no step at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> usize {
        match self {
            Scales::F16(_) | Scales::Bf16(_) => 2 * self.len(),
            Scales::F32(_) => 4 * self.len(),
        }
    }

    /// A step, exactly.
    ///
    /// # Panics
    /// When there is no such step.
    pub fn get(&self, index: usize) -> f32 {
        match self {
            Scales::F16(steps) => steps[index].to_f32(),
            Scales::Bf16(steps) => steps[index].to_f32(),
            Scales::F32(steps) => steps[index],
        }
    }

    /// The first step that makes no number of its codes: 0, NaN or infinite.
    pub fn first_fault(&self) -> Option<(usize, f32)> {
        // By bits: there are 145 million of them in an E2B.
        let half = |bits: u16, exponent: u16| bits & 0x7fff == 0 || bits & exponent == exponent;
        let index = match self {
            Scales::F16(steps) => steps.iter().position(|step| half(step.to_bits(), 0x7c00)),
            Scales::Bf16(steps) => steps.iter().position(|step| half(step.to_bits(), 0x7f80)),
            Scales::F32(steps) => steps.iter().position(|step| *step == 0.0 || !step.is_finite()),
        };
        index.map(|index| (index, self.get(index)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_faulty_step_is_found_in_every_dtype() {
        let sound = [1.0, -0.5, 6e-8, -6e-5, 65504.0];
        for fault in [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
            let steps = [&sound[..], &[fault], &sound].concat();
            for (sound, faulty) in of_every_dtype(&sound).iter().zip(&of_every_dtype(&steps)) {
                assert_eq!(sound.first_fault(), None);
                let (index, value) = faulty.first_fault().expect("a fault");
                assert_eq!((index, value.to_bits()), (5, faulty.get(5).to_bits()));
            }
        }
    }

    fn of_every_dtype(steps: &[f32]) -> [Scales; 3] {
        [
            Scales::F16(steps.iter().map(|&step| f16::from_f32(step)).collect::<Vec<_>>().into()),
            Scales::Bf16(steps.iter().map(|&step| bf16::from_f32(step)).collect::<Vec<_>>().into()),
            Scales::F32(steps.to_vec().into()),
        ]
    }
}
