//! Sources that are packed already: which modules go over as they are.

use w4pack_format::checkpoint::Checkpoint;
use w4pack_format::dtype::Dtype;
use w4pack_format::group::GROUP;
use w4pack_format::names::TextTensor;
use w4pack_format::scale::ScaleDtype;

use super::head;
use crate::{ConvertError, Layout};

/// The tensors of a packed module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// `weight_packed`.
    Words,
    /// `weight_scale`.
    Scales,
    /// `weight_shape`.
    Shape,
}

impl Part {
    /// All parts.
    pub const ALL: [Part; 3] = [Part::Words, Part::Scales, Part::Shape];

    /// What stands behind the module's name.
    pub fn suffix(self) -> &'static str {
        match self {
            Part::Words => "weight_packed",
            Part::Scales => "weight_scale",
            Part::Shape => "weight_shape",
        }
    }
}

/// Whether any tensor is packed.
pub(super) fn is_packed(checkpoint: &Checkpoint) -> bool {
    checkpoint.names().any(|name| name.ends_with(".weight_packed"))
}

/// The scale dtype of a module that is packed in the source; `None` if it is not packed.
///
/// Errors: a part that is missing or not what config.json makes it; a layout that keeps this
/// module in bf16, which would round its values.
pub(super) fn scale_dtype(
    checkpoint: &Checkpoint,
    module: &str,
    wanted: &TextTensor,
    layout: Layout,
) -> Result<Option<ScaleDtype>, ConvertError> {
    let names = Part::ALL.map(|part| format!("{module}.{}", part.suffix()));
    if names.iter().all(|name| checkpoint.tensor(name).is_none()) {
        return Ok(None);
    }
    let (rows, columns) = (wanted.shape[0], wanted.shape[1]);
    let shapes = [vec![rows, columns / 8], vec![rows, columns / GROUP], vec![2]];
    let mut scale_dtype = None;
    for ((name, shape), part) in names.iter().zip(shapes).zip(Part::ALL) {
        let Some(found) = checkpoint.tensor(name) else {
            let (place, tensor) = (checkpoint.source().label().into(), name.clone());
            return Err(ConvertError::MissingTensor { place, tensor, shape });
        };
        let fail = |problem| ConvertError::Tensor {
            file: found.shard.path.clone(),
            tensor: name.clone(),
            problem,
        };
        let dtype = found.info.dtype;
        let known = match part {
            Part::Words => dtype == Dtype::I32,
            Part::Scales => ScaleDtype::from_dtype(dtype).is_some(),
            Part::Shape => matches!(dtype, Dtype::I64 | Dtype::I32),
        };
        if !known || found.info.shape != shape || !columns.is_multiple_of(GROUP) {
            let is = &found.info.shape;
            return Err(fail(format!(
                "it is {dtype} {is:?}; 4-bit symmetric words in groups of {GROUP} make it {shape:?}"
            )));
        }
        match part {
            Part::Words => {}
            Part::Scales => scale_dtype = ScaleDtype::from_dtype(dtype),
            Part::Shape => {
                let stored = stored_shape(&checkpoint.read(name)?, dtype);
                if stored != [rows as i64, columns as i64] {
                    let problem = format!("it says {stored:?}, config.json [{rows}, {columns}]");
                    return Err(fail(problem));
                }
            }
        }
    }
    if !layout.packs(wanted.role) {
        return Err(ConvertError::Layout {
            layout,
            problem: format!(
                "it keeps `{module}` in bf16, the source has it packed, and unpacking would round"
            ),
        });
    }
    Ok(scale_dtype)
}

fn stored_shape(bytes: &[u8], dtype: Dtype) -> Vec<i64> {
    match dtype {
        Dtype::I64 => bytes.as_chunks().0.iter().map(|b| i64::from_le_bytes(*b)).collect(),
        _ => bytes.as_chunks().0.iter().map(|b| i32::from_le_bytes(*b).into()).collect(),
    }
}

/// Whether a tensor is a part of a second head; then it must be the table's, byte for byte.
pub(super) fn is_tied_part(
    checkpoint: &Checkpoint,
    table_module: &str,
    name: &str,
) -> Result<bool, ConvertError> {
    let part = Part::ALL.into_iter().find(|part| name == format!("lm_head.{}", part.suffix()));
    let (Some(part), Some(located)) = (part, checkpoint.tensor(name)) else { return Ok(false) };
    let table = format!("{table_module}.{}", part.suffix());
    head::check_tied_copy(checkpoint, &table, located)?;
    Ok(true)
}
