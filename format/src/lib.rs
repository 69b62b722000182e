//! The nouns of w4pack: what a checkpoint is made of, read with distrust.
//!
//! Read in this order: [`header`] (one safetensors file), [`source`] (where bytes come from),
//! [`checkpoint`] (one or many files seen as one set of tensors), [`config`] and [`names`] (what a
//! Gemma 4 must hold), [`group`], [`scale`] and [`quantization`] (what packing means), [`gguf`]
//! (the same model in llama.cpp's format), and last [`manifest`], [`exact`] and [`laid_out`] (what
//! w4pack adds to a checkpoint).
//!
//! Nothing here decides anything: no policy, no threads, no output.

pub mod checkpoint;
pub mod config;
pub mod digest;
pub mod dtype;
mod error;
pub mod exact;
pub mod gguf;
pub mod group;
pub mod header;
pub mod json;
pub mod laid_out;
pub mod manifest;
pub mod names;
pub mod quantization;
pub mod scale;
pub mod source;

pub use error::{FormatError, HeaderFault, Result};
