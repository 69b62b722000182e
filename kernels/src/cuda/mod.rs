//! CUDA kernels: their prebuilt images, their parameters, and how they are launched.
//!
//! The sources are in `kernels/cuda/`, plain CUDA C++ with the idea of each at its head; `cargo xtask
//! kernels` builds them into `kernels/prebuilt/`. A user needs NVIDIA's driver and nothing else: the
//! driver is opened at run time, and its absence is an answer, not a crash.
//!
//! [`images`] chooses machine code for a card, [`parameters`] mirrors the kernels' structs, [`Gpu`]
//! is one card with the kernels loaded.

mod card;
mod entries;
mod error;
mod gpu;
mod graph;
pub mod images;
mod memory;
pub mod parameters;
mod words;

pub use card::{Card, cards};
pub use error::{CudaError, Result};
pub use gpu::Gpu;
pub use graph::{Graph, Timer};
pub use memory::{Address, Arena, Pinned};
pub use words::Words;
