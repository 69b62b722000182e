//! What is computed between the products: attention, norms, GELU, the softcap.
//!
//! | file | holds |
//! |---|---|
//! | `wide.rs` | sixteen numbers side by side and what an instruction set does with them |
//! | `elements.rs` | exponentials, GELU, softcap, norms |
//! | `attention.rs` | attention over a run of positions, and how runs are merged |
//! | `leaves.rs` | all of it compiled for the baseline, AVX2 and AVX-512 |
//!
//! Nothing is fused, every sum has its order: all instruction sets give the same bits.

mod attention;
mod elements;
mod leaves;
#[cfg(test)]
mod tests;
mod wide;

pub use attention::{Heads, POSITIONS, Partial, Segment};

use super::Kernels;
use half::{bf16, f16};

/// Attention over positions whose keys and values are numbers `S`.
type Attend<S> = unsafe fn(&[f32], usize, &[Segment<'_, S>], &mut Partial);

/// The functions of one instruction set that this machine has.
///
/// It can only be had by way of [`Vector::of`], whose argument shows that the instruction set was
/// detected; that is what makes calling the functions sound.
#[derive(Debug)]
pub struct Vector {
    name: &'static str,
    attend_f32: Attend<f32>,
    attend_f16: Attend<f16>,
    attend_bf16: Attend<bf16>,
    gelu_times: unsafe fn(&mut [f32], &[f32]),
    soft_cap: unsafe fn(&mut [f32], f32),
    rms_norm: unsafe fn(&mut [f32], Option<&[f32]>, f32),
}

static PORTABLE: Vector = Vector {
    name: "portable",
    attend_f32: leaves::baseline::attend,
    attend_f16: leaves::baseline::attend,
    attend_bf16: leaves::baseline::attend,
    gelu_times: leaves::baseline::gelu_times,
    soft_cap: leaves::baseline::soft_cap,
    rms_norm: leaves::baseline::rms_norm,
};

#[cfg(target_arch = "x86_64")]
static AVX2: Vector = Vector {
    name: "avx2",
    attend_f32: leaves::avx2::attend,
    attend_f16: leaves::avx2::attend,
    attend_bf16: leaves::avx2::attend,
    gelu_times: leaves::avx2::gelu_times,
    soft_cap: leaves::avx2::soft_cap,
    rms_norm: leaves::avx2::rms_norm,
};

#[cfg(target_arch = "x86_64")]
static AVX512: Vector = Vector {
    name: "avx512",
    attend_f32: leaves::avx512::attend,
    attend_f16: leaves::avx512::attend,
    attend_bf16: leaves::avx512::attend,
    gelu_times: leaves::avx512::gelu_times,
    soft_cap: leaves::avx512::soft_cap,
    rms_norm: leaves::avx512::rms_norm,
};

/// A number that keys and values may be kept in.
pub trait CacheNumber: Copy + Default + Send + Sync + 'static {
    /// `f16`, `bf16` or `f32`.
    const NAME: &'static str;
    #[doc(hidden)]
    fn attend(vector: &Vector) -> Attend<Self>;
}

impl CacheNumber for f32 {
    const NAME: &'static str = "f32";
    fn attend(vector: &Vector) -> Attend<f32> {
        vector.attend_f32
    }
}

impl CacheNumber for f16 {
    const NAME: &'static str = "f16";
    fn attend(vector: &Vector) -> Attend<f16> {
        vector.attend_f16
    }
}

impl CacheNumber for bf16 {
    const NAME: &'static str = "bf16";
    fn attend(vector: &Vector) -> Attend<bf16> {
        vector.attend_bf16
    }
}

impl Vector {
    /// The functions that go with the kernels of the same instruction set.
    pub fn of(kernels: &Kernels) -> &'static Vector {
        #[cfg(target_arch = "x86_64")]
        {
            // Every processor with AVX2 has F16C but in emulators.
            let has_f16c = is_x86_feature_detected!("f16c");
            match kernels.name() {
                "avx512" if has_f16c && is_x86_feature_detected!("avx512f") => return &AVX512,
                "avx2" if has_f16c && is_x86_feature_detected!("avx2") => return &AVX2,
                _ => {}
            }
        }
        let _ = kernels;
        &PORTABLE
    }

    /// `portable`, `avx2` or `avx512`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Attention of `queries` (`[rows, head]`) over `segments`, into `partial`.
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
}
