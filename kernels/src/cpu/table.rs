//! The choice of instruction set: a table of function pointers, picked once.

use super::leaves;
use super::matrix::Matrix;

/// The kernels of one instruction set that this machine has.
///
/// A table can only be had from [`Kernels::best`] or [`Kernels::available`], which look at the
/// processor first; that is what makes calling its functions sound.
#[derive(Debug)]
pub struct Kernels {
    name: &'static str,
    multiply: unsafe fn(&Matrix<'_>, usize, &[f32], &mut [f32]),
    dot: unsafe fn(&[f32], &[f32]) -> f32,
    add_scaled: unsafe fn(f32, &[f32], &mut [f32]),
}

static PORTABLE: Kernels = Kernels {
    name: "portable",
    multiply: leaves::baseline::multiply,
    dot: leaves::baseline::dot,
    add_scaled: leaves::baseline::add_scaled,
};

#[cfg(target_arch = "x86_64")]
static AVX2: Kernels = Kernels {
    name: "avx2",
    multiply: leaves::avx2::multiply,
    dot: leaves::avx2::dot,
    add_scaled: leaves::avx2::add_scaled,
};

#[cfg(target_arch = "x86_64")]
static AVX512: Kernels = Kernels {
    name: "avx512",
    multiply: leaves::avx512::multiply,
    dot: leaves::avx512::dot,
    add_scaled: leaves::avx512::add_scaled,
};

/// The tables beyond the portable one that this processor can run.
#[cfg(target_arch = "x86_64")]
fn detected() -> Vec<&'static Kernels> {
    let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
    let avx512 = avx2 && is_x86_feature_detected!("avx512f");
    [(avx2, &AVX2), (avx512, &AVX512)]
        .into_iter()
        .filter_map(|(there, table)| there.then_some(table))
        .collect()
}

/// Other processors have the portable table only.
#[cfg(not(target_arch = "x86_64"))]
fn detected() -> Vec<&'static Kernels> {
    Vec::new()
}

impl Kernels {
    /// The tables that this processor can run, slowest first.
    pub fn available() -> Vec<&'static Kernels> {
        let mut tables = vec![&PORTABLE];
        tables.extend(detected());
        tables
    }

    /// The fastest table that this processor can run.
    pub fn best() -> &'static Kernels {
        Self::available().last().expect("the portable table is always there")
    }

    /// `portable`, `avx2` or `avx512`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Multiplies rows `first_row..first_row + out.len() / batch` of `matrix` with `batch`
    /// activations: `x` is `[batch, columns]`, `out` is `[rows, batch]`.
    ///
    /// # Panics
    /// When `x` or `out` is no whole number of activations or rows, or rows lie outside.
    pub fn multiply(&self, matrix: &Matrix<'_>, first_row: usize, x: &[f32], out: &mut [f32]) {
        assert!(matrix.columns() > 0 && !x.is_empty(), "empty operand");
        assert_eq!(x.len() % matrix.columns(), 0, "activations");
        let batch = x.len() / matrix.columns();
        assert_eq!(out.len() % batch, 0, "outputs");
        assert!(first_row + out.len() / batch <= matrix.rows(), "rows");
        // SAFETY: the table exists only where its instruction set was detected.
        unsafe { (self.multiply)(matrix, first_row, x, out) }
    }

    /// The dot product of two equally long slices, summed in the order of the kernels.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn dot(&self, a: &[f32], b: &[f32]) -> f32 {
        assert_eq!(a.len(), b.len(), "operands of a dot product");
        // SAFETY: the table exists only where its instruction set was detected.
        unsafe { (self.dot)(a, b) }
    }

    /// `out += factor·x`, element by element.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn add_scaled(&self, factor: f32, x: &[f32], out: &mut [f32]) {
        assert_eq!(x.len(), out.len(), "operands of a scaled addition");
        // SAFETY: the table exists only where its instruction set was detected.
        unsafe { (self.add_scaled)(factor, x, out) }
    }
}
