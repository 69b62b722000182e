//! Writing a packed checkpoint from codes and steps, wherever they come from.
//!
//! [`PackWriter`] takes [`Contents`] (which fixes every offset of `model.safetensors`), then groups
//! and copied bytes in any order, and at [`PackWriter::finish`] adds config, companions, sidecar and
//! manifest and puts the folder in place. Until then nothing exists under the final name.

mod behind;
mod config;
mod contents;
mod gguf;
mod places;
mod sidecar;
mod spool;
mod writer;

pub use config::{Packing, fits_f16_when_unpacked, packed_config, text_only_config};
pub use contents::{Contents, CopiedTensor, GgufForm, Module};
pub use sidecar::{GroupNote, ModuleNotes, Sidecar, Step as StepNote, ZeroSigns};
pub use writer::{Finish, MadeFrom, PackWriter, Written};
