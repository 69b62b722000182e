//! The generic code, compiled once for each instruction set.

/// What every processor of the target can do.
pub(super) mod baseline {
    use crate::cpu::generic;
    use crate::cpu::lanes::LANES;
    use crate::cpu::matrix::Matrix;

    pub fn multiply(matrix: &Matrix<'_>, first_row: usize, x: &[f32], out: &mut [f32]) {
        // SAFETY: the baseline is everywhere.
        unsafe { generic::multiply::<[f32; LANES]>(matrix, first_row, x, out) }
    }

    pub fn dot(a: &[f32], b: &[f32]) -> f32 {
        // SAFETY: the baseline is everywhere.
        let [dot] = unsafe { generic::dense::<[f32; LANES], 1>(a, [b]) };
        dot
    }

    pub fn add_scaled(factor: f32, x: &[f32], out: &mut [f32]) {
        // SAFETY: the baseline is everywhere.
        unsafe { generic::add_scaled::<[f32; LANES]>(factor, x, out) }
    }
}

/// x86-64 since Haswell (2013) and Excavator (2015).
#[cfg(target_arch = "x86_64")]
pub(super) mod avx2 {
    use crate::cpu::generic;
    use crate::cpu::matrix::Matrix;
    use std::arch::x86_64::__m256;

    #[target_feature(enable = "avx2,fma")]
    pub fn multiply(matrix: &Matrix<'_>, first_row: usize, x: &[f32], out: &mut [f32]) {
        // SAFETY: this function is compiled for the instruction set of its lanes.
        unsafe { generic::multiply::<[__m256; 2]>(matrix, first_row, x, out) }
    }

    #[target_feature(enable = "avx2,fma")]
    pub fn dot(a: &[f32], b: &[f32]) -> f32 {
        // SAFETY: this function is compiled for the instruction set of its lanes.
        let [dot] = unsafe { generic::dense::<[__m256; 2], 1>(a, [b]) };
        dot
    }

    #[target_feature(enable = "avx2,fma")]
    pub fn add_scaled(factor: f32, x: &[f32], out: &mut [f32]) {
        // SAFETY: this function is compiled for the instruction set of its lanes.
        unsafe { generic::add_scaled::<[__m256; 2]>(factor, x, out) }
    }
}

/// x86-64 with 512-bit registers.
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512 {
    use crate::cpu::generic;
    use crate::cpu::matrix::Matrix;
    use std::arch::x86_64::__m512;

    #[target_feature(enable = "avx512f,avx2,fma")]
    pub fn multiply(matrix: &Matrix<'_>, first_row: usize, x: &[f32], out: &mut [f32]) {
        // SAFETY: this function is compiled for the instruction set of its lanes.
        unsafe { generic::multiply::<__m512>(matrix, first_row, x, out) }
    }

    #[target_feature(enable = "avx512f,avx2,fma")]
    pub fn dot(a: &[f32], b: &[f32]) -> f32 {
        // SAFETY: this function is compiled for the instruction set of its lanes.
        let [dot] = unsafe { generic::dense::<__m512, 1>(a, [b]) };
        dot
    }

    #[target_feature(enable = "avx512f,avx2,fma")]
    pub fn add_scaled(factor: f32, x: &[f32], out: &mut [f32]) {
        // SAFETY: this function is compiled for the instruction set of its lanes.
        unsafe { generic::add_scaled::<__m512>(factor, x, out) }
    }
}
