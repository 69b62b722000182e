//! From the tensors of a checkpoint to [`Matrix`] and vectors.
//!
//! `inventory.rs` decides, from headers alone, where every weight of the model lies and that
//! nothing else is there; `survey.rs` gives each its place in the model and reads the vectors; `load.rs`
//! then reads the matrices, length-checked, into memory, but for a table that `in_file.rs` reads row by
//! row. `buffer.rs` is the memory they lie in. `fingerprint.rs` says in 32 bytes which weights they are.

mod buffer;
mod fingerprint;
mod in_file;
mod inventory;
mod load;
mod matrix;
mod survey;

pub use buffer::Buffer;
pub use fingerprint::fingerprint;
pub use in_file::RowsInFile;
pub(crate) use inventory::{Storage, file_of};
pub use load::{LoadOptions, LoadProgress};
pub(crate) use load::{load, load_without_table};
pub use matrix::{Matrix, Scales, WeightValues};
pub(crate) use survey::{Stored, Survey, survey, tensors_of};
