//! The vector code, compiled once for each instruction set.

/// What every processor of the target can do.
pub(super) mod baseline {
    use crate::cpu::vector::attention::{self, Number, Partial, Segment};
    use crate::cpu::vector::elements;
    use crate::cpu::vector::wide::LANES;

    pub fn attend<S: Number>(q: &[f32], head: usize, over: &[Segment<'_, S>], out: &mut Partial) {
        // SAFETY: the baseline is everywhere.
        unsafe { attention::attend::<[f32; LANES], S>(q, head, over, out) }
    }

    pub fn gelu_times(gate: &mut [f32], other: &[f32]) {
        // SAFETY: the baseline is everywhere.
        unsafe { elements::gelu_times::<[f32; LANES]>(gate, other) }
    }

    pub fn soft_cap(numbers: &mut [f32], cap: f32) {
        // SAFETY: the baseline is everywhere.
        unsafe { elements::soft_cap::<[f32; LANES]>(numbers, cap) }
    }

    pub fn rms_norm(row: &mut [f32], weight: Option<&[f32]>, epsilon: f32) {
        // SAFETY: the baseline is everywhere.
        unsafe { elements::rms_norm::<[f32; LANES]>(row, weight, epsilon) }
    }
}

/// x86-64 since Haswell (2013) and Excavator (2015).
#[cfg(target_arch = "x86_64")]
pub(super) mod avx2 {
    use crate::cpu::vector::attention::{self, Number, Partial, Segment};
    use crate::cpu::vector::elements;
    use std::arch::x86_64::__m256;

    #[target_feature(enable = "avx2,f16c")]
    pub fn attend<S: Number>(q: &[f32], head: usize, over: &[Segment<'_, S>], out: &mut Partial) {
        // SAFETY: this function is compiled for the instruction set of its lanes.
        unsafe { attention::attend::<[__m256; 2], S>(q, head, over, out) }
    }

    #[target_feature(enable = "avx2,f16c")]
    pub fn gelu_times(gate: &mut [f32], other: &[f32]) {
        // SAFETY: this function is compiled for the instruction set of its lanes.
        unsafe { elements::gelu_times::<[__m256; 2]>(gate, other) }
    }

    #[target_feature(enable = "avx2,f16c")]
    pub fn soft_cap(numbers: &mut [f32], cap: f32) {
        // SAFETY: this function is compiled for the instruction set of its lanes.
        unsafe { elements::soft_cap::<[__m256; 2]>(numbers, cap) }
    }

    #[target_feature(enable = "avx2,f16c")]
    pub fn rms_norm(row: &mut [f32], weight: Option<&[f32]>, epsilon: f32) {
        // SAFETY: this function is compiled for the instruction set of its lanes.
        unsafe { elements::rms_norm::<[__m256; 2]>(row, weight, epsilon) }
    }
}

/// x86-64 with 512-bit registers.
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512 {
    use crate::cpu::vector::attention::{self, Number, Partial, Segment};
    use crate::cpu::vector::elements;
    use std::arch::x86_64::__m512;

    #[target_feature(enable = "avx512f,avx2,f16c")]
    pub fn attend<S: Number>(q: &[f32], head: usize, over: &[Segment<'_, S>], out: &mut Partial) {
        // SAFETY: this function is compiled for the instruction set of its lanes.
        unsafe { attention::attend::<__m512, S>(q, head, over, out) }
    }

    #[target_feature(enable = "avx512f,avx2,f16c")]
    pub fn gelu_times(gate: &mut [f32], other: &[f32]) {
        // SAFETY: this function is compiled for the instruction set of its lanes.
        unsafe { elements::gelu_times::<__m512>(gate, other) }
    }

    #[target_feature(enable = "avx512f,avx2,f16c")]
    pub fn soft_cap(numbers: &mut [f32], cap: f32) {
        // SAFETY: this function is compiled for the instruction set of its lanes.
        unsafe { elements::soft_cap::<__m512>(numbers, cap) }
    }

    #[target_feature(enable = "avx512f,avx2,f16c")]
    pub fn rms_norm(row: &mut [f32], weight: Option<&[f32]>, epsilon: f32) {
        // SAFETY: this function is compiled for the instruction set of its lanes.
        unsafe { elements::rms_norm::<__m512>(row, weight, epsilon) }
    }
}
