//! What a packed `model.safetensors` holds, and where.

use w4pack_format::dtype::Dtype;
use w4pack_format::gguf::Value;
use w4pack_format::group::{GROUP, WORDS};
use w4pack_format::header::Header;
use w4pack_format::scale::ScaleDtype;

use super::places::Places;
use crate::ConvertError;

/// A matrix in 4 bits: `M.weight_packed`, `M.weight_scale`, `M.weight_shape`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Module {
    /// The module's name in the output, e.g. `model.layers.0.mlp.up_proj`.
    pub name: String,
    /// Rows of the matrix (outputs).
    pub rows: usize,
    /// Columns (inputs), a multiple of 32.
    pub columns: usize,
    /// The dtype of its steps.
    pub scale_dtype: ScaleDtype,
}

impl Module {
    /// Groups of one row.
    pub fn groups_in_row(&self) -> u64 {
        (self.columns / GROUP) as u64
    }
}

/// A tensor that is stored as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopiedTensor {
    /// Full name in the output.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Shape.
    pub shape: Vec<usize>,
}

/// All tensors of a packed checkpoint.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Contents {
    /// The packed matrices.
    pub modules: Vec<Module>,
    /// The module of [`Contents::modules`] that is stored once more, as `lm_head`.
    pub head: Option<usize>,
    /// Everything else.
    pub copied: Vec<CopiedTensor>,
    /// Set if they become a GGUF file instead of `model.safetensors`.
    pub gguf: Option<GgufForm>,
}

/// What a GGUF file holds beside the tensors of the source.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GgufForm {
    /// Its metadata.
    pub metadata: Vec<(String, Value)>,
    /// Vectors of f32 that are known before a weight is read.
    pub tensors: Vec<(String, Vec<f32>)>,
}

/// The head's name, under text-only and multimodal names alike.
const HEAD: &str = "lm_head";

/// Where the three tensors of a module begin in the file.
#[derive(Debug, Clone, Copy)]
pub(super) struct ModulePlace {
    pub words: u64,
    pub scales: u64,
    pub shape: u64,
}

/// The header of `model.safetensors` and the offsets in the file that follow from it.
pub(super) struct SafetensorsPlaces {
    pub header: Header,
    modules: Vec<ModulePlace>,
    /// Where the head begins, the second copy of a module.
    head: Option<(usize, ModulePlace)>,
    copied: Vec<u64>,
    /// Bytes of a step, by module.
    scale_bytes: Vec<u64>,
}

impl SafetensorsPlaces {
    /// Where a module lies: one place, or two for a table that is the head as well.
    pub(super) fn of_module(&self, module: usize) -> impl Iterator<Item = ModulePlace> {
        let head = self.head.filter(|(table, _)| *table == module).map(|(_, place)| place);
        [self.modules[module]].into_iter().chain(head)
    }

    /// Bytes of a module's steps before its group `first`.
    pub(super) fn scales_before(&self, module: usize, first: u64) -> u64 {
        first * self.scale_bytes[module]
    }

    /// Where a copied tensor begins.
    pub(super) fn of_copied(&self, tensor: usize) -> u64 {
        self.copied[tensor]
    }
}

impl Contents {
    /// Bytes of a module: words, steps and shape, and all of it twice for a head of its own; in a
    /// GGUF file its blocks.
    pub fn packed_bytes(&self, number: usize) -> u64 {
        let module = &self.modules[number];
        let groups = module.rows as u64 * module.groups_in_row();
        let bytes = groups * (4 * WORDS + module.scale_dtype.bytes()) as u64;
        match (&self.gguf, self.head == Some(number)) {
            (Some(_), _) => bytes,
            (None, false) => bytes + 16,
            (None, true) => 2 * (bytes + 16),
        }
    }

    /// Bytes of a tensor that is copied; vectors in a GGUF file are f32.
    pub fn copied_bytes(&self, number: usize) -> u64 {
        let CopiedTensor { dtype, shape, .. } = &self.copied[number];
        let is_widened = self.gguf.is_some() && shape.len() == 1;
        let size = if is_widened { Dtype::F32.size() } else { dtype.size() };
        (shape.iter().product::<usize>() * size) as u64
    }

    /// Size of the file that holds them.
    pub fn file_bytes(&self) -> Result<u64, ConvertError> {
        Ok(Places::new(self)?.file_bytes())
    }

    /// Fixes where everything lies: wider elements first, so that each tensor begins on a multiple
    /// of its element size, and modules in the given order.
    pub(super) fn safetensors_places(&self) -> Result<SafetensorsPlaces, ConvertError> {
        let mut tensors = Vec::new();
        let head =
            self.head.map(|table| Module { name: HEAD.into(), ..self.modules[table].clone() });
        for module in self.modules.iter().chain(&head) {
            let Module { name, rows, columns, scale_dtype } = module;
            let words = columns / GROUP * WORDS;
            tensors.push((packed_name(name), Dtype::I32, vec![*rows, words]));
            tensors.push((scale_name(name), scale_dtype.dtype(), vec![*rows, columns / GROUP]));
            tensors.push((shape_name(name), Dtype::I64, vec![2]));
        }
        for tensor in &self.copied {
            tensors.push((tensor.name.clone(), tensor.dtype, tensor.shape.clone()));
        }
        tensors.sort_by_key(|(_, dtype, _)| std::cmp::Reverse(dtype.size()));
        let header = Header::lay_out(&tensors)?;
        let start = header.data_start();
        let begins: std::collections::HashMap<&str, u64> = header
            .tensors
            .iter()
            .map(|tensor| (tensor.name.as_str(), start + tensor.begin))
            .collect();
        let place = |module: &Module| ModulePlace {
            words: begins[packed_name(&module.name).as_str()],
            scales: begins[scale_name(&module.name).as_str()],
            shape: begins[shape_name(&module.name).as_str()],
        };
        let modules = self.modules.iter().map(place).collect();
        let copied = self.copied.iter().map(|tensor| begins[tensor.name.as_str()]).collect();
        let head = self.head.zip(head.as_ref().map(place));
        let scale_bytes = |module: &Module| module.scale_dtype.bytes() as u64;
        let scale_bytes = self.modules.iter().map(scale_bytes).collect();
        Ok(SafetensorsPlaces { modules, head, copied, scale_bytes, header })
    }
}

fn packed_name(module: &str) -> String {
    format!("{module}.weight_packed")
}

fn scale_name(module: &str) -> String {
    format!("{module}.weight_scale")
}

fn shape_name(module: &str) -> String {
    format!("{module}.weight_shape")
}
