//! The way back: from a packed checkpoint to the bf16 one that it was made from.
//!
//! Read in this order: `origin.rs` (where each source tensor's bytes are to be had), `module.rs`
//! (words, steps and sidecar give a matrix back), `values.rs` (the one rounding in it), `lists.rs`
//! (the sidecar read in order), `files.rs` (the source's files, byte for byte).
//!
//! Nothing is taken on trust: every tensor must have the BLAKE3 that the manifest recorded when the
//! source was read, and every file that is complete its SHA-256, which for a release is the one
//! that the Hub publishes.

mod files;
mod lists;
mod module;
mod origin;
mod report;
mod values;

pub use report::{Missing, Report};

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use w4pack_format::checkpoint::Checkpoint;
use w4pack_format::manifest::{MANIFEST_FILE, Manifest};
use w4pack_format::source::Source;

use crate::ConvertError;
use crate::progress::Progress;
use crate::staging::{Staging, check_new_folder};
use files::Files;
use origin::Inventory;

/// Gives back what `packed` was made from, in the folder `out`, which appears complete or not at
/// all.
///
/// Tensors that the packed checkpoint lacks (the towers of a text-only one) are read from `towers`,
/// by their byte ranges. With all of them the source's weight files come back byte for byte. Where
/// some are missing, the others come back in one `model.safetensors`, each proved by its hash:
/// without the towers as a checkpoint of the text model alone, under text-only names.
/// [`Report::missing`] names the rest.
///
/// `threads` is 0 for as many as the machine has; it changes no byte.
///
/// Errors: no manifest or sidecar; bytes that do not have the recorded hash, with file and tensor;
/// an output folder that holds something; a disk that is full.
pub fn restore(
    packed: Arc<dyn Source>,
    towers: Option<Arc<dyn Source>>,
    out: &Path,
    threads: usize,
    progress: &dyn Progress,
) -> Result<Report, ConvertError> {
    let started = Instant::now();
    let out = &check_new_folder(&[Some(&packed), towers.as_ref()], out)?;
    let manifest = manifest(&*packed)?;
    let packed = Checkpoint::open(packed)?;
    let towers = towers.map(Checkpoint::open).transpose()?;
    let inventory = Inventory::new(&manifest, &packed, towers.as_ref())?;
    let files = Files::plan(&manifest, &packed, &inventory)?;
    let staging = Staging::create(out, files.bytes())?;
    let pool = crate::thread_pool(threads)?;
    let written = pool.install(|| files.write(&inventory, &staging, progress));
    written.map_err(|error| staging.explain(error))?;
    staging.commit()?;
    Ok(files.report(&inventory, out, started.elapsed()))
}

fn manifest(packed: &dyn Source) -> Result<Manifest, ConvertError> {
    if packed.size(MANIFEST_FILE).is_none() {
        return Err(ConvertError::NotRestorable {
            place: packed.label().into(),
            problem: format!(
                "it has no `{MANIFEST_FILE}`, which says what the source was and how it was hashed"
            ),
        });
    }
    Ok(Manifest::parse(&packed.read_file(MANIFEST_FILE)?)?)
}
