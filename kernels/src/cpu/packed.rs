//! Some rows of a packed matrix, as the kernels read them.

use super::matrix::{Matrix, Steps, Values};
use super::numbers::Stored;
use w4pack_format::group::{GROUP, WORDS};

/// Codes and steps of neighbouring rows.
#[derive(Clone, Copy)]
pub(super) struct Packed<'a, S> {
    words: &'a [u32],
    steps: &'a [S],
    /// Groups of a row.
    pub groups: usize,
}

/// Rows with steps of one of the dtypes.
pub(super) enum PackedRows<'a> {
    F16(Packed<'a, half::f16>),
    Bf16(Packed<'a, half::bf16>),
    F32(Packed<'a, f32>),
}

impl<'a> PackedRows<'a> {
    /// `rows` rows of `matrix` from `first` on; `None` if it is not its codes that are multiplied.
    pub fn of(matrix: &Matrix<'a>, first: usize, rows: usize) -> Option<Self> {
        let Values::Packed { words, steps, round_to_bf16: false } = matrix.values() else {
            return None;
        };
        let groups = matrix.columns() / GROUP;
        let range = first * groups..(first + rows) * groups;
        let words = &words[range.start * WORDS..range.end * WORDS];
        Some(match steps {
            Steps::F16(steps) => Self::F16(Packed { words, steps: &steps[range], groups }),
            Steps::Bf16(steps) => Self::Bf16(Packed { words, steps: &steps[range], groups }),
            Steps::F32(steps) => Self::F32(Packed { words, steps: &steps[range], groups }),
        })
    }
}

impl<'a, S: Stored> Packed<'a, S> {
    /// The words and the steps of each row.
    #[inline(always)]
    pub fn iter(&self) -> impl Iterator<Item = (&'a [u32], &'a [S])> {
        let words = self.words.chunks_exact(self.groups * WORDS);
        words.zip(self.steps.chunks_exact(self.groups))
    }

    /// Number of rows.
    #[inline(always)]
    pub fn rows(&self) -> usize {
        self.steps.len() / self.groups
    }

    /// `rows` rows from `first` on, or as many as there are.
    #[inline(always)]
    pub fn some(&self, first: usize, rows: usize) -> Self {
        let end = (first + rows).min(self.rows());
        let range = first * self.groups..end * self.groups;
        let words = &self.words[range.start * WORDS..range.end * WORDS];
        Self { words, steps: &self.steps[range], groups: self.groups }
    }
}
