//! What the configuration demands of the source's tensors, and why others may be left out.

use std::collections::HashMap;

use w4pack_format::checkpoint::{Checkpoint, Located};
use w4pack_format::config::Config;
use w4pack_format::dtype::Dtype;
use w4pack_format::group::GROUP;
use w4pack_format::names::{NameLayout, TextTensor, is_tower, is_unused_shared_kv};
use w4pack_format::scale::ScaleDtype;

use super::packed::{self, Part};
use super::{Reason, Treatment, head};
use crate::{ConvertError, Layout};

/// By position in `text`: the dtype of the steps of what is packed already.
pub(super) fn relayed(
    checkpoint: &Checkpoint,
    names: NameLayout,
    text: &[TextTensor],
    layout: Layout,
) -> Result<Vec<Option<ScaleDtype>>, ConvertError> {
    let dtype = |wanted: &TextTensor| match wanted.is_matrix() {
        true => packed::scale_dtype(checkpoint, &names.full_name(wanted.module()), wanted, layout),
        false => Ok(None),
    };
    text.iter().map(dtype).collect()
}

/// What becomes of the demanded tensors, by their full source name; each is checked against the
/// file.
pub(super) fn demanded(
    checkpoint: &Checkpoint,
    names: NameLayout,
    text: &[TextTensor],
    relayed: &[Option<ScaleDtype>],
    layout: Layout,
) -> Result<HashMap<String, Treatment>, ConvertError> {
    let mut treatments = HashMap::new();
    for (position, wanted) in text.iter().enumerate() {
        if relayed[position].is_some() {
            let module = names.full_name(wanted.module());
            for part in Part::ALL {
                let name = format!("{module}.{}", part.suffix());
                treatments.insert(name, Treatment::Relay(position, part));
            }
            continue;
        }
        let name = names.full_name(wanted.dense_name());
        if let Some(Treatment::PackEach { count, .. }) = treatments.get_mut(&name) {
            *count += 1;
            continue;
        }
        let Some(located) = checkpoint.tensor(&name) else {
            let place = checkpoint.source().label().into();
            let shape = wanted.dense_shape().to_vec();
            return Err(ConvertError::MissingTensor { place, tensor: name, shape });
        };
        check(checkpoint, wanted, layout, located)?;
        let treatment = match (&wanted.stack, layout.packs(wanted.role)) {
            (Some(_), _) => Treatment::PackEach { first: position, count: 1 },
            (None, true) => Treatment::Pack(position),
            (None, false) => Treatment::Copy(position),
        };
        treatments.insert(name, treatment);
    }
    Ok(treatments)
}

fn check(
    checkpoint: &Checkpoint,
    wanted: &TextTensor,
    layout: Layout,
    located: Located<'_>,
) -> Result<(), ConvertError> {
    let info = located.info;
    let fail = |problem| ConvertError::Tensor {
        file: checkpoint.place(&located.shard.path),
        tensor: info.name.clone(),
        problem,
    };
    if info.shape != wanted.dense_shape() {
        let (found, wanted) = (&info.shape, wanted.dense_shape());
        return Err(fail(format!("its shape is {found:?}, config.json demands {wanted:?}")));
    }
    if info.dtype != Dtype::BF16 {
        return Err(fail(format!("its dtype is {}, w4pack converts BF16", info.dtype)));
    }
    let columns = wanted.shape.last().copied().unwrap_or_default();
    if layout.packs(wanted.role) && !columns.is_multiple_of(GROUP) {
        return Err(fail(format!("its {columns} columns are not a multiple of {GROUP}")));
    }
    Ok(())
}

/// A kept tower must be as every reader of the output takes it: not packed.
pub(super) fn check_tower(located: Located<'_>) -> Result<(), ConvertError> {
    let Located { shard, info } = located;
    if info.name.ends_with(".weight_packed") {
        return Err(ConvertError::Tensor {
            file: shard.path.clone(),
            tensor: info.name.clone(),
            problem: "a packed tower cannot be kept: outputs have them in bf16".into(),
        });
    }
    Ok(())
}

/// Why a tensor that the configuration does not demand may be left out.
pub(super) fn left_out(
    checkpoint: &Checkpoint,
    config: &Config,
    names: NameLayout,
    located: Located<'_>,
) -> Result<Reason, ConvertError> {
    let name = &located.info.name;
    if is_tower(name) {
        return Ok(Reason::Tower);
    }
    if name == head::HEAD {
        head::check_tied_copy(checkpoint, &names.full_name("embed_tokens.weight"), located)?;
        return Ok(Reason::TiedCopy);
    }
    if packed::is_tied_part(checkpoint, &names.full_name("embed_tokens"), name)? {
        return Ok(Reason::TiedCopy);
    }
    let plain = ["_packed", "_scale", "_shape"].iter().find_map(|part| name.strip_suffix(part));
    let text_name = plain.unwrap_or(name).strip_prefix(names.prefix());
    if text_name.is_some_and(|name| is_unused_shared_kv(&config.text, name)) {
        return Ok(Reason::UnusedSharedKv);
    }
    Err(ConvertError::UnknownTensor {
        file: checkpoint.place(&located.shard.path),
        tensor: name.clone(),
        shape: located.info.shape.clone(),
    })
}
