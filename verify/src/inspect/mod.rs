//! The X-ray of a checkpoint: what its tensors are, and on which grid their values lie. No source is
//! needed, nothing is proved.
//!
//! [`survey`] looks at groups, spread evenly over each tensor; [`plot`] draws what was found.

mod plot;
mod survey;
mod words;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use w4pack_format::Result;
use w4pack_format::checkpoint::Checkpoint;
use w4pack_format::config::Config;
use w4pack_format::dtype::Dtype;
use w4pack_format::gguf::{Gguf, view};
use w4pack_format::names::is_tower;
use w4pack_format::source::Source;

use crate::progress::Progress;
use crate::ranges::Range;
pub use plot::plot;
pub use survey::Survey;

/// What is in a checkpoint.
#[derive(Debug, Clone, Default, Serialize)]
pub struct XRay {
    /// The folder or name.
    pub label: String,
    /// Bytes of all files.
    pub bytes: u64,
    /// Tensors by kind (`q_proj`, `norm`, `embed_tokens` …) and element type.
    pub kinds: Vec<Kind>,
    /// Matrices in bf16: their values.
    pub dense: Survey,
    /// Packed matrices: their codes and steps.
    pub packed: Survey,
    /// The convention that the bf16 values were rounded by, where they lie on a grid.
    pub grid: Option<String>,
    /// The convention of the packed codes and steps.
    pub packed_rule: Option<String>,
    /// What config.json says of the head; null without a readable one.
    pub tie_word_embeddings: Option<bool>,
    /// Whether there is a head of its own, and then whether it equals `embed_tokens`.
    pub head_is_table: Option<bool>,
}

/// Tensors of one kind and element type.
#[derive(Debug, Clone, Serialize)]
pub struct Kind {
    /// The last telling part of the names.
    pub kind: String,
    /// Element type.
    pub dtype: String,
    /// How many.
    pub tensors: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Looks through a checkpoint in safetensors, or through a GGUF file: its Q4_0 blocks as packed
/// matrices. Errors: it cannot be read.
pub fn inspect(source: &Arc<dyn Source>, progress: &dyn Progress) -> Result<XRay> {
    if let Some(path) = view::model_file(&**source)?.map(str::to_string) {
        let seen: Arc<dyn Source> = Arc::new(view::GgufSource::open(source.clone(), &path)?);
        let xray = look_through(&seen, progress)?;
        let bytes = source.size(&path).unwrap_or_default();
        return Ok(XRay { bytes, kinds: gguf_kinds(&**source, &path, bytes)?, ..xray });
    }
    look_through(source, progress)
}

fn look_through(source: &Arc<dyn Source>, progress: &dyn Progress) -> Result<XRay> {
    let checkpoint = Checkpoint::open(source.clone())?;
    let mut xray = XRay {
        label: source.label().into(),
        bytes: source.files().iter().map(|file| file.bytes).sum(),
        tie_word_embeddings: Config::load(&**source).ok().map(|config| config.tie_word_embeddings),
        ..XRay::default()
    };
    let mut kinds = Kinds::default();
    let names: Vec<&str> = checkpoint.names().collect();
    progress.begin("inspecting", names.len() as u64);
    for name in names {
        let Some(found) = checkpoint.tensor(name) else { continue };
        kinds.add(kind_of(name), found.info.dtype.name(), found.info.bytes());
        if let Some(module) = name.strip_suffix(".weight_packed") {
            xray.packed.take_packed(&checkpoint, module)?;
        } else if found.info.dtype == Dtype::BF16 && found.info.shape.len() == 2 && !is_tower(name)
        {
            xray.dense.take_dense(&checkpoint, name)?;
        }
        progress.advance(1);
    }
    xray.kinds = kinds.into_list();
    xray.grid = xray.dense.grid();
    xray.packed_rule = xray.packed.packed_rule();
    xray.head_is_table = head_is_table(&checkpoint)?;
    Ok(xray)
}

/// The tensors of a GGUF file under its own names and types.
fn gguf_kinds(source: &dyn Source, path: &str, bytes: u64) -> Result<Vec<Kind>> {
    let gguf =
        Gguf::parse(path, bytes, &mut |offset, buffer| source.read_at(path, offset, buffer))?;
    let mut kinds = Kinds::default();
    for tensor in &gguf.tensors {
        kinds.add(kind_of(&tensor.name), tensor.tensor_type.name(), tensor.bytes);
    }
    Ok(kinds.into_list())
}

/// Tensors and bytes by kind and element type.
#[derive(Default)]
struct Kinds(BTreeMap<(String, String), (u64, u64)>);

impl Kinds {
    fn add(&mut self, kind: String, dtype: &str, bytes: u64) {
        let (tensors, sum) = self.0.entry((kind, dtype.to_string())).or_default();
        *tensors += 1;
        *sum += bytes;
    }

    fn into_list(self) -> Vec<Kind> {
        let kind = |((kind, dtype), (tensors, bytes))| Kind { kind, dtype, tensors, bytes };
        self.0.into_iter().map(kind).collect()
    }
}

/// `q_proj`, `norm`, `embed_tokens`, `vision_tower` …
fn kind_of(name: &str) -> String {
    if is_tower(name) {
        return name.split('.').nth(1).unwrap_or(name).to_string();
    }
    let module = ["weight", "weight_packed", "weight_scale", "weight_shape"]
        .iter()
        .find_map(|suffix| name.strip_suffix(&format!(".{suffix}")));
    let last = module.unwrap_or(name).rsplit('.').next().unwrap_or(name);
    if last.ends_with("norm") { "norm".into() } else { last.into() }
}

/// Whether a head of its own holds the same bytes as the table; `None` without one.
fn head_is_table(checkpoint: &Checkpoint) -> Result<Option<bool>> {
    let mut answer = None;
    for name in checkpoint.names().filter(|name| name.starts_with("lm_head.")) {
        let ending = &name["lm_head.".len()..];
        let is_twin = |other: &&str| other.ends_with(&format!(".embed_tokens.{ending}"));
        let twin = checkpoint.names().find(is_twin).and_then(|twin| checkpoint.tensor(twin));
        let (Some(head), Some(table)) = (checkpoint.tensor(name), twin) else {
            return Ok(Some(false));
        };
        let (head, table) =
            (Range::of_tensor(checkpoint, head), Range::of_tensor(checkpoint, table));
        let same = head.bytes == table.bytes && head.compare(&table, &())?.differences.bytes == 0;
        answer = Some(answer.unwrap_or(true) && same);
    }
    Ok(answer)
}
