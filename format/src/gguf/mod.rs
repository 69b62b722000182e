//! GGUF, llama.cpp's file format: metadata, tensor infos, then the tensors' bytes in blocks.
//!
//! Read in this order: [`value`] (typed metadata), [`file`](mod@file) (a whole header, read with
//! distrust or laid out to be written), [`tensor_type`] (element types and their block sizes),
//! [`block`] (what the blocks say that w4pack takes apart), [`names`] (what llama.cpp calls
//! the tensors of a Gemma 4), and [`view`] (the whole file seen as a packed checkpoint).
//!
//! Source: ggml's `docs/gguf.md` and `ggml/src/ggml-common.h`. Versions 2 and 3, little-endian.

pub mod block;
mod cursor;
mod fault;
pub mod file;
pub mod names;
pub mod tensor_type;
pub mod value;
pub mod view;

pub use fault::GgufFault;
pub use file::{Gguf, GgufTensor};
pub use tensor_type::TensorType;
pub use value::{Array, Kind, Value};

/// The first four bytes of a file.
pub const MAGIC: [u8; 4] = *b"GGUF";

/// The version that w4pack writes; it also reads version 2, which differs in no byte.
pub const VERSION: u32 = 3;

/// Tensors begin on multiples of this, unless `general.alignment` says otherwise.
pub const DEFAULT_ALIGNMENT: u64 = 32;

/// The key that overrides [`DEFAULT_ALIGNMENT`].
pub const ALIGNMENT_KEY: &str = "general.alignment";
