//! Arithmetic on packed words.
//!
//! [`cpu`] multiplies matrices that stay packed (eight 4-bit codes a word, one step for every 32
//! codes of a row) with f32 activations. Start reading at [`cpu::Matrix`], then `cpu/rows.rs`, where
//! the algorithm stands once for all instruction sets.

pub mod cpu;
pub mod cuda;
