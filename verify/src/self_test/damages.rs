//! The known ways to damage a checkpoint.

use serde_json::{Value, json};
use w4pack_format::checkpoint::INDEX_FILE;
use w4pack_format::config::CONFIG_FILE;
use w4pack_format::exact::EXACT_FILE;
use w4pack_format::group::GROUP;
use w4pack_format::header::Header;
use w4pack_format::manifest::MANIFEST_FILE;

use super::Expected;
use super::checkpoint::Pack;
use super::edits::{Place, code, of_file, of_tensor, set_code};
use super::random::Random;
use crate::report::FaultClass;

/// What a kind of damage needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// Any checkpoint.
    Files,
    /// A checkpoint in two shards.
    Index,
    /// A manifest.
    Manifest,
}

/// Does the damage and says what must be found; `None` when there is no place for it.
type Apply = fn(&mut Pack, &mut Random) -> Option<Expected>;

/// A way to damage a checkpoint.
pub struct Damage {
    /// What is done.
    pub name: &'static str,
    /// What it needs.
    pub subject: Subject,
    /// The class that must name it.
    class: FaultClass,
    /// Does it.
    pub apply: Apply,
}

impl Damage {
    /// The class in the spelling of reports.
    pub fn class_name(&self) -> String {
        serde_json::to_value(self.class)
            .ok()
            .and_then(|class| class.as_str().map(str::to_string))
            .unwrap_or_default()
    }
}

const fn files(name: &'static str, class: FaultClass, apply: Apply) -> Damage {
    Damage { name, subject: Subject::Files, class, apply }
}

const fn index(name: &'static str, class: FaultClass, apply: Apply) -> Damage {
    Damage { name, subject: Subject::Index, class, apply }
}

const fn manifest(name: &'static str, apply: Apply) -> Damage {
    Damage { name, subject: Subject::Manifest, class: FaultClass::Manifest, apply }
}

use FaultClass::{
    Code, CompanionFile, Config, Header as HeaderClass, Index, Scale, Sidecar, Size, TensorBytes,
    TensorExtra, TensorMissing, Tie,
};

/// All of them.
pub const DAMAGES: &[Damage] = &[
    files("one nibble changed", Code, one_nibble),
    files("two nibbles of a group swapped", Code, swapped_nibbles),
    files("two packed words of a row swapped", Code, swapped_words),
    files("two rows of codes swapped", Code, swapped_rows),
    files("a group's codes and step turned", Code, turned_group),
    files("codes halved, step doubled, or the other way", Code, other_factor),
    files("two equal-shaped packed tensors renamed", Code, renamed_modules),
    files("one step by one last place", Scale, step_by_one_place),
    files("the sign of a step", Scale, step_sign),
    files("a step that is not a number", Scale, |pack, random| bad_step(pack, random, f32::NAN)),
    files("an infinite step", Scale, |pack, random| bad_step(pack, random, f32::INFINITY)),
    files("a step of zero", Scale, |pack, random| bad_step(pack, random, 0.0)),
    files("two steps of a row swapped", Scale, swapped_steps),
    files("one value of a norm", TensorBytes, norm_value),
    files("a layer scalar", TensorBytes, layer_scalar),
    files("two equal-shaped norms renamed", TensorBytes, renamed_norms),
    files("a stored shape", HeaderClass, stored_shape),
    files("the element type of a norm", HeaderClass, norm_dtype),
    files("the dimensions of packed words", HeaderClass, dimensions),
    files("a header offset", HeaderClass, header_offset),
    files("words in a header's metadata", HeaderClass, metadata),
    files("an extra tensor", TensorExtra, extra_tensor),
    files("a missing tensor", TensorMissing, missing_tensor),
    files("weights truncated by 1 byte", Size, |pack, random| truncated(pack, random, 1)),
    files("weights truncated by 4096 bytes", Size, |pack, random| truncated(pack, random, 4096)),
    files("a byte behind the weights", Size, trailing_byte),
    files("one number of the configuration", Config, config_number),
    files("a key of the configuration missing", Config, config_key_missing),
    files("a key of the configuration twice", Config, config_key_twice),
    files("a key of the configuration added", Config, config_key_added),
    files("the tie flag", Tie, tie_flag),
    files("a target pattern without $", Config, target_without_end),
    files("the packed format's group size", Config, group_size),
    files("dequantize taken out", Config, dequantize),
    files("a byte of the tokenizer", CompanionFile, |pack, random| {
        companion_byte(pack, random, "tokenizer.json")
    }),
    files("a byte of the chat template", CompanionFile, |pack, random| {
        companion_byte(pack, random, "chat_template.jinja")
    }),
    files("a stop id", CompanionFile, stop_id),
    files("a companion file missing", CompanionFile, companion_missing),
    files("a file that nobody knows", CompanionFile, unknown_file),
    files("a second weights file", TensorExtra, second_weights),
    files("a finer step in the sidecar", Sidecar, sidecar_step),
    files("the list of the sidecar's groups", Sidecar, sidecar_gaps),
    files("an entry of the sidecar missing", Sidecar, sidecar_entry_missing),
    index("an index entry in the other shard", Index, index_entry),
    index("an index entry missing", Index, index_entry_missing),
    index("an index entry that leads outside", Index, index_outside),
    index("the index's total size", Index, index_total),
    manifest("a manifest of another source", manifest_source_hash),
    manifest("a manifest with a source tensor's other hash", manifest_tensor_hash),
    manifest("a manifest with a tensor's other fate", manifest_fate),
    manifest("a manifest with another source header", manifest_header),
    manifest("a manifest without one of the result's files", manifest_file_missing),
    manifest("a manifest with another step type", manifest_scale_dtype),
    manifest("a manifest of another schema", manifest_schema),
];

fn one_nibble(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    let place = Place::any(pack, random)?;
    let element = random.below(GROUP);
    let change = 1 + random.below(15) as u8;
    place.words(pack)?[element / 2] ^= change << (4 * (element % 2));
    Some(place.code())
}

fn swapped_nibbles(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    for _ in 0..50 {
        let place = Place::any(pack, random)?;
        let words = place.words(pack)?;
        let (one, other) = (random.below(GROUP), random.below(GROUP));
        let (first, second) = (code(words, one), code(words, other));
        if first != second {
            set_code(words, one, second);
            set_code(words, other, first);
            return Some(place.code());
        }
    }
    None
}

fn swapped_words(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    for _ in 0..50 {
        let place = Place::any(pack, random)?;
        let words = place.words(pack)?;
        let (one, other) = (4 * random.below(4), 4 * random.below(4));
        if words[one..one + 4] != words[other..other + 4] {
            (0..4).for_each(|byte| words.swap(one + byte, other + byte));
            return Some(place.code());
        }
    }
    None
}

fn swapped_rows(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    for _ in 0..50 {
        let mut place = Place::any(pack, random)?;
        let bytes = 16 * place.groups_in_row;
        let (one, other) = (random.below(place.rows), random.below(place.rows));
        let words = pack.tensor_mut(&format!("{}.weight_packed", place.module))?;
        let row = |row: usize| row * bytes..(row + 1) * bytes;
        let (first, second) = (words[row(one)].to_vec(), words[row(other)].to_vec());
        let Some(byte) = (0..bytes).find(|&byte| first[byte] != second[byte]) else { continue };
        words[row(one)].copy_from_slice(&second);
        words[row(other)].copy_from_slice(&first);
        place.group = one * place.groups_in_row + byte / 16;
        return Some(place.code());
    }
    None
}

/// Minus code times minus step: the same values by other codes.
fn turned_group(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    for _ in 0..200 {
        let place = Place::any(pack, random)?;
        let words = place.words(pack)?;
        let codes: Vec<i8> = (0..GROUP).map(|element| code(words, element)).collect();
        if codes.contains(&-8) || codes.iter().all(|code| *code == 0) {
            continue;
        }
        (0..GROUP).for_each(|element| set_code(words, element, -codes[element]));
        let step = place.dtype.read(place.step(pack)?);
        place.set_step(pack, -step)?;
        return Some(place.code());
    }
    None
}

/// Codes with another common factor: nearly the same values by other codes.
fn other_factor(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    for _ in 0..5000 {
        let place = Place::any(pack, random)?;
        let words = place.words(pack)?;
        let codes: Vec<i8> = (0..GROUP).map(|element| code(words, element)).collect();
        let small = codes.iter().all(|code| (-4..=3).contains(code));
        if !small || codes.iter().all(|code| *code == 0) {
            continue;
        }
        (0..GROUP).for_each(|element| set_code(words, element, 2 * codes[element]));
        let step = place.dtype.read(place.step(pack)?);
        place.set_step(pack, step / 2.0)?;
        return Some(place.code());
    }
    None
}

fn renamed_modules(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    for _ in 0..200 {
        let modules = pack.modules();
        let (one, other) = (random.one_of(&modules)?, random.one_of(&modules)?);
        let words = |module: &str| format!("{module}.weight_packed");
        let (a, b) = (pack.locate(&words(&one))?, pack.locate(&words(&other))?);
        let same = pack.tensor(&words(&one)) == pack.tensor(&words(&other));
        if a.1.shape != b.1.shape || same {
            continue;
        }
        for suffix in ["weight_packed", "weight_scale"] {
            let (one, other) = (format!("{one}.{suffix}"), format!("{other}.{suffix}"));
            exchange(pack, &one, &other)?;
        }
        return of_tensor(Code, &a.0, &words(&one));
    }
    None
}

/// Exchanges what two tensors hold; they differ in file and place at most.
fn exchange(pack: &mut Pack, one: &str, other: &str) -> Option<()> {
    let (first, second) = (pack.tensor(one)?.to_vec(), pack.tensor(other)?.to_vec());
    if first.len() != second.len() {
        // Scales of two dtypes: the codes alone are exchanged.
        return Some(());
    }
    pack.tensor_mut(one)?.copy_from_slice(&second);
    pack.tensor_mut(other)?.copy_from_slice(&first);
    Some(())
}

fn step_by_one_place(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    let place = Place::any(pack, random)?;
    let up = random.below(2) == 1;
    let step = place.step(pack)?;
    let mut bits = [0; 4];
    bits[..step.len()].copy_from_slice(step);
    let bits = u32::from_le_bytes(bits);
    let bits = if up { bits.wrapping_add(1) } else { bits.wrapping_sub(1) };
    step.copy_from_slice(&bits.to_le_bytes()[..step.len()]);
    Some(place.scale())
}

fn step_sign(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    let place = Place::any(pack, random)?;
    *place.step(pack)?.last_mut()? ^= 0x80;
    Some(place.scale())
}

fn bad_step(pack: &mut Pack, random: &mut Random, step: f32) -> Option<Expected> {
    let place = Place::any(pack, random)?;
    place.set_step(pack, if random.below(2) == 1 { -step } else { step })?;
    Some(place.scale())
}

fn swapped_steps(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    for _ in 0..200 {
        let place = Place::any(pack, random)?;
        let row = place.group - place.group % place.groups_in_row;
        let other = Place { group: row + random.below(place.groups_in_row), ..clone(&place) };
        let (first, second) = (place.step(pack)?.to_vec(), other.step(pack)?.to_vec());
        if first != second {
            place.step(pack)?.copy_from_slice(&second);
            other.step(pack)?.copy_from_slice(&first);
            return Some(place.scale());
        }
    }
    None
}

fn clone(place: &Place) -> Place {
    Place {
        module: place.module.clone(),
        file: place.file.clone(),
        scale_file: place.scale_file.clone(),
        ..*place
    }
}

/// Tensors that are kept as they are, with names ending so.
fn kept(pack: &Pack, ending: &str) -> Vec<String> {
    let names = pack.tensors().map(|(_, info)| info.name.clone());
    names.filter(|name| name.ends_with(ending)).collect()
}

fn norm_value(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    let name = random.one_of(&kept(pack, "norm.weight"))?;
    changed_value(pack, random, &name)
}

fn layer_scalar(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    let name = random.one_of(&kept(pack, "layer_scalar"))?;
    changed_value(pack, random, &name)
}

fn changed_value(pack: &mut Pack, random: &mut Random, name: &str) -> Option<Expected> {
    let file = pack.locate(name)?.0;
    let bytes = pack.tensor_mut(name)?;
    bytes[random.below(bytes.len())] ^= 1 << random.below(8);
    of_tensor(TensorBytes, &file, name)
}

fn renamed_norms(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    let names = kept(pack, "norm.weight");
    for _ in 0..200 {
        let (one, other) = (random.one_of(&names)?, random.one_of(&names)?);
        let (first, second) = (pack.tensor(&one)?, pack.tensor(&other)?);
        if first.len() == second.len() && first != second {
            exchange(pack, &one, &other)?;
            return of_tensor(TensorBytes, &pack.locate(&one)?.0, &one);
        }
    }
    None
}

fn stored_shape(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    let name = format!("{}.weight_shape", random.one_of(&pack.modules())?);
    pack.tensor_mut(&name)?[8 * random.below(2)] ^= 1 << random.below(6);
    of_tensor(HeaderClass, &pack.locate(&name)?.0, &name)
}

fn norm_dtype(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    let name = random.one_of(&kept(pack, "norm.weight"))?;
    let file = pack.locate(&name)?.0;
    pack.edit_header(&file, |header| header[&name]["dtype"] = "F16".into())?;
    of_tensor(HeaderClass, &file, &name)
}

fn dimensions(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
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

fn header_offset(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
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

fn metadata(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    let file = any_shard(pack, random)?;
    pack.edit_header(&file, |header| header["__metadata__"]["note"] = "trust me".into())?;
    of_file(HeaderClass, &file)
}

fn any_shard(pack: &Pack, random: &mut Random) -> Option<String> {
    let shards: Vec<String> = pack.tensors().map(|(path, _)| path.clone()).collect();
    random.one_of(&shards)
}

fn extra_tensor(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
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
fn missing_tensor(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
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

fn truncated(pack: &mut Pack, random: &mut Random, bytes: usize) -> Option<Expected> {
    let file = any_shard(pack, random)?;
    let content = pack.file_mut(&file)?;
    content.truncate(content.len().checked_sub(bytes)?);
    of_file(Size, &file)
}

fn trailing_byte(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    let file = any_shard(pack, random)?;
    pack.file_mut(&file)?.push(random.below(256) as u8);
    of_file(Size, &file)
}

/// Changes a key of the configuration that holds such a value.
fn config_key(
    pack: &mut Pack,
    random: &mut Random,
    wanted: fn(&str, &Value) -> bool,
    edit: fn(&mut Value, &str),
) -> Option<Expected> {
    pack.edit_json(CONFIG_FILE, |config| {
        let entries = config.as_object()?.iter().filter(|(key, value)| wanted(key, value));
        let keys: Vec<String> = entries.map(|(key, _)| key.clone()).collect();
        let key = random.one_of(&keys)?;
        edit(config, &key);
        of_file(Config, CONFIG_FILE)
    })?
}

fn config_number(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    config_key(
        pack,
        random,
        |_, value| value.is_number(),
        |config, key| {
            let number = config[key].as_f64().unwrap_or(0.0);
            config[key] = match config[key].as_u64() {
                Some(whole) => (whole + 1).into(),
                None => (number * 1.5 + 1.0).into(),
            };
        },
    )
}

/// Keys that writers may leave out, or whose absence another class names.
const OPTIONAL: [&str; 5] =
    ["transformers_version", "_name_or_path", "tie_word_embeddings", "text_config", "dtype"];

fn config_key_missing(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    config_key(
        pack,
        random,
        |key, value| !OPTIONAL.contains(&key) && !value.is_null(),
        |config, key| {
            config.as_object_mut().and_then(|config| config.shift_remove(key));
        },
    )
}

fn config_key_added(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    let number = random.below(1000);
    pack.edit_json(CONFIG_FILE, |config| config[format!("attention_extra_{number}")] = 1.into())?;
    of_file(Config, CONFIG_FILE)
}

fn config_key_twice(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    let number = random.below(1000);
    let content = pack.file_mut(CONFIG_FILE)?;
    let end = content.iter().rposition(|byte| *byte == b'}')?;
    let second = format!(",\"hidden_size\":{number}");
    content.splice(end..end, second.into_bytes());
    of_file(Config, CONFIG_FILE)
}

fn tie_flag(pack: &mut Pack, _: &mut Random) -> Option<Expected> {
    pack.edit_json(CONFIG_FILE, |config| config["tie_word_embeddings"] = false.into())?;
    of_file(Tie, CONFIG_FILE)
}

fn target_without_end(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    pack.edit_json(CONFIG_FILE, |config| {
        let targets = config
            .pointer_mut("/quantization_config/config_groups/group_0/targets")?
            .as_array_mut()?;
        let patterns: Vec<usize> = (0..targets.len())
            .filter(|&entry| targets[entry].as_str().is_some_and(|text| text.ends_with('$')))
            .collect();
        let entry = random.one_of(&patterns)?;
        let text = targets[entry].as_str()?.trim_end_matches('$').to_string();
        targets[entry] = text.into();
        of_file(Config, CONFIG_FILE)
    })?
}

fn group_size(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    let size = random.one_of(&[16, 64, 128])?;
    pack.edit_json(CONFIG_FILE, |config| {
        config["quantization_config"]["config_groups"]["group_0"]["weights"]["group_size"] =
            size.into();
    })?;
    of_file(Config, CONFIG_FILE)
}

fn dequantize(pack: &mut Pack, _: &mut Random) -> Option<Expected> {
    pack.edit_json(CONFIG_FILE, |config| {
        config["quantization_config"].as_object_mut()?.shift_remove("dequantize")
    })??;
    of_file(Config, CONFIG_FILE)
}

fn companion_byte(pack: &mut Pack, random: &mut Random, path: &str) -> Option<Expected> {
    let content = pack.file_mut(path)?;
    let at = random.below(content.len());
    content[at] ^= 1 << random.below(8);
    of_file(CompanionFile, path)
}

fn stop_id(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    let path = "generation_config.json";
    let id = 200 + random.below(1000);
    pack.edit_json(path, |config| match &mut config["eos_token_id"] {
        Value::Array(ids) => {
            let place = random.below(ids.len().max(1));
            *ids.get_mut(place)? = id.into();
            Some(())
        }
        other => {
            *other = id.into();
            Some(())
        }
    })??;
    of_file(CompanionFile, path)
}

fn companion_missing(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    let needed = ["tokenizer.json", "chat_template.jinja", "generation_config.json"];
    let there: Vec<&str> = needed.into_iter().filter(|path| pack.file(path).is_some()).collect();
    let path = random.one_of(&there)?;
    pack.remove(path);
    of_file(CompanionFile, path)
}

fn unknown_file(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    let path = random.one_of(&[
        "modeling_gemma4.py",
        "added_tokens.json",
        "w4pack/notes.txt",
        "additional_chat_templates/tool.jinja",
    ])?;
    pack.put(path, b"x".to_vec());
    of_file(CompanionFile, path)
}

fn second_weights(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    let path = random.one_of(&["consolidated.safetensors", "original/model.safetensors"])?;
    pack.put(path, Header::lay_out(&[]).ok()?.prefix());
    of_file(TensorExtra, path)
}

/// An entry of the sidecar whose name ends so: its module, and its place in the file.
fn sidecar_entry(
    pack: &Pack,
    random: &mut Random,
    endings: &[&str],
) -> Option<(String, String, std::ops::Range<usize>)> {
    let content = pack.file(EXACT_FILE)?;
    let header = Header::parse(EXACT_FILE, content.len() as u64, &mut |offset, buffer| {
        let begin = offset as usize;
        buffer.copy_from_slice(&content[begin..begin + buffer.len()]);
        Ok(())
    })
    .ok()?;
    let entries: Vec<_> = header
        .tensors
        .iter()
        .filter(|tensor| endings.iter().any(|ending| tensor.name.ends_with(ending)))
        .collect();
    let entry = random.one_of(&entries)?;
    let begin = header.data_start() as usize;
    let module = entry.name.split('|').next()?.to_string();
    let place = begin + entry.begin as usize..begin + entry.end as usize;
    Some((module, entry.name.clone(), place))
}

fn sidecar_step(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    let (module, _, place) = sidecar_entry(pack, random, &["|step.values"])?;
    let at = place.start + random.below(place.len());
    pack.file_mut(EXACT_FILE)?[at] ^= 1 << random.below(8);
    of_tensor(Sidecar, EXACT_FILE, &module)
}

fn sidecar_gaps(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    let (module, _, place) = sidecar_entry(pack, random, &["|step.gaps"])?;
    let at = place.start + random.below(place.len());
    let byte = &mut pack.file_mut(EXACT_FILE)?[at];
    *byte = if *byte == 0 { 1 } else { *byte - 1 };
    of_tensor(Sidecar, EXACT_FILE, &module)
}

fn sidecar_entry_missing(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    // Renamed within the module to what the schema does not know: the entry itself is the fault.
    let (_, name, _) = sidecar_entry(pack, random, &["|step.values", "|step.gaps"])?;
    let other = name.replace("|step.", "|stop.");
    let length = u64::from_le_bytes(pack.file(EXACT_FILE)?.get(..8)?.try_into().ok()?) as usize;
    let content = pack.file_mut(EXACT_FILE)?;
    let header = String::from_utf8(content[8..8 + length].to_vec()).ok()?;
    let renamed = header.replace(&format!("\"{name}\""), &format!("\"{other}\""));
    content[8..8 + length].copy_from_slice(renamed.as_bytes());
    of_tensor(Sidecar, EXACT_FILE, &other)
}

fn index_entry(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    edit_index(pack, random, |map, name, others| {
        map[name] = others.iter().find(|file| map[name] != ***file)?.as_str().into();
        Some(())
    })
}

fn index_entry_missing(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    edit_index(pack, random, |map, name, _| map.as_object_mut()?.shift_remove(name).map(drop))
}

fn index_outside(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
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

fn index_total(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    let change = 1 + random.below(1000) as u64;
    pack.edit_json(INDEX_FILE, |index| {
        let total = index["metadata"]["total_size"].as_u64().unwrap_or(0);
        index["metadata"]["total_size"] = (total + change).into();
    })?;
    of_file(Index, INDEX_FILE)
}

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

fn manifest_source_hash(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    lie(pack, |manifest| {
        other_hash(&mut entry(manifest, "/source/files", random)?["sha256"], random)?;
        Some(None)
    })
}

fn manifest_tensor_hash(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    lie(pack, |manifest| {
        let tensor = entry(manifest, "/source/tensors", random)?;
        other_hash(&mut tensor["blake3"], random)?;
        Some(Some(tensor["name"].as_str()?.into()))
    })
}

fn manifest_fate(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    lie(pack, |manifest| {
        let tensor = entry(manifest, "/source/tensors", random)?;
        let other = if tensor["fate"] == "packed" { "copied" } else { "packed" };
        tensor["fate"] = other.into();
        Some(Some(tensor["name"].as_str()?.into()))
    })
}

fn manifest_header(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    lie(pack, |manifest| {
        let header = entry(manifest, "/source/headers", random)?;
        header["text"] = header["text"].as_str()?.replacen("BF16", "F16", 1).into();
        Some(None)
    })
}

fn manifest_file_missing(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    lie(pack, |manifest| {
        let files = manifest["files"].as_array_mut()?;
        let place = random.below(files.len().max(1));
        files.remove(place);
        Some(None)
    })
}

fn manifest_scale_dtype(pack: &mut Pack, _: &mut Random) -> Option<Expected> {
    lie(pack, |manifest| {
        let other = if manifest["options"]["scale_dtype"] == "bf16" { "f16" } else { "bf16" };
        manifest["options"]["scale_dtype"] = other.into();
        Some(None)
    })
}

fn manifest_schema(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    lie(pack, |manifest| {
        manifest["schema"] = format!("w4pack-manifest/{}", 3 + random.below(100)).into();
        Some(None)
    })
}
