//! What is computed on the CPU: the algorithms once, instruction sets as thin leaves.
//!
//! | file | holds |
//! |---|---|
//! | `matrix.rs` | what is multiplied: [`Matrix`], its [`Values`] and [`Steps`] |
//! | `activations.rs` | with what: [`Activations`], integers with a step for each group |
//! | `output.rs` | where to: [`Output`], of which every thread has some rows |
//! | `numbers/` | sixteen f32 numbers and what an instruction set does with them |
//! | `products/` | sums of codes times integers, on top of those |
//! | `rows.rs` | packed rows for a few tokens, as they lie in memory |
//! | `tiles.rs` | packed rows for many tokens, unpacked once |
//! | `amx/` | the same on a matrix unit |
//! | `packed.rs` | the rows that both read |
//! | `dense.rs` | rows of plain values |
//! | `attention.rs` | between products: attention over a run of positions, and how runs are merged |
//! | `elements.rs` | exponentials, GELU, softcap, norms |
//! | `leaves.rs` | all of it compiled for each instruction set |
//! | `table.rs` | [`Kernels`]: the choice, made once at start |
//!
//! **One result.** A product with a packed matrix is the same bits for every instruction set, every
//! number of tokens and every sharing among threads: sums inside a group are exact integers, and the
//! order of the few f32 operations on them is written down in `rows.rs`. So are attention and what is
//! done element by element: nothing is fused there, and every sum has its order. Products with plain
//! values depend on their row and their activation alone too; the baseline rounds there before it
//! adds (it has no fused multiply-add), so that its results differ from the others' by rounding.

mod activations;
#[cfg(target_arch = "x86_64")]
mod amx;
mod attention;
mod dense;
mod elements;
mod leaves;
mod matrix;
mod numbers;
mod output;
mod packed;
mod products;
mod read;
mod rows;
mod table;
mod tiles;

pub use activations::{Activations, Part, Precision};
pub use attention::{Heads, POSITIONS, Partial, Segment};
pub use matrix::{Matrix, Steps, Values};
pub use output::Output;
pub use table::{CacheNumber, Kernels, NoKernels};
