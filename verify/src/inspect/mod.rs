//! The X-ray of a checkpoint: what its tensors are, and on which grid their values lie. No source is
//! needed, nothing is proved.
//!
//! [`survey`] looks at groups, spread evenly over each tensor; [`plot`] draws what was found.

pub mod plot;
mod survey;
mod words;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use w4pack_format::Result;
use w4pack_format::checkpoint::Checkpoint;
use w4pack_format::config::Config;
use w4pack_format::dtype::Dtype;
use w4pack_format::names::is_tower;
use w4pack_format::source::Source;

use crate::progress::Progress;
use crate::ranges::Range;
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

/// Looks through a checkpoint in safetensors. Errors: it cannot be read.
pub fn inspect(source: &Arc<dyn Source>, progress: &dyn Progress) -> Result<XRay> {
    let checkpoint = Checkpoint::open(source.clone())?;
    let mut xray = XRay {
        label: source.label().into(),
        bytes: source.files().iter().map(|file| file.bytes).sum(),
        tie_word_embeddings: Config::load(&**source).ok().map(|config| config.tie_word_embeddings),
        ..XRay::default()
    };
    let mut kinds: BTreeMap<(String, String), (u64, u64)> = BTreeMap::new();
    let names: Vec<&str> = checkpoint.names().collect();
    progress.begin("inspecting", names.len() as u64);
    for name in names {
        let Some(found) = checkpoint.tensor(name) else { continue };
        let key = (kind_of(name), found.info.dtype.name().to_string());
        let entry = kinds.entry(key).or_default();
        entry.0 += 1;
        entry.1 += found.info.bytes();
        if let Some(module) = name.strip_suffix(".weight_packed") {
            xray.packed.take_packed(&checkpoint, module)?;
        } else if found.info.dtype == Dtype::BF16 && found.info.shape.len() == 2 && !is_tower(name)
        {
            xray.dense.take_dense(&checkpoint, name)?;
        }
        progress.advance(1);
    }
    xray.kinds = kinds
        .into_iter()
        .map(|((kind, dtype), (tensors, bytes))| Kind { kind, dtype, tensors, bytes })
        .collect();
    xray.grid = xray.dense.grid();
    xray.packed_rule = xray.packed.packed_rule();
    xray.head_is_table = head_is_table(&checkpoint)?;
    Ok(xray)
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
