//! Dot products on the CPU: the algorithms once, instruction sets as thin leaves.
//!
//! | file | holds |
//! |---|---|
//! | `matrix.rs` | what is multiplied: [`Matrix`], its [`Values`] and [`Steps`] |
//! | `activations.rs` | with what: [`Activations`], integers with a step for each group |
//! | `output.rs` | where to: [`Output`], of which every thread has some rows |
//! | `lanes/` | sixteen lanes and what an instruction set does with them |
//! | `rows.rs` | packed rows for a few tokens, as they lie in memory |
//! | `tiles.rs` | packed rows for many tokens, unpacked once |
//! | `packed.rs` | the rows that both read |
//! | `dense.rs` | rows of plain values |
//! | `leaves.rs` | all of it compiled for each instruction set |
//! | `vector/` | what is computed between products: attention, norms, GELU |
//! | `table.rs` | [`Kernels`]: the choice, made once at start |
//!
//! **One result.** A product with a packed matrix is the same bits for every instruction set, every
//! number of tokens and every sharing among threads: sums inside a group are exact integers, and the
//! order of the few f32 operations on them is written down in `rows.rs`. Products with plain values
//! depend on their row and their activation alone too; the baseline rounds there before it adds (it
//! has no fused multiply-add), so that its results differ from the others' by rounding.

mod activations;
mod dense;
mod lanes;
mod leaves;
mod matrix;
mod output;
mod packed;
mod rows;
mod table;
mod tiles;
mod vector;

pub use activations::{Activations, Precision};
pub use matrix::{Matrix, Steps, Values};
pub use output::Output;
pub use table::{Kernels, NoKernels};
pub use vector::{CacheNumber, Heads, POSITIONS, Partial, Segment, Vector};
