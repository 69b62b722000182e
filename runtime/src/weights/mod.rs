//! From the tensors of a checkpoint to [`Matrix`] and vectors.
//!
//! `inventory.rs` decides, from headers alone, where every weight of the model lies and that
//! nothing else is there; `load.rs` then reads them, length-checked, into memory. `fingerprint.rs`
//! says in 32 bytes which weights they are.

mod fingerprint;
mod inventory;
mod load;
mod matrix;

pub use fingerprint::fingerprint;
pub(crate) use inventory::file_of;
pub use load::{LoadOptions, LoadProgress};
pub(crate) use load::{Storage, Stored, Survey, load, survey, tensors_of};
pub use matrix::{Matrix, Scales, WeightValues};
