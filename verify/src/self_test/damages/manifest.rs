//! `w4pack/manifest.json`: words that are not true.

use serde_json::Value;
use w4pack_format::manifest::MANIFEST_FILE;

use crate::companions::comes_later;
use crate::report::FaultClass;
use crate::self_test::Expected;
use crate::self_test::checkpoint::Pack;
use crate::self_test::edits::{of_file, of_tensor};
use crate::self_test::random::Random;

/// Changes a word of the manifest.
fn lie(
    pack: &mut Pack,
    edit: impl FnOnce(&mut Value) -> Option<Option<String>>,
) -> Option<Expected> {
    match pack.edit_json(MANIFEST_FILE, edit)?? {
        Some(tensor) => of_tensor(FaultClass::Manifest, MANIFEST_FILE, &tensor),
        None => of_file(FaultClass::Manifest, MANIFEST_FILE),
    }
}

/// One of a list's entries.
fn entry<'v>(value: &'v mut Value, list: &str, random: &mut Random) -> Option<&'v mut Value> {
    let list = value.pointer_mut(list)?.as_array_mut()?;
    let place = random.below(list.len().max(1));
    list.get_mut(place)
}

/// Another hash of the same length.
fn other_hash(hash: &mut Value, random: &mut Random) -> Option<()> {
    let mut text: Vec<u8> = hash.as_str()?.bytes().collect();
    let place = random.below(text.len());
    text[place] = if text[place] == b'0' { b'1' } else { b'0' };
    *hash = String::from_utf8(text).ok()?.into();
    Some(())
}

pub(super) fn source_hash(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    lie(pack, |manifest| {
        other_hash(&mut entry(manifest, "/source/files", random)?["sha256"], random)?;
        Some(None)
    })
}

pub(super) fn tensor_hash(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    lie(pack, |manifest| {
        let tensor = entry(manifest, "/source/tensors", random)?;
        other_hash(&mut tensor["blake3"], random)?;
        Some(Some(tensor["name"].as_str()?.into()))
    })
}

pub(super) fn fate(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    lie(pack, |manifest| {
        let tensor = entry(manifest, "/source/tensors", random)?;
        let other = if tensor["fate"] == "packed" { "copied" } else { "packed" };
        tensor["fate"] = other.into();
        Some(Some(tensor["name"].as_str()?.into()))
    })
}

pub(super) fn header(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    lie(pack, |manifest| {
        let header = entry(manifest, "/source/headers", random)?;
        header["text"] = header["text"].as_str()?.replacen("BF16", "F16", 1).into();
        Some(None)
    })
}

pub(super) fn file_missing(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    lie(pack, |manifest| {
        let files = manifest["files"].as_array_mut()?;
        // Of a card no manifest needs to speak.
        let needed = |file: &Value| file["path"].as_str().is_some_and(|path| !comes_later(path));
        let places: Vec<usize> = (0..files.len()).filter(|at| needed(&files[*at])).collect();
        files.remove(random.one_of(&places)?);
        Some(None)
    })
}

pub(super) fn scale_dtype(pack: &mut Pack, _: &mut Random) -> Option<Expected> {
    lie(pack, |manifest| {
        let other = if manifest["options"]["scale_dtype"] == "bf16" { "f16" } else { "bf16" };
        manifest["options"]["scale_dtype"] = other.into();
        Some(None)
    })
}

pub(super) fn schema(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    lie(pack, |manifest| {
        manifest["schema"] = format!("w4pack-manifest/{}", 3 + random.below(100)).into();
        Some(None)
    })
}
