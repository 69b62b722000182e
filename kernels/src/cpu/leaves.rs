//! The algorithms, compiled once for each instruction set.

use super::activations::{self, Activations, Precision};
use super::lanes::Lanes;
use super::matrix::{Matrix, Step};
use super::output::Output;
use super::packed::{Packed, PackedRows};
use super::{dense, rows, tiles};

/// Multiplies the rows of `matrix` from `first_row` on, as many as `out` has, with all of `x`.
///
/// # Safety
/// Requires the instruction set of `L`.
#[inline(always)]
unsafe fn multiply<L: Lanes>(
    matrix: &Matrix<'_>,
    first_row: usize,
    x: &Activations<'_>,
    out: &mut Output<'_>,
) {
    // SAFETY: the instruction set of `L` is the caller's promise.
    unsafe {
        match PackedRows::of(matrix, first_row, out.rows()) {
            None => dense::multiply::<L>(matrix, first_row, x, out),
            Some(PackedRows::F16(rows)) => packed::<L, _>(&rows, x, out),
            Some(PackedRows::Bf16(rows)) => packed::<L, _>(&rows, x, out),
            Some(PackedRows::F32(rows)) => packed::<L, _>(&rows, x, out),
        }
    }
}

/// The same for packed rows: one by one for few tokens, by tiles for many.
///
/// # Safety
/// Requires the instruction set of `L`.
#[inline(always)]
unsafe fn packed<L: Lanes, S: Step>(
    rows: &Packed<'_, S>,
    x: &Activations<'_>,
    out: &mut Output<'_>,
) {
    // SAFETY: the instruction set of `L` is the caller's promise.
    unsafe {
        match (x.precision, x.tokens() < L::LEAST_TILED) {
            (Precision::Bits16, true) => rows::multiply::<L, S, 2>(rows, x, out),
            (Precision::Bits16, false) => tiles::multiply::<L, S, 2>(rows, x, out),
            (Precision::Bits8, true) => rows::multiply::<L, S, 1>(rows, x, out),
            (Precision::Bits8, false) => tiles::multiply::<L, S, 1>(rows, x, out),
        }
    }
}

/// What every processor of the target can do.
pub(super) mod baseline {
    use super::*;
    use crate::cpu::lanes::LANES;

    pub fn prepare(x: &mut Activations<'_>) {
        activations::prepare(x);
    }

    pub fn multiply(
        matrix: &Matrix<'_>,
        first_row: usize,
        x: &Activations<'_>,
        out: &mut Output<'_>,
    ) {
        // SAFETY: the baseline is everywhere.
        unsafe { super::multiply::<[f32; LANES]>(matrix, first_row, x, out) }
    }

    pub fn dot(a: &[f32], b: &[f32]) -> f32 {
        // SAFETY: the baseline is everywhere.
        let [dot] = unsafe { dense::dense::<[f32; LANES], 1>(a, [b]) };
        dot
    }

    pub fn add_scaled(factor: f32, x: &[f32], out: &mut [f32]) {
        // SAFETY: the baseline is everywhere.
        unsafe { dense::add_scaled::<[f32; LANES]>(factor, x, out) }
    }
}

/// x86-64 since Haswell (2013) and Excavator (2015).
#[cfg(target_arch = "x86_64")]
pub(super) mod avx2 {
    use super::*;
    use std::arch::x86_64::__m256;

    #[target_feature(enable = "avx2,fma,f16c")]
    pub fn prepare(x: &mut Activations<'_>) {
        activations::prepare(x);
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    pub fn multiply(
        matrix: &Matrix<'_>,
        first_row: usize,
        x: &Activations<'_>,
        out: &mut Output<'_>,
    ) {
        // SAFETY: this function is compiled for the instruction set of its lanes.
        unsafe { super::multiply::<[__m256; 2]>(matrix, first_row, x, out) }
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    pub fn dot(a: &[f32], b: &[f32]) -> f32 {
        // SAFETY: this function is compiled for the instruction set of its lanes.
        let [dot] = unsafe { dense::dense::<[__m256; 2], 1>(a, [b]) };
        dot
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    pub fn add_scaled(factor: f32, x: &[f32], out: &mut [f32]) {
        // SAFETY: this function is compiled for the instruction set of its lanes.
        unsafe { dense::add_scaled::<[__m256; 2]>(factor, x, out) }
    }
}

/// x86-64 with byte products in 512-bit registers: Ice Lake (2019), Zen 4 (2022).
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512 {
    use super::*;
    use std::arch::x86_64::__m512;

    #[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx2,fma,f16c")]
    pub fn prepare(x: &mut Activations<'_>) {
        activations::prepare(x);
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx2,fma,f16c")]
    pub fn multiply(
        matrix: &Matrix<'_>,
        first_row: usize,
        x: &Activations<'_>,
        out: &mut Output<'_>,
    ) {
        // SAFETY: this function is compiled for the instruction set of its lanes.
        unsafe { super::multiply::<__m512>(matrix, first_row, x, out) }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx2,fma,f16c")]
    pub fn dot(a: &[f32], b: &[f32]) -> f32 {
        // SAFETY: this function is compiled for the instruction set of its lanes.
        let [dot] = unsafe { dense::dense::<__m512, 1>(a, [b]) };
        dot
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx2,fma,f16c")]
    pub fn add_scaled(factor: f32, x: &[f32], out: &mut [f32]) {
        // SAFETY: this function is compiled for the instruction set of its lanes.
        unsafe { dense::add_scaled::<__m512>(factor, x, out) }
    }
}

/// 64-bit Arm.
#[cfg(target_arch = "aarch64")]
pub(super) mod neon {
    use super::*;
    use std::arch::aarch64::float32x4_t;

    #[target_feature(enable = "neon")]
    pub fn prepare(x: &mut Activations<'_>) {
        activations::prepare(x);
    }

    #[target_feature(enable = "neon")]
    pub fn multiply(
        matrix: &Matrix<'_>,
        first_row: usize,
        x: &Activations<'_>,
        out: &mut Output<'_>,
    ) {
        // SAFETY: this function is compiled for the instruction set of its lanes.
        unsafe { super::multiply::<[float32x4_t; 4]>(matrix, first_row, x, out) }
    }

    #[target_feature(enable = "neon")]
    pub fn dot(a: &[f32], b: &[f32]) -> f32 {
        // SAFETY: this function is compiled for the instruction set of its lanes.
        let [dot] = unsafe { dense::dense::<[float32x4_t; 4], 1>(a, [b]) };
        dot
    }

    #[target_feature(enable = "neon")]
    pub fn add_scaled(factor: f32, x: &[f32], out: &mut [f32]) {
        // SAFETY: this function is compiled for the instruction set of its lanes.
        unsafe { dense::add_scaled::<[float32x4_t; 4]>(factor, x, out) }
    }
}
