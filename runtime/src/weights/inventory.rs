//! Which tensor of a checkpoint is which weight: decided from headers, before a weight is read.

use crate::error::{Result, RuntimeError, counted};
use std::collections::{BTreeMap, BTreeSet};
use w4pack_format::FormatError;
use w4pack_format::checkpoint::Checkpoint;
use w4pack_format::config::Config;
use w4pack_format::dtype::Dtype;
use w4pack_format::group::GROUP;
use w4pack_format::names::{
    NameLayout, Role, TextTensor, is_tower, is_unused_shared_kv, text_tensors,
};
use w4pack_format::quantization::ModuleClass;
use w4pack_format::scale::ScaleDtype;

/// The name of a head of its own, in both layouts.
pub(super) const LM_HEAD: &str = "lm_head";

/// How a weight is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Storage {
    /// `MODULE.weight`, bf16 (or the bare name of a vector).
    Plain,
    /// Rows of a bf16 tensor that holds the matrices of all experts, from this one on.
    Stacked { first_row: usize },
    /// `MODULE.weight_packed`, `.weight_scale`, `.weight_shape`.
    Packed(ScaleDtype),
}

/// A weight and where it lies.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    /// Full name of the tensor when it is plain or stacked; of the module when it is packed.
    pub name: String,
    pub shape: Vec<usize>,
    pub storage: Storage,
}

/// Every weight of the model, by its name without prefix and `.weight`.
pub(super) struct Inventory {
    pub entries: BTreeMap<String, Entry>,
    /// Tensors and files that the model does not use, in words.
    pub notes: Vec<String>,
}

/// Finds every weight that `config` demands and accounts for every tensor of the checkpoint.
///
/// Errors: missing tensors; tensors that nothing reads; a dtype or shape that is not what the
/// configuration makes it; packed where config.json says plain, or the reverse.
pub(super) fn take(checkpoint: &Checkpoint, config: &Config) -> Result<Inventory> {
    // Other makers' configurations do not always say how their tensors are called.
    let names = NameLayout::of_names(checkpoint.names());
    let mut search = Search { checkpoint, config, used: BTreeSet::new(), missing: Vec::new() };
    let mut entries = BTreeMap::new();
    for tensor in text_tensors(&config.text) {
        let full = names.full_name(&tensor.name);
        if let Some(entry) = search.find(&full, &tensor)? {
            entries.insert(tensor.module().to_string(), entry);
        }
    }
    let has_head = checkpoint.names().any(|name| name.starts_with("lm_head."));
    if has_head || !config.tie_word_embeddings {
        let head = TextTensor {
            name: format!("{LM_HEAD}.weight"),
            role: Role::Linear,
            shape: vec![config.text.vocab_size, config.text.hidden_size],
            layer: None,
            stack: None,
        };
        if let Some(entry) = search.find(&head.name, &head)? {
            entries.insert(LM_HEAD.into(), entry);
        }
    }
    if !search.missing.is_empty() {
        let place = checkpoint.source().label().to_string();
        return Err(RuntimeError::Missing { place, names: search.missing });
    }
    let notes = account_for_the_rest(checkpoint, config, names, &search.used)?;
    Ok(Inventory { entries, notes })
}

struct Search<'a> {
    checkpoint: &'a Checkpoint,
    config: &'a Config,
    used: BTreeSet<String>,
    missing: Vec<String>,
}

impl Search<'_> {
    /// The entry of a tensor, plain or packed; `None` (and noted as missing) if it is neither.
    fn find(&mut self, full: &str, tensor: &TextTensor) -> Result<Option<Entry>> {
        let module = full.strip_suffix(".weight").unwrap_or(full);
        let [packed, scale, shape] = ["weight_packed", "weight_scale", "weight_shape"]
            .map(|part| format!("{module}.{part}"));
        let is_packed = tensor.is_matrix() && [&packed, &scale, &shape].iter().any(|n| self.has(n));
        match (self.has(full), is_packed) {
            (true, true) => Err(self.fault(full, format!("`{packed}` is there too"))),
            (true, false) => {
                self.refuse_other_storage(full, module, tensor, false)?;
                self.check(full, Dtype::BF16, &tensor.shape)?;
                let shape = tensor.shape.clone();
                Ok(Some(Entry { name: full.into(), shape, storage: Storage::Plain }))
            }
            (false, true) => {
                let parts = [&packed, &scale, &shape];
                let lacking: Vec<String> =
                    parts.into_iter().filter(|n| !self.has(n)).cloned().collect();
                if !lacking.is_empty() {
                    self.missing.extend(lacking);
                    return Ok(None);
                }
                self.refuse_other_storage(&packed, module, tensor, true)?;
                self.packed(module, [&packed, &scale, &shape], &tensor.shape).map(Some)
            }
            (false, false) => self.stacked(full, module, tensor),
        }
    }

    /// A tensor that is there neither plain nor packed: in a stack, or missing.
    ///
    /// A stack is no linear to any loader, so that targets do not speak of it.
    fn stacked(&mut self, full: &str, module: &str, tensor: &TextTensor) -> Result<Option<Entry>> {
        let stack = tensor.stack.as_ref();
        let stacked = stack.map(|stack| (self.config.layout.full_name(&stack.name), stack));
        let missing = match stacked {
            Some((name, stack)) if self.has(&name) => {
                self.check(&name, Dtype::BF16, &stack.shape)?;
                let storage = Storage::Stacked { first_row: stack.first_row };
                return Ok(Some(Entry { name, shape: tensor.shape.clone(), storage }));
            }
            _ if self.covers(module, tensor) => format!("{module}.weight_packed"),
            Some((name, _)) => name,
            None => full.into(),
        };
        if self.missing.last() != Some(&missing) {
            self.missing.push(missing);
        }
        Ok(None)
    }

    fn packed(&mut self, module: &str, parts: [&str; 3], shape: &[usize]) -> Result<Entry> {
        let [packed, scale, weight_shape] = parts;
        let (rows, columns) = (shape[0], shape[1]);
        if columns % GROUP != 0 {
            let problem = format!("its module has {columns} columns, no multiple of {GROUP}");
            return Err(self.fault(packed, problem));
        }
        self.check(packed, Dtype::I32, &[rows, columns / 8])?;
        // Readers take 32-bit numbers too; all known writers write 64.
        let shape_dtype = match self.dtype(weight_shape) {
            Some(Dtype::I32) => Dtype::I32,
            _ => Dtype::I64,
        };
        self.check(weight_shape, shape_dtype, &[2])?;
        let dtype = self.dtype(scale);
        let Some(scale_dtype) = dtype.and_then(ScaleDtype::from_dtype) else {
            let found = dtype.map_or("nothing", Dtype::name);
            let problem = format!("its dtype is {found}; scales are F16, BF16 or F32");
            return Err(self.fault(scale, problem));
        };
        self.check(scale, scale_dtype.dtype(), &[rows, columns / GROUP])?;
        let storage = Storage::Packed(scale_dtype);
        Ok(Entry { name: module.into(), shape: shape.to_vec(), storage })
    }

    /// config.json must say of a matrix what the file holds: other loaders go by it, and a
    /// checkpoint in which the two differ was put together wrongly.
    fn refuse_other_storage(
        &self,
        name: &str,
        module: &str,
        tensor: &TextTensor,
        packed: bool,
    ) -> Result<()> {
        if tensor.role == Role::Vector || self.covers(module, tensor) == packed {
            return Ok(());
        }
        let problem = match (packed, &self.config.quantization) {
            (true, None) => "it is packed, but config.json has no `quantization_config`",
            (true, Some(_)) => "it is packed, but `quantization_config` does not cover its module",
            (false, _) => "it is plain, but `quantization_config` says that its module is packed",
        };
        Err(self.fault(name, problem.into()))
    }

    fn covers(&self, module: &str, tensor: &TextTensor) -> bool {
        let class = match tensor.role {
            Role::Linear | Role::Router => ModuleClass::Linear,
            Role::EmbedTokens | Role::EmbedTokensPerLayer => ModuleClass::Embedding,
            Role::Vector => return false,
        };
        let quantization = self.config.quantization.as_ref();
        quantization.is_some_and(|quantization| quantization.covers(module, class))
    }

    /// Checks dtype and shape of a tensor that is there, and counts it as used.
    fn check(&mut self, name: &str, dtype: Dtype, shape: &[usize]) -> Result<()> {
        let Some(found) = self.checkpoint.tensor(name) else {
            return Err(self.checkpoint.missing(name).into());
        };
        if found.info.dtype != dtype {
            let problem =
                format!("its dtype is {}, expected {}", found.info.dtype.name(), dtype.name());
            return Err(self.fault(name, problem));
        }
        if found.info.shape != shape {
            let problem =
                format!("its shape is {:?}, but config.json makes it {shape:?}", found.info.shape);
            return Err(self.fault(name, problem));
        }
        self.used.insert(name.into());
        Ok(())
    }

    fn has(&self, name: &str) -> bool {
        self.checkpoint.tensor(name).is_some()
    }

    fn dtype(&self, name: &str) -> Option<Dtype> {
        self.checkpoint.tensor(name).map(|found| found.info.dtype)
    }

    fn fault(&self, name: &str, problem: String) -> RuntimeError {
        fault(self.checkpoint, name, problem)
    }
}

/// An error about a tensor, with its file.
pub(super) fn fault(checkpoint: &Checkpoint, name: &str, problem: String) -> RuntimeError {
    let file = file_of(checkpoint, name);
    FormatError::Tensor { file, tensor: name.into(), problem }.into()
}

/// The file that holds a tensor, with its folder; the checkpoint when none does.
pub(crate) fn file_of(checkpoint: &Checkpoint, name: &str) -> String {
    let place = checkpoint.source().label();
    match checkpoint.tensor(name) {
        Some(found) => format!("{place}/{}", found.shard.path),
        None => place.into(),
    }
}

/// Names of what is left out on purpose; anything else that is left over is an error.
fn account_for_the_rest(
    checkpoint: &Checkpoint,
    config: &Config,
    layout: NameLayout,
    used: &BTreeSet<String>,
) -> Result<Vec<String>> {
    let prefix = layout.prefix();
    let (mut towers, mut unused_keys, mut names) = (0, Vec::new(), Vec::new());
    for name in checkpoint.names().filter(|&name| !used.contains(name)) {
        if is_tower(name) {
            towers += 1;
        } else if name.strip_prefix(prefix).is_some_and(|n| is_unused(config, n)) {
            unused_keys.push(format!("`{name}`"));
        } else {
            names.push(name.to_string());
        }
    }
    if !names.is_empty() {
        let place = checkpoint.source().label().to_string();
        return Err(RuntimeError::Unexpected { place, names });
    }
    let mut notes = Vec::new();
    if towers > 0 {
        let tensors = counted(towers, "tensor");
        notes.push(format!("not used: {tensors} of the vision and audio towers"));
    }
    if !unused_keys.is_empty() {
        notes.push(format!(
            "not used: keys and values of layers that read other layers': {}",
            unused_keys.join(", ")
        ));
    }
    if !checkpoint.strays().is_empty() {
        notes.push(format!("not used: {}", checkpoint.strays().join(", ")));
    }
    if !config.unknown.is_empty() {
        let keys = config.unknown.join(", ");
        notes.push(format!("keys of config.json that w4pack does not know: {keys}"));
    }
    Ok(notes)
}

/// Keys and values of KV-shared layers, plain or packed.
fn is_unused(config: &Config, text_name: &str) -> bool {
    let plain = ["_packed", "_scale", "_shape"]
        .iter()
        .find_map(|part| text_name.strip_suffix(part))
        .unwrap_or(text_name);
    is_unused_shared_kv(&config.text, plain)
}
