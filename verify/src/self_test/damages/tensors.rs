//! Tensors that are too many or too few, and files that are too long or too short for theirs.

use serde_json::json;
use w4pack_format::checkpoint::INDEX_FILE;
use w4pack_format::header::Header;

use crate::report::FaultClass::{Size, TensorExtra, TensorMissing};
use crate::self_test::Expected;
use crate::self_test::checkpoint::Pack;
use crate::self_test::edits::{any_shard, of_file, of_tensor};
use crate::self_test::random::Random;

pub(super) fn extra_tensor(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    let file = any_shard(pack, random)?;
    let name = format!("model.layers.{}.self_attn.extra.weight", random.below(8));
    pack.edit_header(&file, |header| {
        let ends = header.as_object().into_iter().flatten();
        let end = ends.filter_map(|(_, entry)| entry["data_offsets"][1].as_u64()).max();
        let end = end.unwrap_or(0);
        header[&name] = json!({"dtype": "BF16", "shape": [2], "data_offsets": [end, end + 4]});
    })?;
    pack.file_mut(&file)?.extend_from_slice(&[1, 2, 3, 4]);
    add_to_index(pack, &name, &file);
    of_tensor(TensorExtra, &file, &name)
}

/// Where there is an index, it must name the tensor, or the index itself is the fault.
fn add_to_index(pack: &mut Pack, name: &str, file: &str) {
    pack.edit_json(INDEX_FILE, |index| {
        index["weight_map"][name] = file.into();
        let total = index["metadata"]["total_size"].as_u64().unwrap_or(0);
        index["metadata"]["total_size"] = (total + 4).into();
    });
}

/// Takes the last tensor of a file away, so that the others stay where they are.
pub(super) fn missing_tensor(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    let file = any_shard(pack, random)?;
    let last = pack.tensors().filter(|(path, _)| **path == file).last()?.1.clone();
    pack.edit_header(&file, |header| {
        header.as_object_mut().and_then(|entries| entries.shift_remove(&last.name));
    })?;
    let content = pack.file_mut(&file)?;
    content.truncate(content.len() - last.bytes() as usize);
    pack.edit_json(INDEX_FILE, |index| {
        index["weight_map"].as_object_mut().and_then(|map| map.shift_remove(&last.name));
        let total = index["metadata"]["total_size"].as_u64().unwrap_or(0);
        index["metadata"]["total_size"] = (total - last.bytes()).into();
    });
    let module = last.name.rsplit_once('.').map_or("", |(module, _)| module);
    let words = pack.locate(&format!("{module}.weight_packed"));
    let first = pack.tensors().next().map(|(path, _)| path.clone());
    let file = words.map(|(file, ..)| file).or(first)?;
    of_tensor(TensorMissing, &file, &last.name)
}

pub(super) fn truncated(pack: &mut Pack, random: &mut Random, bytes: usize) -> Option<Expected> {
    let file = any_shard(pack, random)?;
    let content = pack.file_mut(&file)?;
    content.truncate(content.len().checked_sub(bytes)?);
    of_file(Size, &file)
}

pub(super) fn trailing_byte(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    let file = any_shard(pack, random)?;
    pack.file_mut(&file)?.push(random.below(256) as u8);
    of_file(Size, &file)
}

pub(super) fn second_weights(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    let path = random.one_of(&["consolidated.safetensors", "original/model.safetensors"])?;
    pack.put(path, Header::lay_out(&[]).ok()?.prefix());
    of_file(TensorExtra, path)
}
