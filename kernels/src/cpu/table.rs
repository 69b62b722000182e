//! The choice of instruction set: a table of function pointers, picked once.

use super::activations::{Activations, Precision};
use super::leaves;
use super::matrix::Matrix;
use super::output::Output;

/// Kernels that this processor does not have.
#[derive(Debug, thiserror::Error)]
#[error("this processor has no kernels `{name}`, it has {}", quoted(available))]
pub struct NoKernels {
    /// The name that was asked for.
    pub name: String,
    /// The names that there are, slowest first.
    pub available: Vec<&'static str>,
}

fn quoted(names: &[&str]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// The kernels of one instruction set that this machine has.
///
/// A table can only be had from [`Kernels::best`] or [`Kernels::available`], which look at the
/// processor first; that is what makes calling its functions sound.
#[derive(Debug)]
pub struct Kernels {
    name: &'static str,
    prepare: unsafe fn(&mut Activations<'_>),
    multiply: unsafe fn(&Matrix<'_>, usize, &Activations<'_>, &mut Output<'_>),
    dot: unsafe fn(&[f32], &[f32]) -> f32,
    add_scaled: unsafe fn(f32, &[f32], &mut [f32]),
}

/// There is one table of each name.
impl PartialEq for Kernels {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Kernels {}

static PORTABLE: Kernels = Kernels {
    name: "portable",
    prepare: leaves::baseline::prepare,
    multiply: leaves::baseline::multiply,
    dot: leaves::baseline::dot,
    add_scaled: leaves::baseline::add_scaled,
};

#[cfg(target_arch = "x86_64")]
static AVX2: Kernels = Kernels {
    name: "avx2",
    prepare: leaves::avx2::prepare,
    multiply: leaves::avx2::multiply,
    dot: leaves::avx2::dot,
    add_scaled: leaves::avx2::add_scaled,
};

#[cfg(target_arch = "x86_64")]
static AVX512: Kernels = Kernels {
    name: "avx512",
    prepare: leaves::avx512::prepare,
    multiply: leaves::avx512::multiply,
    dot: leaves::avx512::dot,
    add_scaled: leaves::avx512::add_scaled,
};

#[cfg(target_arch = "aarch64")]
static NEON: Kernels = Kernels {
    name: "neon",
    prepare: leaves::neon::prepare,
    multiply: leaves::neon::multiply,
    dot: leaves::neon::dot,
    add_scaled: leaves::neon::add_scaled,
};

/// The tables beyond the portable one that this processor can run.
#[cfg(target_arch = "x86_64")]
fn detected() -> Vec<&'static Kernels> {
    let avx2 = is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c");
    let avx512 = avx2
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vnni");
    [(avx2, &AVX2), (avx512, &AVX512)]
        .into_iter()
        .filter_map(|(there, table)| there.then_some(table))
        .collect()
}

/// NEON belongs to every processor of this kind.
#[cfg(target_arch = "aarch64")]
fn detected() -> Vec<&'static Kernels> {
    vec![&NEON]
}

/// Other processors have the portable table only.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
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

    /// The table of that name. Errors: there is none, or this processor cannot run it.
    pub fn named(name: &str) -> Result<&'static Kernels, NoKernels> {
        let available = Self::available();
        let names = available.iter().map(|kernels| kernels.name).collect();
        let found = available.into_iter().find(|kernels| kernels.name == name);
        found.ok_or(NoKernels { name: name.into(), available: names })
    }

    /// `portable`, `avx2`, `avx512` or `neon`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Makes the activations `x` (`[tokens, columns]`) ready to be multiplied with `matrix`, in the
    /// given precision where its codes are what is multiplied. All tables give the same bits.
    ///
    /// # Panics
    /// When `x` is no whole number of activations, or empty.
    pub fn prepare<'x>(
        &self,
        matrix: &Matrix<'_>,
        x: &'x [f32],
        precision: Precision,
    ) -> Activations<'x> {
        let mut activations = Activations::new(matrix, x, precision);
        // SAFETY: the table exists only where its instruction set was detected.
        unsafe { (self.prepare)(&mut activations) }
        activations
    }

    /// Multiplies the rows of `matrix` from `first_row` on, as many as `out` has, with all of `x`.
    /// A matrix that is read by codes has the same bits from all tables.
    ///
    /// # Panics
    /// When `x` was prepared for a matrix of another kind, `out` has another number of tokens, or
    /// rows lie outside.
    pub fn multiply(
        &self,
        matrix: &Matrix<'_>,
        first_row: usize,
        x: &Activations<'_>,
        mut out: Output<'_>,
    ) {
        assert!(x.fits(matrix), "activations prepared for another matrix");
        assert_eq!(x.tokens(), out.tokens(), "tokens");
        assert!(first_row + out.rows() <= matrix.rows(), "rows");
        if out.rows() == 0 {
            return;
        }
        // SAFETY: the table exists only where its instruction set was detected.
        unsafe { (self.multiply)(matrix, first_row, x, &mut out) }
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
