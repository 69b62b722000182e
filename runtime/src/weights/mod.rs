//! From the tensors of a checkpoint to [`Matrix`] and vectors.
//!
//! `inventory.rs` decides, from headers alone, where every weight of the model lies and that
//! nothing else is there; `load.rs` then reads them, length-checked, into memory.

mod inventory;
mod load;
mod matrix;

pub(crate) use inventory::file_of;
pub use load::{LoadOptions, LoadProgress};
pub(crate) use load::{Storage, Stored, Survey, load, survey, tensors_of};
pub use matrix::{Matrix, Scales, WeightValues};
