//! What a safetensors header says of its tensors.

use serde_json::json;

use crate::report::FaultClass::Header as HeaderClass;
use crate::self_test::Expected;
use crate::self_test::checkpoint::Pack;
use crate::self_test::edits::{any_shard, kept, of_file, of_tensor};
use crate::self_test::random::Random;

pub(super) fn stored_shape(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    let name = format!("{}.weight_shape", random.one_of(&pack.modules())?);
    pack.tensor_mut(&name)?[8 * random.below(2)] ^= 1 << random.below(6);
    of_tensor(HeaderClass, &pack.locate(&name)?.0, &name)
}

pub(super) fn norm_dtype(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    let name = random.one_of(&kept(pack, "norm.weight"))?;
    let file = pack.locate(&name)?.0;
    pack.edit_header(&file, |header| header[&name]["dtype"] = "F16".into())?;
    of_tensor(HeaderClass, &file, &name)
}

pub(super) fn dimensions(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    for _ in 0..50 {
        let name = format!("{}.weight_packed", random.one_of(&pack.modules())?);
        let (file, info, _) = pack.locate(&name)?;
        if info.shape[0] != info.shape[1] {
            let turned = json!([info.shape[1], info.shape[0]]);
            pack.edit_header(&file, |header| header[&name]["shape"] = turned)?;
            return of_tensor(HeaderClass, &file, &name);
        }
    }
    None
}

pub(super) fn header_offset(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    let names: Vec<(String, String)> =
        pack.tensors().map(|(path, info)| (path.clone(), info.name.clone())).collect();
    let (file, name) = random.one_of(&names)?;
    let end = random.below(2);
    let change = 1 + random.below(64) as u64;
    pack.edit_header(&file, |header| {
        let offset = &mut header[&name]["data_offsets"][end];
        *offset = (offset.as_u64().unwrap_or(0) + change).into();
    })?;
    of_file(HeaderClass, &file)
}

pub(super) fn metadata(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    let file = any_shard(pack, random)?;
    pack.edit_header(&file, |header| header["__metadata__"]["note"] = "trust me".into())?;
    of_file(HeaderClass, &file)
}
