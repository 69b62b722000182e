//! Where everything lies in the weights' file, whichever format it has.

use std::borrow::Cow;

use w4pack_format::checkpoint::SINGLE_FILE;
use w4pack_format::group::PACKED_BYTES;

use super::contents::{Contents, SafetensorsPlaces};
use super::gguf::GgufPlaces;
use crate::ConvertError;
use crate::llama_cpp::GGUF_FILE;

/// Bytes for an offset of the file.
pub(super) type Write<'b> = (u64, Cow<'b, [u8]>);

/// Offsets in the file, and how groups and copied bytes are spelled there.
pub(super) enum Places {
    Safetensors(SafetensorsPlaces),
    Gguf(GgufPlaces),
}

impl Places {
    /// Fixes every offset.
    pub(super) fn new(contents: &Contents) -> Result<Self, ConvertError> {
        Ok(match &contents.gguf {
            None => Places::Safetensors(contents.safetensors_places()?),
            Some(form) => Places::Gguf(GgufPlaces::new(contents, form)?),
        })
    }

    /// The file's name.
    pub(super) fn file_name(&self) -> &'static str {
        match self {
            Places::Safetensors(_) => SINGLE_FILE,
            Places::Gguf(_) => GGUF_FILE,
        }
    }

    /// Its size.
    pub(super) fn file_bytes(&self) -> u64 {
        match self {
            Places::Safetensors(places) => places.header.file_bytes(),
            Places::Gguf(places) => places.file_bytes(),
        }
    }

    /// What is known before a weight is read: header, shapes, padding.
    pub(super) fn known(&self, contents: &Contents) -> Vec<Write<'_>> {
        match self {
            Places::Safetensors(places) => {
                let mut writes = vec![(0, places.header.prefix().into())];
                for (number, module) in contents.modules.iter().enumerate() {
                    let shape = [module.rows, module.columns].map(|n| (n as i64).to_le_bytes());
                    let places = places.of_module(number);
                    writes.extend(places.map(|place| (place.shape, shape.concat().into())));
                }
                writes
            }
            Places::Gguf(places) => {
                let fixed = places.fixed().map(|(offset, bytes)| (offset, bytes.into()));
                [(0, places.prefix().into())].into_iter().chain(fixed).collect()
            }
        }
    }

    /// Groups of a module from `first` on: packed words and steps, as safetensors have them.
    pub(super) fn groups<'b>(
        &self,
        module: usize,
        first: u64,
        words: &'b [u8],
        scales: &'b [u8],
    ) -> Vec<Write<'b>> {
        match self {
            Places::Safetensors(places) => {
                let before = places.scales_before(module, first);
                let writes = places.of_module(module).flat_map(|place| {
                    [
                        (place.words + first * PACKED_BYTES as u64, words.into()),
                        (place.scales + before, scales.into()),
                    ]
                });
                writes.collect()
            }
            Places::Gguf(places) => {
                let (offset, blocks) = places.groups(module, first, words, scales);
                vec![(offset, blocks.into())]
            }
        }
    }

    /// Where words and steps of a module's groups from `first` on lie; `None` where they lie together.
    pub(super) fn of_groups(&self, module: usize, first: u64) -> Option<[u64; 2]> {
        match self {
            Places::Safetensors(places) => {
                let place = places.of_module(module).next()?;
                let before = places.scales_before(module, first);
                Some([place.words + first * PACKED_BYTES as u64, place.scales + before])
            }
            Places::Gguf(_) => None,
        }
    }

    /// Bytes of a copied tensor from its byte `first` on.
    pub(super) fn copied<'b>(&self, tensor: usize, first: u64, bytes: &'b [u8]) -> Write<'b> {
        match self {
            Places::Safetensors(places) => (places.of_copied(tensor) + first, bytes.into()),
            Places::Gguf(places) => places.copied(tensor, first, bytes),
        }
    }
}
