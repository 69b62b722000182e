//! The index of a checkpoint in two shards.

use serde_json::Value;
use w4pack_format::checkpoint::INDEX_FILE;

use crate::report::FaultClass::Index;
use crate::self_test::Expected;
use crate::self_test::checkpoint::Pack;
use crate::self_test::edits::of_file;
use crate::self_test::random::Random;

pub(super) fn entry(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    edit_index(pack, random, |map, name, others| {
        map[name] = others.iter().find(|file| map[name] != ***file)?.as_str().into();
        Some(())
    })
}

pub(super) fn entry_missing(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    edit_index(pack, random, |map, name, _| map.as_object_mut()?.shift_remove(name).map(drop))
}

pub(super) fn outside(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    let path =
        random.one_of(&["../model.safetensors", "/etc/passwd", "a\\b", "sub/x.safetensors"])?;
    pack.edit_json(INDEX_FILE, |index| {
        let names: Vec<String> = index["weight_map"].as_object()?.keys().cloned().collect();
        let name = random.one_of(&names)?;
        index["weight_map"][&name] = path.into();
        let entry = format!("{INDEX_FILE}, entry `{name}`");
        of_file(Index, &entry)
    })?
}

fn edit_index(
    pack: &mut Pack,
    random: &mut Random,
    edit: fn(&mut Value, &str, &[String]) -> Option<()>,
) -> Option<Expected> {
    let mut files: Vec<String> = pack.tensors().map(|(path, _)| path.clone()).collect();
    files.dedup();
    pack.edit_json(INDEX_FILE, |index| {
        let map = &mut index["weight_map"];
        let names: Vec<String> = map.as_object()?.keys().cloned().collect();
        edit(map, &random.one_of(&names)?, &files)
    })??;
    of_file(Index, INDEX_FILE)
}

pub(super) fn total(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    let change = 1 + random.below(1000) as u64;
    pack.edit_json(INDEX_FILE, |index| {
        let total = index["metadata"]["total_size"].as_u64().unwrap_or(0);
        index["metadata"]["total_size"] = (total + change).into();
    })?;
    of_file(Index, INDEX_FILE)
}
