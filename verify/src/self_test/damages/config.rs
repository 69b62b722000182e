//! config.json.

use serde_json::Value;
use w4pack_format::config::CONFIG_FILE;

use crate::report::FaultClass::{Config, Tie};
use crate::self_test::Expected;
use crate::self_test::checkpoint::Pack;
use crate::self_test::edits::of_file;
use crate::self_test::random::Random;

/// Changes a key of the configuration that holds such a value.
fn key(
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

pub(super) fn number(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    key(
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

pub(super) fn key_missing(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    key(
        pack,
        random,
        |key, value| !OPTIONAL.contains(&key) && !value.is_null(),
        |config, key| {
            config.as_object_mut().and_then(|config| config.shift_remove(key));
        },
    )
}

pub(super) fn key_added(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    let number = random.below(1000);
    pack.edit_json(CONFIG_FILE, |config| config[format!("attention_extra_{number}")] = 1.into())?;
    of_file(Config, CONFIG_FILE)
}

pub(super) fn key_twice(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    let number = random.below(1000);
    let content = pack.file_mut(CONFIG_FILE)?;
    let end = content.iter().rposition(|byte| *byte == b'}')?;
    let second = format!(",\"hidden_size\":{number}");
    content.splice(end..end, second.into_bytes());
    of_file(Config, CONFIG_FILE)
}

pub(super) fn tie_flag(pack: &mut Pack, _: &mut Random) -> Option<Expected> {
    pack.edit_json(CONFIG_FILE, |config| {
        let tied = config["tie_word_embeddings"] == true;
        config["tie_word_embeddings"] = (!tied).into();
    })?;
    of_file(Tie, CONFIG_FILE)
}

pub(super) fn target_without_end(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
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

pub(super) fn group_size(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    let size = random.one_of(&[16, 64, 128])?;
    pack.edit_json(CONFIG_FILE, |config| {
        config["quantization_config"]["config_groups"]["group_0"]["weights"]["group_size"] =
            size.into();
    })?;
    of_file(Config, CONFIG_FILE)
}

pub(super) fn dequantize(pack: &mut Pack, _: &mut Random) -> Option<Expected> {
    pack.edit_json(CONFIG_FILE, |config| {
        config["quantization_config"].as_object_mut()?.shift_remove("dequantize")
    })??;
    of_file(Config, CONFIG_FILE)
}
