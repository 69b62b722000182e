//! Where everything lies in a GGUF file, and how it is spelled there: groups as Q4_0 blocks,
//! vectors in f32, matrices that are not packed in bf16.

use std::borrow::Cow;

use half::bf16;
use w4pack_format::gguf::block::{Q4_0_BYTES, q4_0_from_packed};
use w4pack_format::gguf::{Gguf, TensorType};
use w4pack_format::group::PACKED_BYTES;

use super::contents::{Contents, GgufForm};
use crate::ConvertError;

/// Bytes of an f16 step.
const STEP_BYTES: usize = 2;

/// Offsets in the file, and what stands between the tensors.
pub(super) struct GgufPlaces {
    gguf: Gguf,
    modules: Vec<u64>,
    copied: Vec<CopiedPlace>,
    fixed: Vec<(u64, Vec<u8>)>,
}

struct CopiedPlace {
    begin: u64,
    /// Stored in f32, each element twice as wide as in the source.
    widened: bool,
}

impl GgufPlaces {
    /// The tensors that are known already, then the modules, then the copied tensors.
    pub(super) fn new(contents: &Contents, form: &GgufForm) -> Result<Self, ConvertError> {
        let known = form
            .tensors
            .iter()
            .map(|(name, values)| (name.clone(), TensorType::F32, vec![values.len()]));
        let modules = contents.modules.iter().map(|module| {
            (module.name.clone(), TensorType::Q4_0, vec![module.rows, module.columns])
        });
        let copied = contents.copied.iter().map(|tensor| {
            // llama.cpp adds and multiplies vectors in f32 only.
            let is_vector = tensor.shape.len() == 1;
            let tensor_type = if is_vector { TensorType::F32 } else { TensorType::BF16 };
            (tensor.name.clone(), tensor_type, tensor.shape.clone())
        });
        let tensors: Vec<_> = known.chain(modules).chain(copied).collect();
        let gguf = Gguf::lay_out(form.metadata.clone(), &tensors)?;
        let begins: Vec<u64> =
            gguf.tensors.iter().map(|tensor| gguf.data_start + tensor.begin).collect();
        let (known, rest) = begins.split_at(form.tensors.len());
        let (modules, copied) = rest.split_at(contents.modules.len());
        let mut fixed: Vec<(u64, Vec<u8>)> = known
            .iter()
            .zip(&form.tensors)
            .map(|(&begin, (_, values))| {
                (begin, values.iter().flat_map(|value| value.to_le_bytes()).collect())
            })
            .collect();
        for (number, tensor) in gguf.tensors.iter().enumerate() {
            let end = begins[number] + tensor.bytes;
            let next = begins.get(number + 1).copied().unwrap_or(gguf.file_bytes());
            fixed.push((end, vec![0; (next - end) as usize]));
        }
        let copied = copied.iter().zip(&contents.copied);
        let copied = copied
            .map(|(&begin, tensor)| CopiedPlace { begin, widened: tensor.shape.len() == 1 })
            .collect();
        Ok(GgufPlaces { modules: modules.to_vec(), copied, fixed, gguf })
    }

    /// The first bytes of the file.
    pub(super) fn prefix(&self) -> Vec<u8> {
        self.gguf.prefix()
    }

    /// Size of the file.
    pub(super) fn file_bytes(&self) -> u64 {
        self.gguf.file_bytes()
    }

    /// What is known before a weight is read: other tensors, and the padding behind each.
    pub(super) fn fixed(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.fixed.iter().map(|(offset, bytes)| (*offset, &bytes[..]))
    }

    /// Groups of a module from `first` on, as blocks.
    pub(super) fn groups(
        &self,
        module: usize,
        first: u64,
        words: &[u8],
        steps: &[u8],
    ) -> (u64, Vec<u8>) {
        let (words, _) = words.as_chunks::<PACKED_BYTES>();
        let (steps, _) = steps.as_chunks::<STEP_BYTES>();
        let mut blocks = Vec::with_capacity(words.len() * Q4_0_BYTES);
        for (words, step) in words.iter().zip(steps) {
            blocks.extend_from_slice(&q4_0_from_packed(words, *step));
        }
        (self.modules[module] + first * Q4_0_BYTES as u64, blocks)
    }

    /// Bytes of a copied bf16 tensor from its byte `first` on.
    pub(super) fn copied<'b>(
        &self,
        tensor: usize,
        first: u64,
        bytes: &'b [u8],
    ) -> (u64, Cow<'b, [u8]>) {
        let CopiedPlace { begin, widened } = self.copied[tensor];
        if !widened {
            return (begin + first, bytes.into());
        }
        let (values, _) = bytes.as_chunks::<2>();
        let wide =
            values.iter().flat_map(|value| bf16::from_le_bytes(*value).to_f32().to_le_bytes());
        (begin + 2 * first, wide.collect::<Vec<u8>>().into())
    }
}
