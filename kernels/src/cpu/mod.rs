//! Dot products on the CPU: the algorithm once, instruction sets as thin leaves.
//!
//! | file | holds |
//! |---|---|
//! | `matrix.rs` | what is multiplied: [`Matrix`], its [`Values`] and [`Steps`] |
//! | `lanes.rs` | sixteen f32 lanes and what an instruction set does with them |
//! | `generic.rs` | the algorithm, once, over such lanes |
//! | `leaves.rs` | the algorithm compiled for the baseline, AVX2+FMA and AVX-512 |
//! | `vector/` | what is computed between products: attention, norms, GELU |
//! | `table.rs` | [`Kernels`]: the choice, made once at start |
//!
//! **Order of summation.** An output depends on its row and its activations alone, never on how
//! many activations are multiplied at once nor on which thread does it, so results are equal bit
//! for bit for every batch. All instruction sets sum in the same order too; the baseline rounds
//! products before it adds (it has no fused multiply-add), so only its results differ from the
//! others', by rounding.

mod generic;
mod lanes;
mod leaves;
mod matrix;
mod table;
mod vector;

pub use matrix::{Matrix, Steps, Values};
pub use table::Kernels;
pub use vector::{CacheNumber, Heads, POSITIONS, Partial, Segment, Vector};
