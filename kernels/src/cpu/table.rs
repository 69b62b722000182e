//! The choice of instruction set: a table of function pointers, picked once.

use super::activations::{Activations, Part, Precision};
#[cfg(target_arch = "x86_64")]
use super::amx;
use super::attention::{POSITIONS, Partial, Segment};
use super::leaves;
use super::matrix::Matrix;
use super::output::Output;
use half::{bf16, f16};

/// Kernels that this processor does not have.
#[derive(Debug, thiserror::Error)]
#[error("this machine has no kernels `{name}`{}, it has {}", in_brackets(*reason), quoted(available))]
pub struct NoKernels {
    /// The name that was asked for.
    pub name: String,
    /// What is missing, where that is known.
    pub reason: Option<&'static str>,
    /// The names that there are, slowest first.
    pub available: Vec<&'static str>,
}

fn quoted(names: &[&str]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

fn in_brackets(reason: Option<&str>) -> String {
    reason.map(|reason| format!(" ({reason})")).unwrap_or_default()
}

/// Attention over positions whose keys and values are numbers `S`.
type Attend<S> = unsafe fn(&[f32], usize, &[Segment<'_, S>], &mut Partial);

/// The kernels of one instruction set that this machine has.
///
/// A table can only be had from [`Kernels::best`], [`Kernels::available`] or [`Kernels::named`], which
/// look at the processor first; that is what makes calling its functions sound.
#[derive(Debug)]
pub struct Kernels {
    pub(super) name: &'static str,
    /// Tokens from which activations are laid out for a matrix unit; [`usize::MAX`] without one.
    pub(super) tiles_from: usize,
    pub(super) prepare: unsafe fn(&mut Part<'_>),
    pub(super) multiply: unsafe fn(&Matrix<'_>, usize, &Activations<'_>, &mut Output<'_>),
    pub(super) attend_f32: Attend<f32>,
    pub(super) attend_f16: Attend<f16>,
    pub(super) attend_bf16: Attend<bf16>,
    pub(super) gelu_times: unsafe fn(&mut [f32], &[f32]),
    pub(super) soft_cap: unsafe fn(&mut [f32], f32),
    pub(super) rms_norm: unsafe fn(&mut [f32], Option<&[f32]>, f32),
    pub(super) sum_words: unsafe fn(&[u8]) -> u64,
}

/// There is one table of each name.
impl PartialEq for Kernels {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Kernels {}

/// A number that keys and values may be kept in.
pub trait CacheNumber: Copy + Default + Send + Sync + 'static {
    /// `f16`, `bf16` or `f32`.
    const NAME: &'static str;
    #[doc(hidden)]
    fn attend(kernels: &Kernels) -> Attend<Self>;
}

impl CacheNumber for f32 {
    const NAME: &'static str = "f32";
    fn attend(kernels: &Kernels) -> Attend<f32> {
        kernels.attend_f32
    }
}

impl CacheNumber for f16 {
    const NAME: &'static str = "f16";
    fn attend(kernels: &Kernels) -> Attend<f16> {
        kernels.attend_f16
    }
}

impl CacheNumber for bf16 {
    const NAME: &'static str = "bf16";
    fn attend(kernels: &Kernels) -> Attend<bf16> {
        kernels.attend_bf16
    }
}

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
    let amx = avx512 && amx::refusal().is_none();
    let tables = [
        (avx2, &leaves::avx2::KERNELS),
        (avx512, &leaves::avx512::KERNELS),
        (amx, &leaves::amx::KERNELS),
    ];
    tables.into_iter().filter_map(|(there, table)| there.then_some(table)).collect()
}

/// Why there is no table of that name, where it is not the name.
fn reason(name: &str) -> Option<&'static str> {
    match name {
        #[cfg(target_arch = "x86_64")]
        "amx" => amx::refusal(),
        _ => None,
    }
}

/// NEON belongs to every processor of this kind.
#[cfg(target_arch = "aarch64")]
fn detected() -> Vec<&'static Kernels> {
    let sdot = std::arch::is_aarch64_feature_detected!("dotprod");
    let tables = [(true, &leaves::neon::KERNELS), (sdot, &leaves::sdot::KERNELS)];
    tables.into_iter().filter_map(|(there, table)| there.then_some(table)).collect()
}

/// Other processors have the portable table only.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn detected() -> Vec<&'static Kernels> {
    Vec::new()
}

impl Kernels {
    /// The tables that this processor can run, slowest first.
    pub fn available() -> Vec<&'static Kernels> {
        let mut tables = vec![&leaves::portable::KERNELS];
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
        found.ok_or_else(|| NoKernels { name: name.into(), reason: reason(name), available: names })
    }

    /// `portable`, `avx2`, `avx512`, `amx`, `neon` or `sdot`.
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
        self.prepare_shared(matrix, x, precision, |parts, fill| parts.iter_mut().for_each(fill))
    }

    /// The same, shared among threads: `share` is given parts, of sixteen tokens each, and has to
    /// call what it is given beside them once for every one, in any order, on any thread.
    ///
    /// # Panics
    /// As [`Kernels::prepare`].
    pub fn prepare_shared<'x>(
        &self,
        matrix: &Matrix<'_>,
        x: &'x [f32],
        precision: Precision,
        share: impl FnOnce(&mut [Part<'_>], &(dyn Fn(&mut Part<'_>) + Sync)),
    ) -> Activations<'x> {
        let in_tiles = |tokens| tokens >= self.tiles_from;
        let mut activations = Activations::new(matrix, x, precision, in_tiles);
        // SAFETY: the table exists only where its instruction set was detected.
        share(&mut activations.parts(), &|part| unsafe { (self.prepare)(part) });
        activations
    }

    /// Multiplies the rows of `matrix` from `first_row` on, as many as `out` has, with all of `x`.
    /// A matrix that is read by codes has the same bits from all tables.
    ///
    /// # Panics
    /// When `x` was prepared for a matrix of another kind or by other kernels, `out` has another number of
    /// tokens, or rows lie outside.
    pub fn multiply(
        &self,
        matrix: &Matrix<'_>,
        first_row: usize,
        x: &Activations<'_>,
        mut out: Output<'_>,
    ) {
        assert!(x.fits(matrix), "activations prepared for another matrix");
        let tiled = x.tokens() >= self.tiles_from && matrix.is_read_by_codes();
        assert_eq!(x.is_tiled(), tiled, "activations prepared by other kernels");
        assert_eq!(x.tokens(), out.tokens(), "tokens");
        assert!(first_row + out.rows() <= matrix.rows(), "rows");
        if out.rows() == 0 {
            return;
        }
        // SAFETY: the table exists only where its instruction set was detected.
        unsafe { (self.multiply)(matrix, first_row, x, &mut out) }
    }

    /// Attention of `queries` (`[rows, head]`) over `segments`, into `partial`. All tables give the
    /// same bits here and in the functions below.
    ///
    /// # Panics
    /// When there are no queries, no positions or more than [`POSITIONS`], or numbers are missing.
    pub fn attend<S: CacheNumber>(
        &self,
        queries: &[f32],
        head: usize,
        segments: &[Segment<'_, S>],
        partial: &mut Partial,
    ) {
        assert!(head > 0 && !queries.is_empty() && queries.len().is_multiple_of(head), "queries");
        let positions: usize = segments.iter().map(|segment| segment.positions).sum();
        assert!((1..=POSITIONS).contains(&positions), "{positions} positions");
        // SAFETY: the table exists only where its instruction set was detected.
        unsafe { S::attend(self)(queries, head, segments, partial) }
    }

    /// `gate = gelu(gate)·other`, with the tanh form of GELU.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn gelu_times(&self, gate: &mut [f32], other: &[f32]) {
        assert_eq!(gate.len(), other.len(), "operands of a gate");
        // SAFETY: the table exists only where its instruction set was detected.
        unsafe { (self.gelu_times)(gate, other) }
    }

    /// `x = cap·tanh(x / cap)` of each number.
    pub fn soft_cap(&self, numbers: &mut [f32], cap: f32) {
        // SAFETY: the table exists only where its instruction set was detected.
        unsafe { (self.soft_cap)(numbers, cap) }
    }

    /// Divides a row by its root mean square (of the squares' mean plus `epsilon`), then multiplies it
    /// by the weight.
    ///
    /// # Panics
    /// When the weight has another length.
    pub fn rms_norm(&self, row: &mut [f32], weight: Option<&[f32]>, epsilon: f32) {
        assert!(weight.is_none_or(|weight| weight.len() == row.len()), "weight of a norm");
        // SAFETY: the table exists only where its instruction set was detected.
        unsafe { (self.rms_norm)(row, weight, epsilon) }
    }

    /// The sum of the 64-bit words of `bytes`, those behind the last whole one left out: a read of memory and
    /// nothing else, by loads of this instruction set.
    pub fn sum_words(&self, bytes: &[u8]) -> u64 {
        // SAFETY: the table exists only where its instruction set was detected.
        unsafe { (self.sum_words)(bytes) }
    }
}
